"""Weights by their definition, client by client, and an adversary who chooses the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

__all__ = ["Case", "cases", "robust", "softmax", "used"]

Numbers = npt.NDArray[np.float64]


def softmax(scores: Sequence[float] | Numbers, c: float) -> Numbers:
    return np.array([1 / sum(math.exp(c * (other - own)) for other in scores) for own in scores])


def used(scores: Sequence[float] | Numbers, c: float, eps: float, renormalized: bool) -> Numbers:
    """Weights after truncation."""
    weights = softmax(scores, c)
    weights[weights < eps / len(weights)] = 0
    return weights / weights.sum() if renormalized else weights


def robust(n: int, m: int) -> Numbers:
    """Weights of the robust mean; the last m clients attack."""
    return np.array([1 / (n - m)] * (n - m) + [0.0] * m)


@dataclass(frozen=True)
class Case:
    """Clients of whom the last m attack, with scores in two intervals, and how they are weighed."""

    n: int
    m: int
    c: float
    eps: float
    honest: tuple[float, float]
    attackers: tuple[float, float]
    renormalized: bool

    @classmethod
    def of(cls, error: float, n: int, m: int, c: float, eps: float, renormalized: bool) -> Case:
        return cls(n, m, c, eps, (1 - error, 1), (-1, -1 + error), renormalized)

    def differences(self, scores: Sequence[float] | Numbers) -> float:
        weights = used(scores, self.c, self.eps, self.renormalized)
        return float(np.abs(weights - robust(self.n, self.m)).sum())

    def corners(self) -> list[list[float]]:
        """Everybody as high or as low as allowed: who of a camp it is does not matter."""
        camps = []
        for (low, high), size in ((self.honest, self.n - self.m), (self.attackers, self.m)):
            camps.append([[low] * k + [high] * (size - k) for k in range(size + 1)])
        return [honest + bad for honest, bad in product(*camps)]

    def worst(self, seed: int, starts: int = 2, sweeps: int = 2) -> float:
        """Search for scores with the largest differences: corners, then one client at a time."""
        random = np.random.default_rng(seed)
        ends = [self.honest] * (self.n - self.m) + [self.attackers] * self.m
        found = sorted(self.corners(), key=self.differences)
        tries = [found[-1], *([random.uniform(*end) for end in ends] for _ in range(starts))]
        best = 0.0
        for start in tries:
            scores, here = start, self.differences(start)
            for _, client in product(range(sweeps), range(self.n)):
                for value in np.linspace(*ends[client], 9).tolist():
                    moved = [*scores[:client], value, *scores[client + 1 :]]
                    there = self.differences(moved)
                    if there > here:
                        scores, here = moved, there
            best = max(best, here)
        return best


@st.composite
def cases(draw: st.DrawFn, largest: int = 7) -> tuple[float, Case]:
    """Draw a score error and what goes with it."""
    n = draw(st.integers(1, largest))
    error = draw(st.floats(0, 2))
    m, c = draw(st.integers(0, n - 1)), draw(st.floats(0, 12))
    eps = draw(st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.99]))
    return error, Case.of(error, n, m, c, eps, draw(st.booleans()))
