"""The coordinate-wise trimmed mean.

References
----------
Yin, Chen, Kannan, Bartlett: *Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates*, ICML 2018.
"""

from __future__ import annotations

import math
from typing import Unpack

from torch import Tensor

from fedimmune.kernels import ColumnFunction, Ranks
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

    def breakdown(self, n: int) -> int:
        return math.floor(self.trim * n + 1e-9)  # 0.29 * 100 is 28.999999999999996

    def attackers_of(self, n: int) -> int:
        return self.breakdown(n)

    def column_function(self, n: int) -> ColumnFunction:
        return self._ranks(n)

    def used(self, values: Tensor) -> Tensor:
        return self._ranks(len(values)).used(values)

    def _ranks(self, n: int) -> Ranks:
        cut = self.breakdown(n)
        return Ranks(n, range(cut, n - cut), 1 / (n - 2 * cut))
