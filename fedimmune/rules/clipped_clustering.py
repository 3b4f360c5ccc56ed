"""Clipped clustering: updates are shortened to a usual length, and the larger cluster is believed.

Updates longer than the median of all lengths seen so far, this round's included, are shortened to
it. They are clustered by cosine distance 1 − cos, average linkage, into two; the result is the mean
of the larger cluster.

References
----------
Li, Ngai, Voigt: *An Experimental Study of Byzantine-Robust Aggregation Schemes in Federated
Learning*, IEEE Transactions on Big Data 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.history import Remembering
from fedimmune.rules.selection import larger_cluster, mean_cosines, mean_of
from fedimmune.updates import Updates

__all__ = ["ClippedClustering"]


class ClippedClustering(Remembering, GeometryRule):
    """The mean of the larger of two clusters, of updates cut to the median length so far.

    It remembers the lengths of all updates that it has seen, and not whose they were.
    """

    name = "clipped-clustering"
    summary = "the mean of the larger of two clusters, cut to the median length of all rounds"
    paper = "Li et al., IEEE TBD 2023"
    unweighted_means = Verdict.UNUSED  # there are two clusters even if all clients agree
    weights_make_result = False
    bounds_lengths = True
    remembers_clients = False
    is_translation_equivariant = False
    is_scale_equivariant = False  # lengths of earlier rounds stay as they were
    packages = frozenset({"scipy"})

    def __init__(self, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.lengths = torch.empty(0, dtype=torch.float64)
        """Of all updates of earlier rounds."""
        self._now = self.lengths

    @property
    def clients_needed(self) -> int:
        return 3

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2  # more could make the median length anything

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        lengths, kept = geometry.norms(), larger_cluster(geometry, "average")
        self._now = torch.cat([self.lengths, lengths])
        most = float(self._now.quantile(0.5))
        return mean_of(kept, lengths, most, score=mean_cosines(geometry, kept))

    def finish(self, updates: Updates) -> None:
        self.lengths = self._now

    def remembered(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"lengths": self.lengths}, {}

    def recall(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        lengths = tensors.get("lengths")
        if lengths is None or lengths.ndim != 1 or bool((lengths < 0).any()):
            raise InputError("it holds no lengths")
        self.lengths = lengths.double()
