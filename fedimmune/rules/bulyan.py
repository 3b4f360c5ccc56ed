"""Bulyan: Krum chooses clients, and each coordinate is averaged around their median.

Krum is defined for 2f + 3 vectors and more, but the last ones are chosen among 2f + 1. So few are
scored by their n − f − 2 nearest all the same, and by one at least.

References
----------
El Mhamdi, Guerraoui, Rouault: *The Hidden Vulnerability of Distributed Learning in Byzantium*, ICML
2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.aggregation import Aggregation
from fedimmune.geometry import measure
from fedimmune.kernels import NearMedian, combine, survival
from fedimmune.results import Verdict
from fedimmune.rules.attackers import WithAttackers
from fedimmune.rules.krum import krum_order
from fedimmune.updates import Updates

__all__ = ["Bulyan", "chosen_by_krum"]

_SAME = 1e-12
"""Squared distances below this share of the usual one are 0."""


class Bulyan(WithAttackers):
    """Krum's choice of θ = n − 2f clients, then in each coordinate the mean around the median.

    Krum chooses one client after the other, each time among those that are left, with new scores.
    In each coordinate the θ − 2f chosen values nearest to the median of the chosen are averaged.
    `scores` are the shares of coordinates at which a client's value was used.

    Parameters
    ----------
    attackers
        How many clients may attack (f); 4f + 3 are needed. By default ⌊(n − 3) / 4⌋.
    """

    name = "bulyan"
    summary = "Krum's choice of n − 2f, then the mean around the median of each coordinate"
    paper = "El Mhamdi et al., ICML 2018"
    clients_per_attacker = 4
    clients_besides = 3
    unweighted_means = Verdict.UNUSED
    squares = True
    reads = 2

    def _attempt(self, updates: Updates) -> Aggregation:
        rows, mixing = self._mixed(updates)
        if not updates.settled:
            for _ in updates.blocks(updates.of_kind(Kind.BUFFER), check=True):
                pass  # of those who are not chosen nothing is read below
        f = self.attackers_of(len(rows))
        chosen = chosen_by_krum(measure(rows).squared_distances(), f)
        some = rows.only(rows.clients[row] for row in chosen)
        function = NearMedian(len(chosen), len(chosen) - 2 * f)
        update = combine(some, function, parameters_are_checked=True)
        if mixing is not None and len(mixing.matrix) < len(updates):
            return self._answer(updates, update)  # of a group's mean nobody can say whose it is
        survived = torch.zeros(len(rows), dtype=torch.float64)
        shares = survival(some, function.used, function)
        assert shares is not None
        survived[chosen] = shares
        return self._answer(updates, update, survived=survived)


def chosen_by_krum(squared: Tensor, attackers: int) -> list[int]:
    """Return the n − 2f clients that Krum chooses one after the other, in the order of the rows.

    Parameters
    ----------
    squared
        Squared distances, (n, n).
    attackers
        How many may attack (f).
    """
    # Or rounding would break the ties of mutual neighbors, and of clients that sent the same.
    squared = (squared + squared.T) / 2
    squared = torch.where(squared > _SAME * squared.median(1).values.min(), squared, 0.0)
    left = list(range(len(squared)))
    while len(left) > 2 * attackers:
        _, order = krum_order(squared[left][:, left], attackers)
        del left[order[0]]
    return [row for row in range(len(squared)) if row not in left]
