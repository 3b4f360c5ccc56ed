"""What rules share that try every subset of the clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from fedimmune.errors import ParameterError
from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.attackers import WithAttackers
from fedimmune.rules.base import ClientWeights, GeometryRule
from fedimmune.updates import ClientId

__all__ = ["SubsetRule"]

_MOST = 200_000
"""More subsets than this are refused: 9 of 20 clients make fewer."""
_AT_ONCE = 4096
_SAME = 1 + 1e-9
"""Spreads that differ by less than this factor tie: rounding does not decide."""


class SubsetRule(WithAttackers, GeometryRule):
    """The mean of the n − f clients that belong together best; a tie is broken by their spread."""

    unweighted_means = Verdict.UNUSED

    @abstractmethod
    def spread(self, inner: Tensor, squared: Tensor) -> Tensor:
        """Measure how far apart the members of subsets are.

        Parameters
        ----------
        inner
            Inner products of the members of each subset, seen from one client in the middle,
            (subsets, n − f, n − f).
        squared
            Their squared distances.
        """

    def check_count(self, clients: int, turned_away: Mapping[ClientId, str] | None = None) -> None:
        super().check_count(clients, turned_away)
        n = self._rows_of(clients)
        f = self.attackers_of(n)
        if (count := comb(n, f)) > _MOST:
            raise ParameterError(
                f"{self.name}: leaving {f} of {n} clients out can be done in {count:,} ways, and "
                f"at most {_MOST:,} are tried: give fewer attackers"
            )

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        n = len(geometry)
        inner, squared = geometry.seen_from(geometry.middle()), geometry.squared_distances()
        members = n - self.attackers_of(n)
        subsets = torch.tensor(list(combinations(range(n), members))).reshape(-1, members)
        spreads, sums = torch.empty(0).double(), torch.empty(0).double()
        for some in subsets.split(_AT_ONCE):
            rows, columns = some[:, :, None], some[:, None, :]
            apart = squared[rows, columns]
            spreads = torch.cat([spreads, self.spread(inner[rows, columns], apart)])
            sums = torch.cat([sums, apart.sum((1, 2))])
        least = (spreads <= _SAME * spreads.min()).nonzero().flatten()
        kept = subsets[least[sums[least].argmin()]].tolist()
        return ClientWeights.of_kept(kept, squared[:, kept].amax(1).sqrt())
