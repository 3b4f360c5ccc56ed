"""Clustering by cosines: clients fall into two clusters, and the larger one is believed.

The partition is the one with the smallest largest cosine across: argmin over c₁ ∪ c₂ of the maximum
over i ∈ c₁, j ∈ c₂ of cos(xᵢ, xⱼ). Joining the two most alike until two clusters are left (single
linkage) finds it exactly.

References
----------
Sattler, Müller, Wiegand, Samek: *On the Byzantine Robustness of Clustered Federated Learning*,
ICASSP 2020; the partition is from Sattler, Müller, Samek: *Clustered Federated Learning*,
arXiv:1910.01991. The authors' program joins by complete linkage, which finds another partition.
"""

from __future__ import annotations

from typing import Unpack

from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.selection import larger_cluster, mean_cosines, mean_of
from fedimmune.validation import check_choice

__all__ = ["CosineClustering"]


class CosineClustering(GeometryRule):
    """The mean of the larger of two clusters by cosine.

    Parameters
    ----------
    linkage
        How clusters are joined: ``single`` is the paper's partition, ``complete`` the authors'
        program's.
    """

    name = "cosine-clustering"
    summary = "the mean of the larger of two clusters by cosine"
    paper = "Sattler et al., ICASSP 2020"
    unweighted_means = Verdict.UNUSED  # there are two clusters even if all clients agree
    is_translation_equivariant = False
    packages = frozenset({"scipy"})

    def __init__(self, *, linkage: str = "single", **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.linkage = check_choice(self.name, "linkage", linkage, ("single", "complete"))

    @property
    def clients_needed(self) -> int:
        return 3

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        kept = larger_cluster(geometry, self.linkage)
        return mean_of(kept, score=mean_cosines(geometry, kept))
