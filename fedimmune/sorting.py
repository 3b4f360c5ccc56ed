"""Sorting the clients' values in every column at once, by a network of minima and maxima.

For few clients and many columns this beats any sort of the columns: each step is one elementwise
operation on whole rows that lie in the cache. The networks are Batcher's merge exchange (Knuth,
*The Art of Computer Programming*, vol. 3, 5.2.2, algorithm M), for any number of rows, with every
step left out that the wanted ranks do not need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedimmune.sources import Rows

__all__ = ["Sorter"]


@dataclass(frozen=True)
class _Step:
    """Put the smaller of two rows at `low`, the larger at `high`, as far as they are wanted."""

    low: int
    high: int
    wants_low: bool
    wants_high: bool


class Sorter:
    """Finds wanted ranks of the rows of a block, column by column.

    Parameters
    ----------
    n
        How many rows.
    wanted
        The ranks to find, 0 being the smallest; by default all.
    interchangeable
        Wanted ranks that the caller treats alike, by adding them up for example; they may come in
        any order.
    """

    def __init__(
        self, n: int, wanted: Iterable[int] | None = None, interchangeable: Iterable[int] = ()
    ) -> None:
        self._wanted = tuple(range(n)) if wanted is None else tuple(wanted)
        self._steps = _network(n, frozenset(self._wanted), frozenset(interchangeable))
        self._spare = torch.empty(0)

    def __call__(self, rows: Rows) -> list[Tensor]:
        """Return the wanted ranks, each a tensor like a row; valid until the next call.

        Rows may have any shape. They are never written to; what is returned may be one of them.
        """
        current = list(rows)
        mine = [False] * len(current)  # whether a row's memory is ours to overwrite
        free = self._memory(current[0], len(current) + 1)
        for step in self._steps:
            low, high = current[step.low], current[step.high]
            low_is_mine, high_is_mine = mine[step.low], mine[step.high]
            if step.wants_low:
                smaller = free.pop()
                torch.minimum(low, high, out=smaller)
                current[step.low], mine[step.low] = smaller, True
            if step.wants_high:
                larger = high if high_is_mine else free.pop()
                torch.maximum(low, high, out=larger)
                current[step.high], mine[step.high] = larger, True
            elif high_is_mine:
                free.append(high)
                mine[step.high] = False
            if low_is_mine:
                free.append(low)
                mine[step.low] = step.wants_low
        return [current[rank] for rank in self._wanted]

    def _memory(self, row: Tensor, count: int) -> list[Tensor]:
        spare = self._spare
        if (
            spare.dtype != row.dtype
            or spare.device != row.device
            or len(spare) < count * row.numel()
        ):
            self._spare = torch.empty(count * row.numel(), dtype=row.dtype, device=row.device)
        parts = self._spare[: count * row.numel()].reshape(count, row.numel())
        return [part.view(row.shape) for part in parts]


@lru_cache(maxsize=256)
def _network(n: int, wanted: frozenset[int], interchangeable: frozenset[int]) -> tuple[_Step, ...]:
    """Give the steps that the wanted ranks need, found from the last to the first."""
    needed, settled = set(wanted), set[int]()
    steps: list[_Step] = []
    for low, high in reversed(_merge_exchange(n)):
        if low not in needed and high not in needed:
            continue
        last_for_both = low not in settled and high not in settled
        if last_for_both and {low, high} <= interchangeable:
            settled |= {low, high}  # nothing later looks at their order
            continue
        steps.append(_Step(low, high, low in needed, high in needed))
        needed |= {low, high}
        settled |= {low, high}
    return tuple(reversed(steps))


def _merge_exchange(n: int) -> list[tuple[int, int]]:
    """Batcher's network for n rows: pairs (low, high) to be put in order, one after the other."""
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top if n > 1 else 0
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            pairs += [(i, i + distance) for i in range(n - distance) if i & p == r]
            if q == p:
                break
            distance, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs
