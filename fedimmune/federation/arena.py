"""Where models and updates lie so that several processes can read and write them.

One row for the global model and one for each client's update, in memory of one's own or in a
mapped file that workers map too: nothing is copied through pipes, whatever the model's size.
"""

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

__all__ = ["Arena", "Layout"]

_ALIGNMENT = 64
_SHARED_MEMORY = Path("/dev/shm")


class Layout:
    """Where each tensor of a model's state lies within a row of bytes.

    Parameters
    ----------
    state
        A model's state dict.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.tensors: dict[str, tuple[int, torch.dtype, tuple[int, ...]]] = {}
        offset = 0
        for name, tensor in state.items():
            self.tensors[name] = (offset, tensor.dtype, tuple(tensor.shape))
            size = tensor.element_size() * tensor.numel()
            offset += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.row_bytes = max(offset, _ALIGNMENT)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Give the tensors that lie in a row of bytes, as views of it."""
        found = {}
        for name, (offset, dtype, shape) in self.tensors.items():
            size = prod(shape) * dtype.itemsize
            found[name] = row[offset : offset + size].view(dtype).view(shape)
        return found


class Arena:
    """One row for the global model, and one a client.

    Parameters
    ----------
    layout
        Of a row.
    clients
        How many rows besides the global model's.
    file
        The file to map; None for memory of this process alone.
    """

    def __init__(self, layout: Layout, clients: int, file: Path | None = None) -> None:
        self.layout, self.clients, self.file = layout, clients, file
        size = (clients + 1) * layout.row_bytes
        if file is None:
            flat = torch.zeros(size, dtype=torch.uint8)
        else:
            flat = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
        rows = flat.view(clients + 1, layout.row_bytes)
        self.global_model = layout.views(rows[0])
        self.updates = [layout.views(row) for row in rows[1:]]

    @classmethod
    def shared(cls, layout: Layout, clients: int) -> Self:
        """Make one in a new file; `forget_file` once all who need it have mapped it."""
        size = (clients + 1) * layout.row_bytes
        handle, name = tempfile.mkstemp(prefix="fedimmune-", dir=_room_for(size))
        os.close(handle)
        return cls(layout, clients, Path(name))

    def forget_file(self) -> None:
        """Remove the file's name; the memory lives on until its last user is gone.

        So nothing is left behind even where the process is killed.
        """
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def _room_for(size: int) -> str | None:
    """Prefer memory to a disk, where there is enough of it."""
    usable = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    enough = usable and shutil.disk_usage(_SHARED_MEMORY).free > 1.25 * size
    return str(_SHARED_MEMORY) if enough else None
