"""The coordinate-wise median.

References
----------
Yin, Chen, Kannan, Bartlett: *Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates*, ICML 2018.
"""

from __future__ import annotations

from torch import Tensor

from fedimmune.kernels import ColumnFunction, Ranks
from fedimmune.rules.base import CoordinateRule

__all__ = ["Median"]


class Median(CoordinateRule):
    """The median of each coordinate; for an even number of clients the mean of the middle two."""

    name = "median"
    summary = "the median of each coordinate"
    paper = "Yin et al., ICML 2018"

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2

    def column_function(self, n: int) -> ColumnFunction:
        return Ranks.median(n)

    def used(self, values: Tensor) -> Tensor:
        return Ranks.median(len(values)).used(values)
