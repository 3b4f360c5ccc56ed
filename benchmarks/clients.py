"""Made-up clients: updates that differ, and are made quickly."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from benchmarks.resnet18 import Shapes, size

__all__ = ["Clients"]

_STEP = 104_729
"""How far the noise moves from client to client: a prime, so that it does not meet itself."""


class Clients:
    """One round of clients: a direction that they share, and noise of each one's own.

    All noise is one random vector, moved on from client to client: copying is many times quicker
    than drawing 50 × 11 million numbers, and no rule can tell.

    Parameters
    ----------
    n
        How many.
    shapes
        The layers of the model.
    """

    def __init__(self, n: int, shapes: Shapes) -> None:
        self.n, self.shapes = n, shapes
        generator = torch.Generator().manual_seed(0)
        self._noise = torch.randn(size(shapes), generator=generator)
        self._common = torch.randn(size(shapes), generator=generator) * 0.5

    def matrix(self) -> Tensor:
        """Make the round as one stacked (n, d) tensor."""
        stacked = torch.empty(self.n, len(self._noise))
        for index, row in enumerate(stacked):
            self._fill(index, row)
        return stacked

    def states(self) -> list[dict[str, Tensor]]:
        """Make the round as state dicts, each tensor in memory of its own."""
        return [self.state(index) for index in range(self.n)]

    def state(self, index: int) -> dict[str, Tensor]:
        """Make one client's state dict."""
        vector = torch.empty_like(self._noise)
        self._fill(index, vector)
        parts = vector.split([prod(shape) for shape in self.shapes.values()])
        return {
            name: part.clone().reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def _fill(self, index: int, out: Tensor) -> None:
        shift = index * _STEP % len(out)
        out[shift:] = self._noise[: len(out) - shift]
        out[:shift] = self._noise[len(out) - shift :]
        out += self._common
