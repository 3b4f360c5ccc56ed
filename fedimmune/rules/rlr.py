"""Robust learning rate: where too few clients agree on a coordinate's sign, it moves the other way.

The result is the mean in each coordinate where |Σ sign(xᵢ)| ≥ θ, and minus the mean elsewhere.

References
----------
Özdayi, Kantarcioglu, Gel: *Defending against Backdoors in Federated Learning with Robust Learning
Rate*, AAAI 2021. Clients count equally: the server cannot verify their numbers of samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor

from fedimmune._sources import Rows
from fedimmune.aggregation import Aggregation
from fedimmune.errors import ParameterError
from fedimmune.kernels import ColumnFunction, Result, weighted_sum
from fedimmune.rules.base import Common, CoordinateRule
from fedimmune.updates import ClientId, Updates
from fedimmune.validation import check_int

__all__ = ["RLR"]


class RLR(CoordinateRule):
    """The mean, negated in each coordinate on whose sign too few clients agree.

    It says nothing about single clients: everybody's value is in every mean.

    Parameters
    ----------
    threshold
        θ: how far the votes for the two signs must be apart. More than the number of attackers, and
        no more than what is left of the honest majority. By default ⌈0.4 n⌉, the authors' 4 of 10.
    """

    name = "rlr"
    summary = "the mean, negated in each coordinate on whose sign too few agree"
    paper = "Özdayi et al., AAAI 2021"
    symbols = {"threshold": "θ"}
    is_translation_equivariant = False

    def __init__(self, *, threshold: int | None = None, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.threshold = (
            None if threshold is None else check_int(self.name, "threshold", threshold, 0)
        )

    def check_count(self, clients: int, turned_away: Mapping[ClientId, str] | None = None) -> None:
        super().check_count(clients, turned_away)
        n = self._rows_of(clients)
        if self.threshold is not None and self.threshold > n:
            raise ParameterError(
                f"{self.name}: threshold is {self.threshold:.4g}, but {n} votes are all there are, "
                "so every coordinate of the mean would be negated"
            )

    def column_function(self, n: int) -> ColumnFunction:
        threshold = math.ceil(0.4 * n) if self.threshold is None else self.threshold

        def signed_mean(rows: Rows, out: Tensor) -> None:
            votes = torch.sign(rows[0])
            torch.mul(rows[0], 1 / n, out=out)
            for row in rows[1:]:
                votes += torch.sign(row)
                out.add_(row, alpha=1 / n)
            out.mul_(torch.where(votes.abs() >= threshold, 1.0, -1.0))

        return signed_mean

    def _attempt(self, updates: Updates) -> Aggregation:
        rows, _ = self._mixed(updates)
        result, n = Result(rows), len(rows)
        result.fill_parameters(rows, self.column_function(n), check=True)
        # Statistics are not steps: they are averaged, and never negated.
        result.fill_buffers(rows, weighted_sum(torch.full((n,), 1 / n, dtype=torch.float64)))
        return self._answer(updates, result.finish())
