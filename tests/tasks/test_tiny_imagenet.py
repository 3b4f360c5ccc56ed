from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedimmune import tasks
from fedimmune.errors import InputError
from fedimmune.tasks.archives import Archive
from fedimmune.tasks.tiny_imagenet import TinyImagenet
from tests.tasks.making import NOWHERE, jpeg, tiny_imagenet_folder
from tests.tasks.training import learns


def test_a_folder_loads_and_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_imagenet_folder(tmp_path)
    task = tasks.get("tiny-imagenet", width=2)
    data = task.load(tmp_path)
    assert data.clients.inputs.shape == (400, 3, 64, 64)
    assert data.server.inputs.shape == (200, 3, 64, 64)
    # Classes are numbered by their names.
    assert data.clients.labels.tolist() == [label for label in range(200) for _ in range(2)]
    assert sorted(data.server.labels.tolist()) == [*range(200)]
    assert "400 of 100,000 training and 200 of 10,000 test images: a subset" in caplog.text
    # Each image is of its class: red rises with it, and what is gray is gray in each channel.
    means = torch.tensor((0.4802, 0.4481, 0.3975))[:, None]
    stds = torch.tensor((0.2770, 0.2691, 0.2821))[:, None]
    for samples in (data.clients, data.server):
        levels = samples.inputs.mean((2, 3)).T * stds + means
        assert torch.allclose(levels[0, 2:] * 255, samples.labels[2:].float(), atol=3)
    gray = data.clients.inputs[0].mean((1, 2)) * stds[:, 0] + means[:, 0]
    assert torch.allclose(gray, torch.zeros(3), atol=0.02)
    assert learns(task, data, steps=20, lr=0.1)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(f"{NOWHERE}tiny-imagenet-200.zip", "0" * 32, "tiny-imagenet-200")
    monkeypatch.setattr(TinyImagenet, "archive", archive)
    with pytest.raises(InputError, match=r"wnids\.txt, train, val/images, .*FEDIMMUNE_DATA"):
        TinyImagenet().load(tmp_path)
    folder = tiny_imagenet_folder(tmp_path)
    (folder / "val" / "val_annotations.txt").unlink()
    with pytest.raises(InputError, match=r"tiny-imagenet-200: val/val_annotations\.txt\. Get"):
        TinyImagenet().load(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    folder = tiny_imagenet_folder(tmp_path)
    train, val = folder / "train" / "n00000003" / "images", folder / "val"

    def problem(file: Path, content: bytes | None) -> str:
        kept = file.read_bytes()
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(InputError) as caught:
            TinyImagenet().load(tmp_path)
        file.write_bytes(kept)
        return str(caught.value)

    image = train / "n00000003_1.JPEG"
    whole = image.read_bytes()
    for content in (b"", b"<html>", whole[:100], whole[:-40]):
        found = problem(image, content)
        assert f"{image} cannot be read as JPEG" in found
    jpeg(tmp_path / "large", side=65)
    found = problem(image, (tmp_path / "large").read_bytes())
    assert f"{image} is an image of 65×65 pixels; 64×64 are expected" in found

    rows = (val / "val_annotations.txt").read_text().splitlines()
    for changed, words in (
        (["val_0.JPEG", *rows[1:]], "line 1: expected a file and one of the classes"),
        (["val_0.JPEG\tn99999999", *rows[1:]], "line 1: expected a file and one of the classes"),
        (rows[1:], "does not say what"),
        (["val_0.JPEG\tn00000001", *rows[1:]], "no sample of class 0"),
    ):
        found = problem(val / "val_annotations.txt", "\n".join(changed).encode())
        assert words in found
    assert "cannot be read" in problem(val / "val_annotations.txt", b"\xff\xfe")
    assert "no sample of class 5" in problem(val / "images" / "val_5.JPEG", None)
    assert "names 1 classes; 200 are" in problem(folder / "wnids.txt", b"n00000001\n")
    other = (folder / "wnids.txt").read_bytes().replace(b"n00000001", b"n99999999")
    assert "n99999999/images holds no images" in problem(folder / "wnids.txt", other)


def test_check_counts(tmp_path: Path) -> None:
    assert {each.verdict for each in TinyImagenet().check(tmp_path)} == {"missing"}
    tiny_imagenet_folder(tmp_path)
    train, val = TinyImagenet().check(tmp_path)
    assert (train.verdict, train.detail) == ("differs", "400 of 100,000 files")
    assert (val.verdict, val.detail) == ("differs", "200 of 10,000 files")
