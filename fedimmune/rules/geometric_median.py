"""The geometric median: the point with the smallest sum of distances to the updates.

References
----------
Pillutla, Kakade, Harchaoui: *Robust Aggregation for Federated Learning*, IEEE Transactions on
Signal Processing 2022 (RFA: the smoothed Weiszfeld algorithm).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedimmune.checks import whole
from fedimmune.geometry import Geometry
from fedimmune.rules.base import GeometryRule, Weighing

__all__ = ["GeometricMedian"]

_SMOOTHING = 1e-8
"""Distances below this share of the median distance are rounded up to it."""
_CONVERGED = 1e-10
"""The weights have settled when none changes by more than this in a step."""


class GeometricMedian(GeometryRule):
    """The geometric median, by the smoothed Weiszfeld algorithm on the distances alone.

    The median lies among the updates: it is Σ wᵢxᵢ with wᵢ in proportion to 1 / ‖xᵢ − median‖. So
    the iteration needs no vector, only the n×n squared distances D: for weights that sum to one,
    ‖xᵢ − Σ wⱼxⱼ‖² = (Dw)ᵢ − wᵀDw / 2.

    Parameters
    ----------
    steps
        How many steps at most; most rounds need a few dozen, and a step takes microseconds.
    """

    name = "geometric-median"
    summary = "RFA: the point with the smallest sum of distances"
    paper = "Pillutla et al., IEEE TSP 2022"

    def __init__(self, *, steps: int = 10_000) -> None:
        self.steps = whole(self.name, "steps", steps, 1)

    def weigh_geometry(self, geometry: Geometry) -> Weighing:
        squared = geometry.squared_distances()
        n = len(geometry)
        weights = torch.full((n,), 1 / n, dtype=torch.float64)
        typical = squared[squared > 0].median() if bool((squared > 0).any()) else None
        if typical is None:
            return Weighing(weights, torch.zeros(n, dtype=torch.float64))
        least = _SMOOTHING**2 * float(typical)
        for _ in range(self.steps):
            inverse = _distances_to(squared, weights).clamp(min=least).rsqrt()
            step = inverse / inverse.sum()
            change = float((step - weights).abs().max())
            weights = step
            if change < _CONVERGED:
                break
        return Weighing(weights, _distances_to(squared, weights).clamp(min=0).sqrt())


def _distances_to(squared: Tensor, weights: Tensor) -> Tensor:
    """Squared distances of all clients to the weighted mean."""
    to_mean = squared @ weights
    return to_mean - (weights @ to_mean) / 2
