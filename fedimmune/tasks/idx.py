"""IDX files: arrays of bytes with a short head, as MNIST was published."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fedimmune.errors import InputError

__all__ = ["read_idx"]

_BYTES = 0x08
"""How the head says that elements are unsigned bytes."""


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes; it is unpacked on the way where it ends in .gz.

    Parameters
    ----------
    path
        The file.
    dimensions
        How many the array should have.

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
                    f"{path} is no IDX file of bytes in {dimensions} dimensions: it begins with "
                    f"{head.hex(' ') or 'nothing'}"
                )
            sizes = file.read(4 * dimensions)
            if len(sizes) < 4 * dimensions:
                raise InputError(f"{path} is cut short: it ends in its head")
            shape = struct.unpack(f">{dimensions}I", sizes)
            expected = math.prod(shape)
            # In steps: a wrong size in the head must not ask for all the memory there is.
            body = bytearray()
            while len(body) <= expected and (more := file.read(1 << 24)):
                body += more
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if len(body) != expected:
        problem = "is cut short" if len(body) < expected else "is too long"
        raise InputError(f"{path} {problem}: its head says {expected:,} bytes of shape {shape}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return open(path, "rb")
