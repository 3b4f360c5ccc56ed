"""Krum and multi-Krum: the updates that lie closest to their neighbors.

References
----------
Blanchard, El Mhamdi, Guerraoui, Stainer: *Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent*, NeurIPS 2017.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.validation import check_int

__all__ = ["Krum", "MultiKrum", "krum_order"]


class _Selection(GeometryRule):
    """Scores each client by the squared distances to its n − f − 2 nearest, and keeps the best."""

    paper = "Blanchard et al., NeurIPS 2017"
    unweighted_means = Verdict.UNUSED
    attackers: int | None

    @property
    def clients_needed(self) -> int:
        return 3 if self.attackers is None else 2 * self.attackers + 3

    def _kept(self, n: int) -> int:
        raise NotImplementedError

    def withstands(self, n: int) -> int:
        f = max(0, (n - 3) // 2) if self.attackers is None else self.attackers
        return min(f, n - self._kept(n))  # who keeps more than the honest keeps attackers

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        n = len(geometry)
        f = (n - 3) // 2 if self.attackers is None else self.attackers
        scores, order = krum_order(geometry.squared_distances(), f)
        return ClientWeights.of_kept(order[: self._kept(n)], scores)


class Krum(_Selection):
    """The one update that is closest to its neighbors.

    Parameters
    ----------
    attackers
        How many clients may attack (f); 2f + 3 clients are needed. By default as many as the
        number of clients admits, ⌊(n − 3) / 2⌋.
    """

    name = "krum"
    summary = "the one update closest to its n − f − 2 nearest"
    symbols = {"attackers": "f"}

    def __init__(self, *, attackers: int | None = None, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.attackers = (
            None if attackers is None else check_int(self.name, "attackers", attackers, 0)
        )

    def _kept(self, n: int) -> int:
        return 1


class MultiKrum(_Selection):
    """The mean of the updates that are closest to their neighbors.

    Parameters
    ----------
    attackers
        As for `Krum`.
    keep
        How many updates are averaged; by default ⌊n / 2⌋ − 2, at least 1. Never more than n.
    """

    name = "multi-krum"
    summary = "the mean of the updates that Krum scores best"
    symbols = {"attackers": "f"}

    def __init__(
        self,
        *,
        attackers: int | None = None,
        keep: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.attackers = (
            None if attackers is None else check_int(self.name, "attackers", attackers, 0)
        )
        self.keep = None if keep is None else check_int(self.name, "keep", keep, 1)

    def _kept(self, n: int) -> int:
        return max(1, n // 2 - 2) if self.keep is None else min(self.keep, n)


def krum_order(squared: Tensor, attackers: int) -> tuple[Tensor, list[int]]:
    """Score clients as Krum does, and put the best first.

    Parameters
    ----------
    squared
        Squared distances, (n, n).
    attackers
        How many may attack (f): the n − f − 2 nearest count, at least one.
    """
    n = len(squared)
    others = squared.clone().fill_diagonal_(torch.inf)
    scores = others.sort(dim=1).values[:, : max(1, n - attackers - 2)].sum(dim=1)
    # Two clients that are each other's only neighbor tie: the one nearer to all others wins,
    # so that the order of the clients does not decide.
    order = sorted(range(n), key=lambda i: (float(scores[i]), float(squared[i].sum())))
    return scores, order
