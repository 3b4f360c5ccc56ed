"""Images from IDX files and pickles, both read without trust, and into a model's inputs."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from fedimmune.errors import InputError

__all__ = ["inputs_of", "normalize", "read_idx", "read_pickle", "resize"]

_BYTES = 0x08
"""Code of unsigned bytes in an IDX header."""


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes with that many dimensions, unpacked if it ends in .gz.

    Raises
    ------
    InputError
        It cannot be read, is damaged, or holds something else.
    """
    try:
        with _open(path) as file:
            head = file.read(4)
            if head != bytes((0, 0, _BYTES, dimensions)):
                raise InputError(
                    f"{path} is not an IDX file of {dimensions} dimensions of bytes: it begins "
                    f"with {head.hex(' ') or 'nothing'}"
                )
            sizes = file.read(4 * dimensions)
            if len(sizes) < 4 * dimensions:
                raise InputError(f"{path} is cut short: it ends in its header")
            shape = struct.unpack(f">{dimensions}I", sizes)
            expected = math.prod(shape)
            # In steps: a wrong size in the header must not ask for all memory.
            body = bytearray()
            while len(body) <= expected and (more := file.read(1 << 24)):
                body += more
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if len(body) != expected:
        problem = "is cut short" if len(body) < expected else "is too long"
        raise InputError(f"{path} {problem}: its header says {expected:,} bytes of shape {shape}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return open(path, "rb")


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dict whose values are arrays, numbers, text or lists of them.

    Any protocol of Python 2 or 3 will do. Keys may be text or bytes.

    Raises
    ------
    InputError
        It cannot be read, is damaged, or holds something else.
    """
    try:
        pickled = path.read_bytes()
        _check_memo(pickled)
        return _contents(_Reader(io.BytesIO(pickled), encoding="latin1").load())
    except _RefusedError as error:
        raise InputError(f"{path} is refused: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # damage comes out as almost any error
        raise InputError(
            f"{path} is damaged, or not a pickle: {type(error).__name__}: {str(error)[:100]}"
        ) from error


def _check_memo(pickled: bytes) -> None:
    """Refuse a memo number that is too high: Python allocates all below it."""
    for steps, (step, argument, _) in enumerate(pickletools.genops(pickled)):
        if step.name in {"PUT", "BINPUT", "LONG_BINPUT"} and int(argument or 0) > steps:
            raise _RefusedError(f"it numbers a memo {argument} at its step {steps}")


class _RefusedError(Exception):
    """The pickle asks for something that is not allowed."""


class _Reader(pickle.Unpickler):
    """Reads pickles without looking up any name."""

    def find_class(self, module: str, name: str) -> object:
        make = _ADMITTED.get((module, name))
        if make is None:
            raise _RefusedError(
                f"it asks for {module}.{name}, and only arrays and plain data are read"
            )
        return _Name(make)


class _Name:
    """Stands for an allowed name: it can be called, and nothing in it can be set."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *arguments: object) -> object:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _RefusedError("it sets the state of a function")


class _Type:
    """Stands for a NumPy type of numbers."""

    __slots__ = ("order", "plain")

    def __init__(self, code: object, *_: object) -> None:
        code = _text(code)
        if not re.fullmatch(r"[<>|=]?(b1|[iu][1248]|f[248])", code):
            raise _RefusedError(f"it has an array of {code[:20]!r}; arrays of numbers are read")
        self.plain = code.lstrip("<>|=")
        self.order = code[0] if code[0] in "<>" else "<"

    def __setstate__(self, state: object) -> None:
        # (version, byte order, and what numbers do not have: parts, names, fields, …)
        order = _text(state[1]) if type(state) is tuple and len(state) > 1 else ""
        if order not in {"<", ">", "|", "="}:
            raise _RefusedError("the state of an array's type is not as NumPy writes it")
        self.order = ">" if order == ">" else "<"

    def array(self, raw: object, shape: object, by_columns: bool) -> NDArray[Any]:
        # Python 2 wrote bytes as text.
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        if not isinstance(data, bytes | bytearray):
            raise _RefusedError("an array's content is not bytes")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise _RefusedError("an array's shape is not a tuple of sizes")
        kind = np.dtype(self.order + self.plain)
        if len(data) != math.prod(shape) * kind.itemsize:
            raise _RefusedError(f"an array of shape {shape} is said to have {len(data)} bytes")
        flat = np.frombuffer(data, kind)
        # In this machine's byte order, which is the only one that PyTorch takes.
        found: NDArray[Any] = flat.reshape(shape, order="F" if by_columns else "C").astype(
            kind.newbyteorder("=")
        )
        return found


class _Array:
    """Stands for an array until its content has been read."""

    __slots__ = ("content",)

    def __init__(self, *_: object) -> None:
        self.content: NDArray[Any] | None = None

    def __setstate__(self, state: object) -> None:
        if type(state) is not tuple or len(state) != 5 or type(state[2]) is not _Type:
            raise _RefusedError("an array's state is not as NumPy writes it")
        _, shape, kind, by_columns, raw = state
        self.content = kind.array(raw, shape, bool(by_columns))


def _from_buffer(raw: object, kind: object, shape: object, order: object) -> _Array:
    """Make an array as protocol 5 writes them."""
    if type(kind) is not _Type or order not in ("C", "F"):
        raise _RefusedError("an array is not as NumPy writes it")
    made = _Array()
    made.content = kind.array(raw, shape, order == "F")
    return made


def _scalar(kind: object, raw: object) -> object:
    """Make a plain number from one of NumPy's."""
    if type(kind) is not _Type:
        raise _RefusedError("a number is not as NumPy writes it")
    return kind.array(raw, (), False).item()


def _encode(text: object, encoding: object) -> bytes:
    """Turn text into bytes: that is how Python 3 writes bytes for Python 2."""
    if type(text) is not str or encoding != "latin1":
        raise _RefusedError("it asks for an encoding other than latin1")
    return text.encode("latin1")


def _empty_bytes(*arguments: object) -> bytes:
    if arguments:
        raise _RefusedError("it makes bytes of something")
    return b""


def _never(*_: object) -> object:
    raise _RefusedError("it makes an array in a way that NumPy does not")


# NumPy 2 renamed `numpy.core`.
_ADMITTED: dict[tuple[str, str], Callable[..., object]] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _never,  # an argument of _reconstruct, never called
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty_bytes,
    ("builtins", "bytes"): _empty_bytes,
}


