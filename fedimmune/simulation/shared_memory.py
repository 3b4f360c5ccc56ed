"""Memory that processes share as unnamed files, which vanish with the last of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

__all__ = ["Arena", "Layout", "UnnamedFile"]

_SHARED_MEMORY = Path("/dev/shm")


class UnnamedFile:
    """A file that other processes can open while this one holds it.

    If there is a ``/proc``, its name is removed at once and others open it through this process's
    handle, so that even a kill leaves nothing behind. Otherwise it has a name until it is closed.

    Parameters
    ----------
    size
        How large it will be: it is in memory if there is room, and otherwise on disk.
    """

    def __init__(self, size: int) -> None:
        self._handle, name = tempfile.mkstemp(prefix="fedimmune-", dir=_room_for(size))
        through = Path(f"/proc/{os.getpid()}/fd/{self._handle}")
        self._named = None if through.exists() else Path(name)
        if self._named is None:
            os.unlink(name)
        self.path = self._named or through

    def write(self, content: bytes) -> None:
        """Fill it."""
        with os.fdopen(os.dup(self._handle), "wb") as file:
            file.write(content)

    def close(self) -> None:
        """Close it; whoever has mapped it keeps its content."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._named is not None:
            self._named.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _room_for(size: int) -> str | None:
    usable = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    enough = usable and shutil.disk_usage(_SHARED_MEMORY).free > 1.25 * size
    return str(_SHARED_MEMORY) if enough else None


_ALIGNMENT = 64


class Layout:
    """Where each tensor of a model's state dict lies within a row of bytes."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.tensors: dict[str, tuple[int, torch.dtype, tuple[int, ...]]] = {}
        offset = 0
        for name, tensor in state.items():
            self.tensors[name] = (offset, tensor.dtype, tuple(tensor.shape))
            size = tensor.element_size() * tensor.numel()
            offset += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.row_bytes = max(offset, _ALIGNMENT)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Return the tensors in a row of bytes, as views of it."""
        found = {}
        for name, (offset, dtype, shape) in self.tensors.items():
            size = prod(shape) * dtype.itemsize
            found[name] = row[offset : offset + size].view(dtype).view(shape)
        return found


class Arena:
    """One row for the global model, one per update, and others for momenta.

    Parameters
    ----------
    layout
        Of a row.
    updates, momenta
        Numbers of rows.
    file
        The file to map; None for private memory.
    """

    def __init__(
        self, layout: Layout, updates: int, momenta: int = 0, file: Path | None = None
    ) -> None:
        size = Arena.bytes_for(layout, updates, momenta)
        if file is None:
            flat = torch.zeros(size, dtype=torch.uint8)
        else:
            flat = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
        rows = [layout.views(row) for row in flat.view(-1, layout.row_bytes)]
        self.global_model = rows[0]
        self.updates, self.momenta = rows[1 : updates + 1], rows[updates + 1 :]

    @staticmethod
    def bytes_for(layout: Layout, updates: int, momenta: int = 0) -> int:
        """Return the size of the memory."""
        return (1 + updates + momenta) * layout.row_bytes
