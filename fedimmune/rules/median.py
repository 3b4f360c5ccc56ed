"""The coordinate-wise median.

References
----------
Yin, Chen, Kannan, Bartlett: *Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates*, ICML 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedimmune._sources import Rows
from fedimmune.kernels import ColumnFunction, Sorter
from fedimmune.rules.base import CoordinateRule

__all__ = ["Median"]


class Median(CoordinateRule):
    """The median of each coordinate; for an even number of clients the mean of the middle two."""

    name = "median"
    summary = "the median of each coordinate"
    paper = "Yin et al., ICML 2018"

    def withstands(self, n: int) -> int:
        return (n - 1) // 2

    def column_function(self, n: int) -> ColumnFunction:
        middle = sorted({(n - 1) // 2, n // 2})
        sorter = Sorter(n, middle, interchangeable=middle)

        def median(rows: Rows, out: Tensor) -> None:
            found = sorter(rows)
            if len(found) == 1:
                out.copy_(found[0])
            else:  # halved before they are added, so that the sum cannot overflow
                torch.mul(found[0], 0.5, out=out)
                out.add_(found[1], alpha=0.5)

        return median

    def used(self, values: Tensor) -> Tensor:
        ordered = values.sort(0).values
        return (values >= ordered[(len(values) - 1) // 2]) & (values <= ordered[len(values) // 2])
