"""The geometric median: the point with the smallest sum of distances to the updates.

References
----------
Pillutla, Kakade, Harchaoui: *Robust Aggregation for Federated Learning*, IEEE Transactions on
Signal Processing 2022 (RFA: the smoothed Weiszfeld algorithm).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from fedimmune.geometry import Geometry
from fedimmune.landmarks import LARGE, measure_landmarks
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.selection import landmark_rows
from fedimmune.updates import Updates
from fedimmune.validation import check_int

__all__ = ["GeometricMedian"]

_SMOOTHING = 1e-8
"""Distances below this share of the median distance are rounded up to it."""
_CONVERGED = 1e-10
"""The weights have settled when none changes by more than this in a step."""

_SETTLED = 1e-3
_MOST_READS = 20


class GeometricMedian(GeometryRule):
    """The geometric median, by the smoothed Weiszfeld algorithm on the distances alone.

    The median lies among the updates: it is Σ wᵢxᵢ with wᵢ in proportion to 1 / ‖xᵢ − median‖. So
    the iteration needs no vector, only inner products: for weights that sum to one,
    ‖xᵢ − Σ wⱼxⱼ‖² = Gᵢᵢ − 2(Gw)ᵢ + wᵀGw with G the inner products as seen from any point. That
    point is the client in the middle of the others, and the iteration starts with clients that
    are near to most: seen from anywhere else, or started at the mean, a single update of 10³⁰
    would leave nothing of the others' digits.

    Parameters
    ----------
    steps
        How many steps at most; most rounds need a few dozen, and a step takes microseconds. With
        more than 256 clients a step is a read of the round, the start is the geometric median of 64
        clients drawn by lot, and a few steps, 20 at most, are taken: until no weight changes by
        more than a thousandth of an equal share.
    """

    name = "geometric-median"
    summary = "RFA: the point with the smallest sum of distances"
    paper = "Pillutla et al., IEEE TSP 2022"
    weighs_smoothly = True

    def __init__(self, *, steps: int = 10_000, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.steps = check_int(self.name, "steps", steps, 1)

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2

    def weigh(self, updates: Updates) -> ClientWeights:
        if len(updates) <= LARGE:
            return super().weigh(updates)
        marks = measure_landmarks(updates, landmark_rows(updates))
        weights, usual = marks.start()
        least = max(_SMOOTHING**2 * usual, torch.finfo(torch.float64).tiny)
        for _ in range(min(self.steps, _MOST_READS)):
            away = marks.distances_to_sum(weights)
            step = _inverse(away, least)
            change = float((step - weights).abs().max()) * len(weights)
            weights = step
            if change < _SETTLED:
                break
        return ClientWeights(weights, away.sqrt())

    def _weighed(self, updates: Updates) -> ClientWeights:
        if self.preaggregators or len(updates) <= LARGE:
            return super()._weighed(updates)
        return self.weigh(updates)

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        squared = geometry.squared_distances()
        medians = squared.median(dim=1).values
        middle = int(medians.argmin())
        # The spread of those around the middle one, which fewer than half of the clients do not
        # make: a floor that followed all distances would follow the attackers'. It is 0 if most
        # sent the same, which then is the median.
        usual = float(squared[middle].sort().values[len(geometry) // 2])
        gram = geometry.seen_from(middle)
        least, lengths = (
            max(_SMOOTHING**2 * usual, torch.finfo(torch.float64).tiny),
            gram.diagonal(),
        )
        weights = _inverse(medians, max(usual, least))
        for _ in range(self.steps):
            # As `_inverse(_distances_to(gram, weights), least)`, with fewer calls: they are what a
            # step costs.
            to_mean = gram @ weights
            step = torch.sub(lengths, to_mean, alpha=2).add_(weights @ to_mean)
            step.clamp_(min=least).rsqrt_()
            step.div_(step.sum())
            change = torch.dist(step, weights, torch.inf).item()
            weights = step
            if change < _CONVERGED:
                break
        return ClientWeights(weights, _distances_to(gram, weights).sqrt())


def _inverse(squared: Tensor, least: float) -> Tensor:
    """Weights in proportion to 1 / distance."""
    inverse = squared.clamp(min=least).rsqrt()
    return inverse / inverse.sum()


def _distances_to(gram: Tensor, weights: Tensor) -> Tensor:
    """Squared distances of all clients to the weighted mean."""
    to_mean = gram @ weights
    return (gram.diagonal() - 2 * to_mean + weights @ to_mean).clamp(min=0)
