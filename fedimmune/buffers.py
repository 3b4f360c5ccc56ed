"""What is not trained, settled before any rule weighs anybody.

No rule measures buffers: they are statistics, not steps, and honest ones differ for honest reasons.
So a client with ordinary parameters could write anything into them and have it averaged in. Here
every value of a buffer becomes the coordinate-wise median of all valid clients', which fewer than
half of them cannot move beyond what the others sent, and a client whose buffers lie far outside the
others' spread is set aside.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

import torch
from torch import Tensor

from fedimmune._layers import Kind, Layer, shown
from fedimmune.kernels import Sorter, add_in_order, by_chunk, lower_median
from fedimmune.updates import ClientId, Updates

__all__ = ["FAR", "settle"]

FAR = 300.0
"""A client whose buffers are this many times as far from the median as is usual is set aside.

Generous, because statistics of honest clients with one or two samples lie far out too. What lies
below does no harm either, because the median bounds it.
"""

_SAME = 1e-3
"""Deviations below this share of a buffer's own length are nobody's concern."""

_FEWEST = 3
"""Among fewer clients nobody can be said to be outside."""


def settle(updates: Updates, *, by_median: bool) -> Updates:
    """Judge the buffers of a round, and settle what becomes of them.

    Parameters
    ----------
    updates
        The valid clients.
    by_median
        Settle each value as the median of all valid clients'. Otherwise buffers follow the rule's
        own weights, and are only judged.

    Returns
    -------
    Updates
        The round without the clients that are set aside (`Updates.aside`).

    Raises
    ------
    NonFiniteError
        A client sent a value that is not finite.
    """
    settled = {layer.name: lower_median(updates, layer) for layer in updates.of_kind(Kind.COUNTER)}
    reasons: dict[ClientId, str] = {}
    for layer in updates.of_kind(Kind.BUFFER):
        settled[layer.name], deviations = _read(updates, layer)
        usual = float(deviations.median())
        least = _SAME * _length(updates, layer, settled[layer.name])
        limit = FAR * max(usual, least)
        if len(updates) < _FEWEST:
            continue
        for client, deviation in zip(updates.clients, deviations.tolist(), strict=True):
            if deviation > limit:
                times = deviation / usual if usual else inf
                reasons.setdefault(client, _reason(layer, times))
    return replace(updates.set_aside(reasons), settled=settled if by_median else {})


def _read(updates: Updates, layer: Layer) -> tuple[Tensor, Tensor]:
    """Return the coordinate-wise median of a layer, and how far each client is from it."""
    n = len(updates)
    middle = sorted({(n - 1) // 2, n // 2})
    sorter = Sorter(n, middle, interchangeable=middle)
    median = torch.empty(layer.size, dtype=layer.compute_dtype, device=updates.device)
    squares = torch.zeros(n, dtype=torch.float64)
    for block in updates.blocks([layer], check=True, stacked=True):
        found = sorter(block.values)
        part = median[block.start : block.stop]
        part.copy_(found[0] if len(found) == 1 else found[0] / 2 + found[1] / 2)
        deviation = block.values.to(torch.float64) - part.to(torch.float64)
        add_in_order(squares, by_chunk(deviation.square_()))
    return median, squares.sqrt()


def _length(updates: Updates, layer: Layer, median: Tensor) -> float:
    """How long the new buffer is; of its change alone if the old one is not known."""
    base = updates.source.base_of(layer)
    new = median if base is None else median + updates.source.flatten(layer, base)
    return float(new.to(torch.float64).norm())


def _reason(layer: Layer, times: float) -> str:
    how = f"{times:.3g} times as far as usual" if isfinite(times) else "who agree"
    return f"its buffer {shown(layer.name)} is far from the other clients', {how}"
