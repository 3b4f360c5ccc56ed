"""Meamed, the mean around the median, coordinate by coordinate.

References
----------
Xie, Koyejo, Gupta: *Generalized Byzantine-tolerant SGD*, 2018 (arXiv:1802.10116).
"""

from __future__ import annotations

from torch import Tensor

from fedimmune.kernels import ColumnFunction, NearMedian
from fedimmune.rules.attackers import WithAttackers
from fedimmune.rules.base import CoordinateRule

__all__ = ["Meamed"]


class Meamed(WithAttackers, CoordinateRule):
    """In each coordinate the mean of the n − f values nearest to the median.

    For an even number of clients the median is the mean of the middle two.

    Parameters
    ----------
    attackers
        How many clients may attack (f); 2f + 1 are needed. By default ⌊(n − 1) / 2⌋.
    """

    name = "meamed"
    summary = "the mean of the n − f values nearest to the median of each coordinate"
    paper = "Xie et al., arXiv:1802.10116"

    def column_function(self, n: int) -> ColumnFunction:
        return NearMedian(n, n - self.attackers_of(n))

    def used(self, values: Tensor) -> Tensor:
        n = len(values)
        return NearMedian(n, n - self.attackers_of(n)).used(values)
