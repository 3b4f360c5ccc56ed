"""GAS, gradient splitting: a base rule in every part of the model says who is far off in sum.

The paper cuts the coordinates into parts by lot. Here parts are the layers, whose inner products
are known anyway.

References
----------
Liu, Gao, Wang, Yuan, Zhou: *Byzantine-Robust Learning on Heterogeneous Data via Gradient
Splitting*, ICML 2023.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.geometry import Geometry
from fedimmune.kernels import NearMedian, add_in_order, by_chunk
from fedimmune.results import Verdict
from fedimmune.rules.attackers import WithAttackers
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.bulyan import Bulyan, chosen_by_krum
from fedimmune.rules.krum import krum_order
from fedimmune.updates import Updates
from fedimmune.validation import check_choice

__all__ = ["GAS"]


class GAS(WithAttackers, GeometryRule):
    """The mean of the n − f clients that are nearest to a base rule's result, summed over layers.

    The score of client i is Σ ‖xᵢ − base‖ over the layers, each with a result of its own.

    Parameters
    ----------
    base
        The rule in each layer: ``krum``, or ``bulyan``, which needs a third read.
    attackers
        How many clients may attack (f); 2f + 3 are needed, with Bulyan 4f + 3. By default as many
        as that admits.
    """

    name = "gas"
    summary = "the mean of those nearest to Krum's or Bulyan's result, summed over layers"
    paper = "Liu et al., ICML 2023"
    unweighted_means = Verdict.UNUSED
    looks_at_layers = True
    clients_besides = 3

    def __init__(
        self,
        *,
        base: Literal["krum", "bulyan"] = "krum",
        attackers: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(attackers=attackers, **common)
        self.base = check_choice(self.name, "base", base, ("krum", "bulyan"))
        if self.base == "bulyan":
            self.clients_per_attacker, self.reads = Bulyan.clients_per_attacker, 3

    @property
    def reads_values(self) -> bool:
        return self.base == "bulyan"

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        scores = torch.zeros(len(geometry), dtype=torch.float64)
        for layer in geometry.layers:
            squared = geometry.of(layer).squared_distances()
            _, order = krum_order(squared, self.attackers_of(len(squared)))
            scores += squared[order[0]].sqrt()
        return self._weights(scores)

    def weigh(self, updates: Updates) -> ClientWeights:
        geometry = self.measure(updates)
        if self.base == "krum":
            return self.weigh_geometry(geometry)
        n, f = len(updates), self.attackers_of(len(updates))
        squares = {name: torch.zeros(n, dtype=torch.float64) for name in geometry.layers}
        chosen = {
            name: chosen_by_krum(geometry.of(name).squared_distances(), f) for name in squares
        }
        function = NearMedian(n - 2 * f, n - 4 * f)
        for block in updates.blocks(updates.of_kind(Kind.PARAMETER), check=False, stacked=True):
            if block.stop > block.start:
                values, rows = block.values.double(), chosen[block.layer.name]
                result = torch.empty_like(values[0])
                function(values[rows], result)
                add_in_order(squares[block.layer.name], by_chunk((values - result).square()))
        return self._weights(torch.stack([each.sqrt() for each in squares.values()]).sum(0))

    def _weights(self, scores: Tensor) -> ClientWeights:
        kept = len(scores) - self.attackers_of(len(scores))
        return ClientWeights.of_kept(scores.argsort(stable=True)[:kept].tolist(), scores)
