"""What rules that keep some of the clients share: who is usual, and the mean of those kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune._sources import room
from fedimmune.geometry import Geometry
from fedimmune.landmarks import COUNT
from fedimmune.rules.base import ClientWeights
from fedimmune.rules.preaggregation import lot
from fedimmune.updates import Updates

__all__ = ["are_usual", "by_id", "cutoffs", "landmark_rows", "larger_cluster"]
__all__ += ["mean_cosines", "mean_of"]

_INDISTINCT = 1e-9
"""Values that differ by less than this share of the largest do not differ."""


def mean_of(
    kept: Tensor, lengths: Tensor | None = None, most: float = torch.inf, **more: Any
) -> ClientWeights:
    """Weigh the clients that are kept equally.

    Parameters
    ----------
    kept
        (n,), booleans. If nobody is kept, nobody has weight and the model stays as it is.
    lengths, most
        Lengths of the updates, and what longer ones are shortened to.
    **more
        Further parameters of `ClientWeights`.
    """
    weight = kept.double() / max(1, int(kept.sum()))
    if lengths is None:
        return ClientWeights(weight, **more)
    factors = (most / lengths.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
    return ClientWeights(weight, coefficients=weight * factors, **more)


def are_usual(values: Tensor, bound: float) -> Tensor:
    """Return which values lie within `bound` standard deviations of their median, (n,)."""
    away = (values - values.quantile(0.5)).abs()
    same = away <= _INDISTINCT * values.abs().max()
    # Of two groups of equal size all lie at one deviation exactly: rounding must not decide there.
    return (away < bound * values.std(correction=0) * (1 - _INDISTINCT)) | same


def by_id(geometry: Geometry) -> list[int]:
    """Return the rows in the order of ids, so that where distances tie no other order decides."""
    return sorted(range(len(geometry)), key=lambda row: repr(geometry.clients[row]))


def larger_cluster(geometry: Geometry, linkage: str) -> Tensor:
    """Return who is in the larger of two clusters by cosine distance 1 − cos, (n,).

    Of two equally large ones it is that whose members are more alike.
    """
    from scipy.cluster.hierarchy import linkage as joined  # noqa: PLC0415 (others do without)

    n, order = len(geometry), torch.tensor(by_id(geometry))
    distances, filled = torch.empty(n * (n - 1) // 2, dtype=torch.float64), 0
    for rows in geometry.parts():
        apart = 1 - geometry.cosines(order[rows])[:, order]
        for place, row in zip(rows.tolist(), apart, strict=True):
            distances[filled : filled + n - 1 - place] = row[place + 1 :]
            filled += n - 1 - place
    joints = joined(distances.numpy(), linkage)[:, :2].astype(int).tolist()
    first, open_ones = torch.zeros(n, dtype=torch.bool), [joints[-1][0]]
    while open_ones:  # take one of the last two clusters apart
        one = open_ones.pop()
        if one < n:
            first[order[one]] = True
        else:
            open_ones += joints[one - n]
    count = int(first.sum())
    if 2 * count != n:
        return first if 2 * count > n else ~first
    return max((first, ~first), key=lambda side: float(mean_cosines(geometry, side)[side].sum()))


def mean_cosines(geometry: Geometry, some: Tensor) -> Tensor:
    """Return everybody's mean cosine with some of the clients, (n,)."""
    return geometry.by_parts(lambda rows: geometry.cosines(rows)[:, some].mean(1))


def landmark_rows(updates: Updates) -> list[int]:
    """Draw the landmarks of a round of many clients, by their ids and the round's number."""
    lots = [lot("landmarks", updates.round, client) for client in updates.clients]
    return sorted(sorted(range(len(lots)), key=lots.__getitem__)[:COUNT])


def cutoffs(updates: Updates, share: float) -> Tensor:
    """Return how large each client's values must be to be among a share of its largest, (n,).

    Sizes are compared over all trained layers; at least one value is large enough, and equal ones
    are together. The bound lies halfway to the next smaller value, so that rounding, where rows are
    mixed before, cannot cost the last of them. One client is read at a time.
    """
    layers = updates.of_kind(Kind.PARAMETER)
    size = sum(layer.size for layer in layers)
    few = size - max(1, int(share * size)) + 1
    found = []
    for client in updates.clients:
        source, parts = updates.only([client]).source, []
        for layer in layers:
            buffer = room(1, layer.size, layer.compute_dtype, updates.device)
            parts.append(source.read(layer, 0, layer.size, buffer)[0].abs().double())
        sizes = torch.cat(parts)
        smaller = sizes.kthvalue(few - 1).values if few > 1 else sizes.new_zeros(())
        found.append((sizes.kthvalue(few).values + smaller) / 2)
    return torch.stack(found).cpu()
