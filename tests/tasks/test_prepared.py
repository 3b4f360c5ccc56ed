from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedimmune.errors import InputError, ParameterError
from fedimmune.tasks import Data, DataSpec, Samples, data
from fedimmune.tasks.data import read_data, write_data


def small(value: float = 0.0, highest: tuple[float, ...] | None = (2.5,)) -> Data:
    """Make a data set, whose labels share memory as views of one tensor do."""
    labels = torch.tensor([0, 1, 1])
    return Data(
        Samples(torch.full((3, 1, 2, 2), value), labels),
        Samples(torch.full((2, 1, 2, 2), value + 1), labels[:2]),
        classes=2,
        highest=highest,
        extras={"vectors": torch.arange(6.0).reshape(3, 2)},
    )


def same(one: Data, other: Data) -> bool:
    return (
        all(
            torch.equal(getattr(getattr(one, half), part), getattr(getattr(other, half), part))
            for half in ("clients", "server")
            for part in ("inputs", "labels")
        )
        and one.spec == other.spec
        and one.extras.keys() == other.extras.keys()
        and all(torch.equal(one.extras[name], other.extras[name]) for name in one.extras)
    )


class Counted:
    """A way of making data that counts how often it was gone."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Data:
        self.times += 1
        return small(float(self.times))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(data, "user_cache", lambda: folder)
    return folder


@pytest.fixture
def get(tmp_path: Path, cache: Path) -> Callable[..., Data]:
    assert not cache.exists()
    source = tmp_path / "place" / "source"
    source.parent.mkdir()
    source.write_text("as it was")

    def call(make: Callable[[], Data], **settings: object) -> Data:
        return data.prepared("set", tmp_path / "place", [source], settings, make)

    return call


@pytest.mark.parametrize("highest", [None, (2.5,)])
def test_round_trip(tmp_path: Path, highest: tuple[float, ...] | None) -> None:
    write_data(small(highest=highest), tmp_path / "file")
    found = read_data(tmp_path / "file")
    assert same(found, small(highest=highest))
    assert found.file == tmp_path / "file"


def test_text_stays_text(tmp_path: Path) -> None:
    ids = Samples(torch.tensor([[0, 2], [1, 3]], dtype=torch.int32), torch.tensor([0, 1]))
    write_data(Data(ids, ids, classes=2, words=4), tmp_path / "file")
    assert read_data(tmp_path / "file").spec == DataSpec(2, (2,), words=4)


@pytest.mark.parametrize("inputs", [torch.zeros(2, 5), torch.zeros(2, 1, 5, dtype=torch.int32)])
def test_text_is_whole_numbers_in_rows(inputs: torch.Tensor) -> None:
    samples = Samples(inputs, torch.tensor([0, 1]))
    with pytest.raises(InputError, match="word ids"):
        Data(samples, samples, classes=2, words=4)
    with pytest.raises(ParameterError, match="words"):
        Data(samples, samples, classes=2, words="4")  # type: ignore[arg-type]


def test_it_is_made_once(tmp_path: Path, get: Callable[..., Data]) -> None:
    make = Counted()
    first, second = get(make), get(make)
    assert make.times == 1
    assert same(first, second)
    assert first.file == second.file
    assert first.file is not None
    assert first.file.parent == tmp_path / "place" / "prepared"


def test_it_is_made_anew_when_a_source_or_setting_changes(
    tmp_path: Path, get: Callable[..., Data]
) -> None:
    make, source = Counted(), tmp_path / "place" / "source"
    get(make)
    source.write_text("longer than it was")
    get(make)
    assert make.times == 2
    os.utime(source, ns=(1, 1))
    get(make)
    assert make.times == 3
    get(make, side=32)
    assert make.times == 4
    get(make, side=32)
    get(make)
    assert make.times == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "other"])
def test_a_damaged_file_is_made_anew(get: Callable[..., Data], damage: str) -> None:
    make = Counted()
    file = get(make).file
    assert file is not None
    content = file.read_bytes()
    changed = {
        "cut": content[:-3],
        "empty": b"",
        "text": b"no such thing" * 9,
        "other": content.replace(b"fedimmune-data-1", b"fedimmune-data-0"),
    }[damage]
    # Not in place: what is mapped must not change.
    file.unlink()
    file.write_bytes(changed)
    with pytest.raises(InputError):
        read_data(file)
    get(make)
    assert make.times == 2
    get(make)
    assert make.times == 2


def test_where_the_place_cannot_be_written_the_cache_is_used(
    tmp_path: Path, cache: Path, get: Callable[..., Data]
) -> None:
    (tmp_path / "place" / "prepared").write_text("in the way")
    make = Counted()
    for _ in range(2):
        found = get(make)
        assert found.file is not None
        assert found.file.parent == cache / "prepared"
    assert make.times == 1


def test_a_damaged_file_that_cannot_be_replaced_is_passed_over(
    cache: Path, get: Callable[..., Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Counted()
    file = get(make).file
    assert file is not None
    file.unlink()
    file.write_text("damaged")
    write = data.write_data

    def only_elsewhere(data: Data, path: Path) -> None:
        if path.parent == file.parent:
            raise InputError("read-only")
        write(data, path)

    monkeypatch.setattr(data, "write_data", only_elsewhere)
    for _ in range(2):
        assert get(make).file == cache / "prepared" / file.name
    assert make.times == 2


def test_where_nothing_can_be_written_it_is_made_each_time(
    tmp_path: Path, cache: Path, get: Callable[..., Data], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "place" / "prepared").write_text("in the way")
    cache.write_text("in the way")
    make = Counted()
    for time in (1, 2):
        found = get(make)
        assert found.file is None
        assert same(found, small(float(time)))
    assert make.times == 2
    assert "set: cannot be saved" in caplog.text
