from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from fedimmune.errors import InputError
from fedimmune.tasks.images import read_idx
from tests.tasks.making import idx

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@given(array=arrays.arrays(np.uint8, arrays.array_shapes(max_dims=4, min_side=0, max_side=5)))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, array: NDArray[np.uint8]) -> None:
    folder = tmp_path_factory.mktemp("idx")
    for name, content in (("plain", idx(array)), ("packed.gz", gzip.compress(idx(array)))):
        (folder / name).write_bytes(content)
        assert np.array_equal(read_idx(folder / name, array.ndim), array)
        assert read_idx(folder / name, array.ndim).shape == array.shape


@pytest.mark.parametrize("packed", [False, True])
@given(cut=st.integers(0, len(idx(IMAGES)) - 1))
def test_every_cut_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, packed: bool, cut: int
) -> None:
    file = tmp_path_factory.mktemp("idx") / ("images.gz" if packed else "images")
    whole = gzip.compress(idx(IMAGES)) if packed else idx(IMAGES)
    file.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(InputError, match="images"):
        read_idx(file, 3)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (idx(IMAGES) + b"\0", "too long"),
        (idx(IMAGES)[:8] + b"\xff\xff\xff\xff" * 2 + b"\0" * 24, "cut short"),
        (bytes((0, 0, 0x0D, 3)) + idx(IMAGES)[4:], "not an IDX file of 3 dimensions of bytes"),
        (idx(IMAGES[0]), "not an IDX file of 3 dimensions of bytes"),
        (b"<html>not found</html>", "not an IDX file"),
        (b"", "begins with nothing"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "images"
    file.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_idx(file, 3)
    assert str(file) in str(caught.value)


def test_what_is_not_packed_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "images.gz"
    file.write_bytes(idx(IMAGES))
    with pytest.raises(InputError, match=r"images\.gz cannot be read"):
        read_idx(file, 3)
