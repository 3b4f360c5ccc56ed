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

    def breakdown(self, n: int) -> int:
        # Who keeps more than the honest keeps attackers.
        return min(self.attackers_of(n), n - self._kept(n))

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        n = len(geometry)
        f = self.attackers_of(n)
        scores, order = _ordered(
            geometry.by_parts(lambda rows: _score(geometry.squared_distances(rows), rows, f))
        )
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
    return _ordered(_score(squared, torch.arange(len(squared)), attackers))


def _score(squared: Tensor, rows: Tensor, attackers: int) -> Tensor:
    """Return scores of some of the clients, and the sums of all their squared distances."""
    sums = squared.sum(dim=1)
    others = squared.clone()
    others[torch.arange(len(rows)), rows] = torch.inf
    nearest = others.sort(dim=1).values[:, : max(1, squared.shape[1] - attackers - 2)]
    return torch.stack([nearest.sum(dim=1), sums])


def _ordered(found: Tensor) -> tuple[Tensor, list[int]]:
    """Return scores, and the clients with the best first."""
    # Two clients that are each other's only neighbor tie: the one nearer to all others wins,
    # so that the order of the clients does not decide.
    keys = list(zip(*found.tolist(), strict=True))
    return found[0], sorted(range(len(keys)), key=keys.__getitem__)
