"""Flower's arrays, read without a copy and without trust, and written.

An `Array` holds the bytes of a ``.npy`` file and a shape and a dtype that nobody has compared with
those bytes. Here everything is compared before a number is read, and nothing is allocated for what
a header merely claims.
"""

from __future__ import annotations

from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from fedimmune._inputs import global_tensors
from fedimmune._layers import layers_of, mismatch, shown
from fedimmune.errors import InputError

__all__ = ["array_of", "model_of", "record_of", "values_of"]

_NUMPY = "numpy.ndarray"
_LONGEST_HEADER = 4096
"""Bytes; NumPy writes 128 for any shape that a layer has."""


def values_of(array: Array) -> NDArray[Any]:
    """Read the numbers of an array: a view of its bytes, not to be written to.

    Raises
    ------
    InputError
        The bytes are not an array, or not the one that they are said to be.
    """
    if array.stype != _NUMPY:
        raise InputError(f"is serialized as {shown(array.stype)}, expected {_NUMPY!r}")
    if not isinstance(array.data, bytes):
        raise InputError(f"has {type(array.data).__name__} instead of bytes")
    shape, is_fortran, dtype, begin = _header(array.data)
    if dtype.hasobject or dtype.itemsize == 0 or dtype.names is not None:
        raise InputError("does not hold numbers")
    if tuple(array.shape) != shape or array.dtype != str(dtype):
        raise InputError(
            f"is said to be {_kind(array.dtype, tuple(array.shape))}, but its bytes are "
            f"{_kind(str(dtype), shape)}"
        )
    there, needed = len(array.data) - begin, prod(shape) * dtype.itemsize
    if there != needed:
        raise InputError(f"has {there} bytes of values; its shape needs {needed}")
    values = np.frombuffer(array.data, dtype, prod(shape), begin)
    if dtype == np.bool_ and bool((values.view(np.uint8) > 1).any()):
        raise InputError("holds bytes that are neither true nor false")
    if not values.flags.aligned:  # a header of odd length; PyTorch expects better
        values = values.copy()
    return values.reshape(shape, order="F" if is_fortran else "C")


def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return what a ``.npy`` header says, and where it ends."""
    stream = BytesIO(data)  # shares the bytes
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read(stream, max_header_size=_LONGEST_HEADER)
    except Exception as error:  # a client's bytes: whatever goes wrong, they are the reason
        raise InputError("has bytes that are not a NumPy array") from error
    return tuple(shape), bool(is_fortran), dtype, stream.tell()


def _kind(dtype: object, shape: object) -> str:
    return f"{str(dtype)[:20]} of shape {str(shape)[:40]}"


def model_of(record: ArrayRecord) -> dict[str, Tensor]:
    """Read the global model, in the order of its layers; the tensors are not to be written to.

    Raises
    ------
    InputError
        It cannot be used: the message names the layer.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, array in record.items():
        try:
            arrays[name] = values_of(array)
        except InputError as error:
            raise InputError(f"the global model's layer {shown(name)} {error}") from error
    model = global_tensors(arrays)
    problem = mismatch(model, layers_of(model))
    if problem is not None:
        raise InputError(f"the global model {problem}")
    return model


def array_of(tensor: Tensor) -> Array:
    """Write a tensor, with one copy."""
    values = tensor.detach().cpu().contiguous().numpy()
    head = BytesIO()
    npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(values))
    flat = values.reshape(-1).view(np.uint8)
    data = b"".join((head.getvalue(), flat.data))
    return Array(dtype=str(values.dtype), shape=tuple(values.shape), stype=_NUMPY, data=data)


def record_of(model: dict[str, Tensor]) -> ArrayRecord:
    """Write a model, layers in its order."""
    return ArrayRecord({name: array_of(tensor) for name, tensor in model.items()})
