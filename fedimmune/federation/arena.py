"""Where models and updates lie so that several processes can read and write them.

One row for the global model, one for each client's update, and one for each client's momentum where
that is carried from round to round, in memory of one's own or in a
mapped file that workers map too: nothing is copied through pipes, whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Arena", "Layout"]

_ALIGNMENT = 64


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
    """One row for the global model, and one per update; others for momenta.

    Parameters
    ----------
    layout
        Of a row.
    updates, momenta
        How many rows there are for them.
    file
        The file to map; None for memory of this process alone.
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
        """How large the memory is."""
        return (1 + updates + momenta) * layout.row_bytes
