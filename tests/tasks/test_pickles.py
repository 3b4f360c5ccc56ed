from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune.errors import InputError
from fedimmune.tasks.images import read_pickle
from tests.tasks.making import python2_pickle

PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
CONTENT: dict[str, Any] = {"data": PIXELS, "labels": [3, 1, 0, 2], "batch_label": "one of one"}
PYTHON2 = python2_pickle(CONTENT)


def written(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "data_batch_1"
    file.write_bytes(content)
    return file


def is_content(found: dict[str, Any]) -> bool:
    return (
        found.keys() == CONTENT.keys()
        and np.array_equal(found["data"], PIXELS)
        and found["data"].dtype == np.uint8
        and found["labels"] == CONTENT["labels"]
    )


# ---------------------------------------------------------------- what is read


def test_pickles_of_python_2(tmp_path: Path) -> None:
    # The pickle that the test writes by hand is one that Python reads.
    assert is_content(pickle.loads(PYTHON2, encoding="latin1"))
    assert is_content(read_pickle(written(tmp_path, PYTHON2)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_python_3(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps(CONTENT, protocol)
    assert is_content(read_pickle(written(tmp_path, content)))
    older = content.replace(b"numpy._core.", b"numpy.core.") if protocol < 4 else content
    assert is_content(read_pickle(written(tmp_path, older)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_keys_of_bytes(tmp_path: Path, protocol: int) -> None:
    content = {key.encode(): value for key, value in CONTENT.items()}
    assert is_content(read_pickle(written(tmp_path, pickle.dumps(content, protocol))))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("code", ["u1", "i1", "<i2", ">i4", "<i8", ">u8", "f4", ">f8", "f2", "?"])
def test_arrays_of_every_kind(tmp_path: Path, protocol: int, code: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(code)
    content = {
        "by rows": array,
        "by columns": np.asfortranarray(array),
        "of nothing": array[:0],
        "a number": array[1, 2],
        "numbers": [array[1, 1], 7, b"", "", b"bytes", None, 2.5, True],
    }
    found = read_pickle(written(tmp_path, pickle.dumps(content, protocol)))
    for name in ("by rows", "by columns", "of nothing"):
        assert np.array_equal(found[name], content[name])
        assert found[name].dtype == array.dtype.newbyteorder("=")
    assert found["a number"] == array[1, 2]
    assert found["numbers"] == content["numbers"]


# ---------------------------------------------------------------- what is refused


class Calls:
    """Something whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def mark(tmp_path: Path) -> str:
    return f"touch {tmp_path / 'ran'}"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("where", ["alone", "as a value", "in a list", "in an array", "as a key"])
@pytest.mark.parametrize(
    "function", ["system", "eval", "exec", "getattr", "import", "fromfile", "load", "OrderedDict"]
)
def test_nothing_is_called(tmp_path: Path, function: str, where: str, protocol: int) -> None:
    code = f"__import__('os').system({mark(tmp_path)!r})"
    hostile = {
        "system": Calls(os.system, mark(tmp_path)),
        "eval": Calls(eval, code),
        "exec": Calls(exec, code),
        "getattr": Calls(getattr, "text", "format"),
        "import": Calls(__import__, "antigravity"),
        "fromfile": Calls(np.fromfile, str(tmp_path / "data_batch_1")),
        "load": Calls(np.load, str(tmp_path / "data_batch_1"), None, True),
        "OrderedDict": Calls(OrderedDict),
    }[function]
    inside = np.empty(1, dtype=object)
    inside[0] = hostile
    content: Any = {
        "alone": hostile,
        "as a value": {"data": hostile},
        "in a list": {"labels": [1, [hostile]]},
        "in an array": {"data": inside},
        "as a key": {hostile: 1},
    }[where]
    file = written(tmp_path, pickle.dumps(content, protocol))
    with pytest.raises(InputError, match="data_batch_1 is refused: it"):
        read_pickle(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        (b"(S'{mark}'\nios\nsystem\n.", "os.system"),  # INST
        (b"(cos\nsystem\nS'{mark}'\no.", "os.system"),  # OBJ
        (b"cos\nsystem\n(S'{mark}'\ntR.", "os.system"),  # GLOBAL, REDUCE
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.", "os.system"),  # STACK_GLOBAL
        (b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93.", r"numpy\.dtype\.__class__"),
        (b"\x80\x02cnumpy\ndtype.__init__.__globals__\n.", "__globals__"),
        (b"\x80\x02cnumpy\nfromfile\nX\x01\0\0\0x\x85R.", r"numpy\.fromfile"),
        (b"\x80\x02cfedimmune.tasks.pickles\npickle\n.", r"fedimmune\.tasks\.pickles"),
        (b"\x80\x02cbuiltins\nbytes\nX\x01\0\0\0x\x85R.", "makes bytes of something"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "in a way that NumPy does not"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "must be a type"),  # NEWOBJ
        (b"\x80\x04cnumpy\nndarray\n)}\x92.", "must be a type"),  # NEWOBJ_EX
        (b"\x80\x02cnumpy\ndtype\n}U\x05_makeK\x01sb.", "sets the state of a function"),  # BUILD
        (b"\x80\x02cnumpy\ndtype\nN}U\x05_makeK\x01s\x86b.", "sets the state of a function"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0xX\x05\0\0\0rot13\x86R.", "encoding other than"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0xX\x03\0\0\0hex\x86R.", "encoding other than"),
        (b"\x80\x02c_codecs\ndecode\nX\x01\0\0\0xX\x03\0\0\0hex\x86R.", r"_codecs\.decode"),
        (b"\x80\x02cnumpy\ndtype\nX\x02\0\0\0O8\x85R.", "array of 'O8'"),
        (b"\x80\x02cnumpy\ndtype\nX\x04\0\0\0V999\x85R.", "array of 'V999'"),
        (b"\x80\x02cnumpy\ndtype\nX\x05\0\0\0u1,u1\x85R.", "array of 'u1,u1'"),
        (b"\x80\x02cnumpy\ndtype\n]\x85R.", "has list where text belongs"),
        (b"\x80\x02cnumpy\ndtype\nX\x02\0\0\0u1\x85R}b.", "type is not as NumPy"),
        (b"\x80\x02cnumpy\ndtype\nX\x02\0\0\0u1\x85R(K\x03X\x01\0\0\0Otb.", "not as NumPy"),
        (b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n)Rs.", "without content"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R]b.", "state is not as NumPy"),
        (b"\x80\x02cnumpy.core.multiarray\nscalar\nK\x01K\x01\x86R.", "number is not as NumPy"),
        (b"\x80\x02Pname\n.", "persistent"),
        (b"\x80\x02\x82\x01.", "extension code"),
        (b"\x80\x05\x97.", "buffer"),
        (b"\x80\x02]r\xff\xff\xff\x0f.", "numbers a memo"),  # room for 2³² notes
        (b"]p4000000000\n.", "numbers a memo"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\x00\x00.", "not a pickle"),  # 2⁴⁸ bytes
        (b"\x80\x05\x96\xff\xff\xff\xff\x0f\x00\x00\x00.", "not a pickle"),
        (b"\x80\x02]q\x01.", "holds a list"),
        (b"\x80\x02}K\x01K\x02s.", "has int where text belongs"),
        (b"\x80\x63}.", "not a pickle"),
        (b"", "not a pickle"),
        (b"<html>not found</html>", "not a pickle"),
    ],
)
def test_hand_made_pickles_are_refused(tmp_path: Path, steps: bytes, problem: str) -> None:
    file = written(tmp_path, steps.replace(b"{mark}", mark(tmp_path).encode()))
    with pytest.raises(InputError, match=problem) as caught:
        read_pickle(file)
    assert str(file) in str(caught.value)
    assert not (tmp_path / "ran").exists()


def array_with(
    shape: bytes = b"K\x02K\x03\x86", kind: bytes = b"u1", raw: bytes = b"123456"
) -> bytes:
    return (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01" + shape + b"cnumpy\ndtype\nU" + bytes((len(kind),)) + kind
        + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U"
        + bytes((len(raw),)) + raw + b"tbs."
    )  # fmt: skip


def test_arrays_are_as_large_as_they_say(tmp_path: Path) -> None:
    found = read_pickle(written(tmp_path, array_with()))
    assert found["data"].tobytes() == b"123456"
    for wrong in (
        array_with(shape=b"K\x02K\x04\x86"),
        array_with(shape=b"K\x02J\xff\xff\xff\xff\x86"),
        array_with(shape=b"J\xff\xff\xff\xffJ\xfa\xff\xff\xff\x86"),
        array_with(shape=b"K\x06"),
        array_with(shape=b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"),
        array_with(kind=b"i8"),
        array_with(raw=b"12345"),
        array_with(raw=b""),
    ):
        with pytest.raises(InputError, match="refused: an array"):
            read_pickle(written(tmp_path, wrong))


def test_a_deep_pickle_is_refused(tmp_path: Path) -> None:
    deep = b"\x80\x02}" + b"(" * 100_000 + b"t" * 100_000 + b"K\x01s."
    with pytest.raises(InputError):
        read_pickle(written(tmp_path, deep))


def test_names_stay_as_they_were(tmp_path: Path) -> None:
    """A pickle that was refused leaves nothing behind for the next one."""
    hostile = b"\x80\x02cnumpy\ndtype\n}U\x05_makeK\x01sb."
    with pytest.raises(InputError):
        read_pickle(written(tmp_path, hostile))
    assert is_content(read_pickle(written(tmp_path, PYTHON2)))


# ---------------------------------------------------------------- damage


@given(cut=st.integers(0, len(PYTHON2) - 1))
def test_every_cut_is_noticed(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    with pytest.raises(InputError, match="data_batch_1"):
        read_pickle(written(tmp_path_factory.mktemp("cut"), PYTHON2[:cut]))


@given(
    whole=st.sampled_from([PYTHON2, pickle.dumps(CONTENT, 2), pickle.dumps(CONTENT, 5)]),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damage_gives_plain_data_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, damage: list[tuple[int, int]]
) -> None:
    changed = bytearray(whole)
    for place, value in damage:
        changed[place % len(changed)] = value
    file = written(tmp_path_factory.mktemp("damage"), bytes(changed))
    plain = (np.ndarray, list, tuple, dict, str, bytes, bytearray, int, float, bool, type(None))
    with contextlib.suppress(InputError):
        for key, value in read_pickle(file).items():
            assert isinstance(key, str)
            assert isinstance(value, plain)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match="cannot be read"):
            read_pickle(path)


def test_hostile_pickles_are_hostile() -> None:
    """What the pickles above ask for is called where nothing guards it."""
    ran: list[str] = []

    class Unguarded(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return ran.append

    Unguarded(io.BytesIO(pickle.dumps(Calls(os.system, "a command")))).load()
    assert ran == ["a command"]