def _contents(found: object) -> dict[str, Any]:
    if type(found) is not dict:
        raise _RefusedError(f"it holds a {type(found).__name__}, not a dict")
    return {_text(key): _value(value) for key, value in found.items()}


def _text(value: object) -> str:
    if type(value) is bytes:
        return value.decode("latin1")
    if type(value) is not str:
        raise _RefusedError(f"it has {type(value).__name__} where text belongs")
    return value


def _value(value: object) -> object:
    if type(value) is not _Array:
        return value
    if value.content is None:
        raise _RefusedError("it has an array without content")
    return value.content


def resize(images: Tensor, side: int) -> Tensor:
    """Resize images (n, channels, height, width) to a square, bilinearly."""
    if tuple(images.shape[2:]) == (side, side):
        return images
    return interpolate(
        images, size=(side, side), mode="bilinear", align_corners=False, antialias=True
    )


def normalize(
    images: Tensor, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,)
) -> tuple[Tensor, tuple[float, ...]]:
    """Normalize images (n, channels, height, width) from 0 to 1, with one mean and std per channel.

    Returns
    -------
    inputs
        The model's inputs.
    highest
        What the highest value, 1, has become in each channel.
    """
    means = torch.tensor(mean, dtype=images.dtype).reshape(1, -1, 1, 1)
    stds = torch.tensor(std, dtype=images.dtype).reshape(1, -1, 1, 1)
    highest = tuple((1 - m) / s for m, s in zip(mean, std, strict=True))
    return (images - means) / stds, highest


def inputs_of(
    batches: Iterable[NDArray[np.uint8]],
    count: int,
    side: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[Tensor, tuple[float, ...]]:
    """Make a model's inputs from `count` images, batch by batch, so that memory holds them once.

    Parameters
    ----------
    batches
        Images (n, channels, height, width) from 0 to 255.
    count
        Number of images in all.
    side
        Height and width of the inputs; images of other sizes are resized.
    mean, std
        One per channel, of images from 0 to 1.

    Returns
    -------
    inputs, highest
        As `normalize` returns them.
    """
    inputs = torch.empty(count, len(mean), side, side)
    highest: tuple[float, ...] = ()
    first = 0
    for batch in batches:
        images = torch.from_numpy(batch).to(torch.float32) / 255
        made, highest = normalize(resize(images, side), mean, std)
        inputs[first : first + len(made)] = made
        first += len(made)
    if first != count:
        raise ValueError(f"{first} images instead of {count}")
    return inputs, highest
