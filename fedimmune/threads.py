"""How many threads PyTorch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["computing_with"]


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Compute with so many of PyTorch's threads, and afterwards with as many as before.

    One is usual. Two processes of one thread are quicker than one of two, and sums come out the
    same bits wherever they are computed. A round is read in many short operations, and after each
    of them threads wait for each other by spinning: where other programs take a core, as clients do
    in a simulation, that costs far more than a second thread ever gains.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
