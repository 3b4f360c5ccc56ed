"""MoNNA: the mean of the updates nearest to one that is trusted.

In the paper every peer trusts its own vector, which is one of the n. Here the trusted one is the
server's own update, the anchor: it chooses, and is not averaged in.

References
----------
Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan: *Robust Collaborative Learning with Linear
Gradient Overhead*, ICML 2023.
"""

from __future__ import annotations

from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.attackers import WithAttackers
from fedimmune.rules.base import ClientWeights, GeometryRule

__all__ = ["MoNNA"]


class MoNNA(WithAttackers, GeometryRule):
    """The mean of the n − f updates nearest to the server's own.

    `scores` are the distances to it.

    Parameters
    ----------
    attackers
        How many clients may attack (f); 2f + 1 are needed. By default ⌊(n − 1) / 2⌋.
    """

    name = "monna"
    summary = "the mean of the n − f updates nearest to the server's own"
    paper = "Farhadkhani et al., ICML 2023"
    needs = frozenset({"anchor"})
    unweighted_means = Verdict.UNUSED
    compares_clients = False

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        n, distances = len(geometry), geometry.squared_distances_to("anchor").sqrt()
        return ClientWeights.of_kept(
            distances.argsort(stable=True)[: n - self.attackers_of(n)].tolist(), distances
        )
