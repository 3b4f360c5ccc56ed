from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

import fedimmune.io
from fedimmune.errors import InputError
from fedimmune.io import load_mapped, read_metadata, write_atomically

STATE = {
    "fc.weight": torch.arange(20, dtype=torch.float32).reshape(4, 5) / 7,
    "fc.bias": torch.tensor([0.5, -0.0, 3e38, 1e-45]),
    "bn.num_batches_tracked": torch.tensor(7),
}
WHOLE = save(STATE, {"made by": "a test"})
HEADER = struct.unpack("<Q", WHOLE[:8])[0]
"""How many bytes of description come after the first 8, which say so."""


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in expected.items()
    )


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    """Write a file by hand, with whatever header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.uint16, torch.uint32, torch.uint64),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
    ],
    ids=str,
)
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0, 3, 5]).to(dtype).reshape(2, 3)
    write_atomically({"layer": tensor}, tmp_path / "file")
    found = load_mapped(tmp_path / "file")["layer"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4, 5)], ids=str)
def test_every_shape_comes_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensor = torch.rand(shape)
    write_atomically({"layer": tensor}, tmp_path / "file")
    assert same(load_mapped(tmp_path / "file"), {"layer": tensor})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(12.0)[::2],
        torch.tensor(2.0).expand(3, 4),
        torch.rand(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.rand(3, requires_grad=True),
    ],
    ids=["transposed", "strided", "expanded", "channels last", "with gradient"],
)
def test_the_order_in_memory_is_of_no_influence(tmp_path: Path, tensor: Tensor) -> None:
    write_atomically({"layer": tensor}, tmp_path / "file")
    assert same(load_mapped(tmp_path / "file"), {"layer": tensor.detach()})


def test_not_a_number_and_infinity_come_back(tmp_path: Path) -> None:
    tensor = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    write_atomically({"layer": tensor}, tmp_path / "file")
    found = load_mapped(tmp_path / "file")["layer"]
    assert torch.equal(found.view(torch.int32), tensor.view(torch.int32))


def test_a_model_without_layers_is_a_file_without_layers(tmp_path: Path) -> None:
    write_atomically({}, tmp_path / "file")
    assert load_mapped(tmp_path / "file") == {}


def test_what_is_written_is_plain_safetensors(tmp_path: Path) -> None:
    write_atomically(STATE, tmp_path / "file", {"made by": "a test"})
    assert (tmp_path / "file").read_bytes() == WHOLE


def test_metadata_comes_back(tmp_path: Path) -> None:
    metadata = {"made by": "a test", "é\n": "", "json": '{"a": 1}'}
    write_atomically(STATE, tmp_path / "file", metadata)
    assert read_metadata(tmp_path / "file") == metadata
    assert same(load_mapped(tmp_path / "file"), STATE)


@pytest.mark.parametrize("metadata", [None, {}])
def test_no_metadata_is_an_empty_dict(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    write_atomically(STATE, tmp_path / "file", metadata)
    assert read_metadata(tmp_path / "file") == {}


def test_a_mapped_file_outlives_its_replacement(tmp_path: Path) -> None:
    write_atomically(STATE, tmp_path / "file")
    mapped = load_mapped(tmp_path / "file")
    write_atomically({name: tensor * 0 for name, tensor in STATE.items()}, tmp_path / "file")
    assert same(mapped, STATE)
    assert not load_mapped(tmp_path / "file")["fc.weight"].any()


# ---------------------------------------------------------------- damage


def loads_or_is_refused(path: Path) -> None:
    """Any other error, or a crash, fails the test."""
    reason = f"cannot be read as safetensors: ({path})"
    try:
        for tensor in load_mapped(path).values():
            tensor.clone()  # touch every byte: a mapping beyond the file's end would crash
    except InputError as error:
        reason = str(error)
    assert reason.startswith("cannot be read as safetensors: ")
    assert reason.endswith(f"({path})")
    assert "\n" not in reason


@pytest.mark.parametrize(
    "length",
    [0, 1, 7, 8, 9, 8 + HEADER // 2, 7 + HEADER, 8 + HEADER, 9 + HEADER, len(WHOLE) - 1],
)
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(WHOLE[:length])
    with pytest.raises(InputError, match=r"^cannot be read as safetensors: .*/file\)$"):
        load_mapped(path)


def test_a_file_with_something_after_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(WHOLE + b"\0")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_mapped(path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 7 + HEADER), byte=st.integers(0, 255))
def test_no_byte_of_the_header_can_crash_it(tmp_path: Path, at: int, byte: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :])
    loads_or_is_refused(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_no_file_at_all_can_crash_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    loads_or_is_refused(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(["F32", "F64", "BF16", "F4", "F6_E2M3", "F8_E8M0", "C64", "BOOL", "?"]),
    shape=st.lists(st.integers(-1, 2**63), max_size=3) | st.lists(st.integers(0, 3), max_size=70),
    offsets=st.lists(st.integers(-1, 40), min_size=1, max_size=3),
)
def test_no_header_that_lies_can_crash_it(
    tmp_path: Path, dtype: str, shape: list[int], offsets: list[int]
) -> None:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    loads_or_is_refused(raw(tmp_path / "file", {"layer": entry}, b"\x01" * 32))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 50_000,
        b'{"a": ' * 50_000,
        b"null",
        b"\xff\xfe",
        {"layer": None},
        {"__metadata__": {"number": 1}},
        {"layer": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"layer": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {
            "one": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "other": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        },
    ],
    ids=["deep", "deeper", "null", "no text", "no entry", "number", "back", "beyond", "overlap"],
)
def test_a_header_of_nonsense_is_refused(tmp_path: Path, header: object) -> None:
    path = raw(tmp_path / "file", header, b"\0" * 12)
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_mapped(path)


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({"layer": Attack()}, tmp_path / "file")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_mapped(tmp_path / "file")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nosuch", "cannot be read: no such file"),
        ("nosuch/file", "cannot be read: no such file"),
        (".", "cannot be read: is not a file"),
        ("dangling", "cannot be read: no such file"),
        ("circle", "cannot be read: no such file"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(InputError, match=rf"^{reason}.*\(.*\)$"):
        load_mapped(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        load_mapped(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    write_atomically(STATE, tmp_path / "file")
    (tmp_path / "file").chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        load_mapped(tmp_path / "file")


# ---------------------------------------------------------------- whole or not at all


def half_written(_: object, path: str, **__: object) -> None:
    Path(path).write_bytes(WHOLE[:100])
    raise OSError(28, "No space left on device")


def not_serialized(*_: object, **__: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device")


def failing(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


FAILURES = [
    (fedimmune.io, "save_file", half_written),
    (fedimmune.io, "save_file", not_serialized),
    (os, "replace", failing),
    (os, "fsync", failing),
    (os, "chmod", failing),
]


@pytest.mark.parametrize("has_old", [True, False], ids=["old file", "no old file"])
@pytest.mark.parametrize(("module", "name", "failure"), FAILURES)
def test_a_write_that_fails_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    failure: Callable[..., None],
    has_old: bool,
) -> None:
    path = tmp_path / "file"
    if has_old:
        path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, failure)
        with pytest.raises(InputError, match=rf"^cannot write {path}: .*(No space|Permission)"):
            write_atomically(STATE, path)
    assert [entry.name for entry in tmp_path.iterdir()] == (["file"] if has_old else [])
    assert not has_old or path.read_bytes() == b"old"


@pytest.mark.parametrize(("module", "name"), [(fedimmune.io, "save_file"), (os, "replace")])
def test_an_interrupted_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(STATE, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_until_the_last_moment_the_old_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    replace, seen = os.replace, []

    def watched(source: str, target: Path) -> None:
        seen.append((path.read_bytes(), Path(source).read_bytes(), Path(source).parent))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_atomically(STATE, path, {"made by": "a test"})
    assert seen == [(b"old", WHOLE, tmp_path)]  # in the same folder: on the same disk
    assert path.read_bytes() == WHOLE


def test_a_write_leaves_no_other_file(tmp_path: Path) -> None:
    write_atomically(STATE, tmp_path / "file")
    write_atomically(STATE, tmp_path / "file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*missing/file: there is no folder"):
        write_atomically(STATE, tmp_path / "missing" / "file")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        write_atomically(STATE, tmp_path / "folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot write"):
        write_atomically(STATE, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


# ---------------------------------------------------------------- permissions


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664, 0o400])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_atomically(STATE, path)
    assert path.stat().st_mode & 0o7777 == mode
    assert same(load_mapped(path), STATE)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(STATE, tmp_path / "file")
        assert os.umask(mask) == mask  # it is looked up, and left as it was
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
