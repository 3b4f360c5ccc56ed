from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedimmune.errors import InputError
from fedimmune.flower.arrays import array_of, model_of, record_of, values_of
from tests.flower.federation import arrays_of, first_model, is_same

pytestmark = pytest.mark.flower

KINDS = st.sampled_from(["float16", "float32", "float64", "int8", "int64", "uint8", "bool"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(values=KINDS.flatmap(lambda kind: hnp.arrays(kind, SHAPES)), is_fortran=st.booleans())
def test_arrays_are_read_as_flower_reads_them(values: NDArray[Any], is_fortran: bool) -> None:
    array = Array(values.copy(order="F" if is_fortran else "C"))
    read = values_of(array)
    assert read.dtype == values.dtype
    assert read.shape == values.shape
    assert read.tobytes() == values.tobytes()


@given(values=KINDS.flatmap(lambda kind: hnp.arrays(kind, SHAPES)))
def test_flower_reads_what_is_written(values: NDArray[Any]) -> None:
    array, expected = array_of(torch.from_numpy(values)), Array(values)
    assert (array.dtype, array.shape, array.stype) == (
        expected.dtype,
        expected.shape,
        expected.stype,
    )
    assert array.data == expected.data


def test_nothing_is_copied() -> None:
    array = Array(np.arange(1000, dtype=np.float32))
    assert np.shares_memory(values_of(array), np.frombuffer(array.data, np.uint8))


def _good() -> Array:
    return Array(np.arange(6, dtype=np.float32).reshape(2, 3))


def _lying(**claims: Any) -> Array:
    good = _good()
    fields = {"dtype": good.dtype, "shape": good.shape, "stype": good.stype, "data": good.data}
    return Array(**{**fields, **claims})


HEAD = len(_good().data) - 24


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (_lying(shape=(3, 2)), "is said to be"),
        (_lying(shape=(6,)), "is said to be"),
        (_lying(shape=(10**12, 3)), "is said to be"),
        (_lying(dtype="float64"), "is said to be"),
        (_lying(dtype="object"), "is said to be"),
        (_lying(stype="pickle"), "is serialized as"),
        (_lying(data=b""), "not a NumPy array"),
        (_lying(data=b"not an array at all"), "not a NumPy array"),
        (_lying(data=_good().data[:-1]), "bytes of values"),
        (_lying(data=_good().data + b"x"), "bytes of values"),
        (_lying(data=_good().data[:20]), "not a NumPy array"),
        (Array("object", (1,), "numpy.ndarray", b"\x93NUMPY" + b"\xff" * 50), "not a NumPy array"),
    ],
)
def test_lies_are_found_out(array: Array, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        values_of(array)


def test_a_huge_claim_allocates_nothing() -> None:
    # In the header and beside it: the bytes alone give it away.
    header = _good().data[:HEAD].replace(b"(2, 3), }         ", b"(2000000000000,), }")
    array = _lying(data=header[:HEAD] + _good().data[HEAD:], shape=(2_000_000_000_000,))
    with pytest.raises(InputError, match="bytes of values"):
        values_of(array)


def test_objects_and_structures_are_no_numbers() -> None:
    structured = Array(np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]))
    with pytest.raises(InputError):
        values_of(structured)
    header = _good().data[:HEAD].replace(b"'<f4'", b"'|O' ")
    with pytest.raises(InputError):
        values_of(_lying(dtype="object", data=header + _good().data[HEAD:]))


def test_a_bool_is_true_or_false() -> None:
    array = Array(np.array([True, False]))
    odd = Array(array.dtype, array.shape, array.stype, array.data[:-1] + b"\x07")
    with pytest.raises(InputError, match="neither true nor false"):
        values_of(odd)


@given(data=st.binary(max_size=300), keep=st.integers(0, 200))
def test_any_bytes_are_read_or_refused(data: bytes, keep: int) -> None:
    array = _lying(data=_good().data[:keep] + data)
    try:
        values = values_of(array)
    except InputError:
        return
    assert values.shape == (2, 3)


def test_a_model_goes_and_comes_unchanged() -> None:
    arrays = arrays_of(first_model())
    assert is_same(record_of(model_of(arrays)), arrays)


def test_a_model_that_cannot_be_trained_is_refused_by_layer() -> None:
    broken = arrays_of({**first_model(), "a.bias": torch.tensor([1.0, float("nan")])})
    with pytest.raises(InputError, match=r"a\.bias"):
        model_of(broken)
    with pytest.raises(InputError, match="empty"):
        model_of(ArrayRecord())
    words = ArrayRecord({"names": Array(np.array(["a", "b"]))})
    with pytest.raises(InputError, match="names"):
        model_of(words)
