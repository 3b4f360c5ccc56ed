"""The coordinate-wise trimmed mean.

References
----------
Yin, Chen, Kannan, Bartlett: *Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates*, ICML 2018.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from fedimmune._sources import Rows
from fedimmune.kernels import ColumnFunction, Sorter
from fedimmune.rules.base import Common, CoordinateRule
from fedimmune.validation import check_open_fraction

__all__ = ["TrimmedMean"]


class TrimmedMean(CoordinateRule):
    """The mean of each coordinate without its largest and smallest values.

    Parameters
    ----------
    trim
        The share β of the clients that is cut off at *each* end, ⌊βn⌋ of n, from 0 up to but not
        including 0.5. The default withstands a third of the clients and cuts from 3 clients on.
    """

    name = "trimmed-mean"
    summary = "the mean of each coordinate without the largest and smallest values"
    paper = "Yin et al., ICML 2018"
    symbols = {"trim": "β"}

    def __init__(self, *, trim: float = 1 / 3, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.trim = check_open_fraction(self.name, "trim", trim, below=0.5)

    def withstands(self, n: int) -> int:
        return math.floor(self.trim * n + 1e-9)  # 0.29 * 100 is 28.999999999999996

    def column_function(self, n: int) -> ColumnFunction:
        cut = self.withstands(n)
        sorter = Sorter(n, range(cut, n - cut))

        def trimmed_mean(rows: Rows, out: Tensor) -> None:
            kept = sorter(rows)
            torch.mul(kept[0], 1 / len(kept), out=out)
            for row in kept[1:]:
                out.add_(row, alpha=1 / len(kept))

        return trimmed_mean

    def used(self, values: Tensor) -> Tensor:
        n, cut = len(values), self.withstands(len(values))
        low, high = Sorter(n, (cut, n - 1 - cut))(values)
        return (values >= low) & (values <= high)
