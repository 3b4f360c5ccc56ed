"""MDA, the minimum-diameter average: the mean of the n − f updates that lie closest together.

Of subsets with the same diameter, which is usual because one pair of clients makes it, the one with
the smallest sum of squared distances is taken, so that the order of the clients does not decide.

References
----------
El Mhamdi, Guerraoui, Guirguis, Hoang, Rouault: *Genuinely Distributed Byzantine Machine Learning*,
PODC 2020. The estimator is Rousseeuw's: *Multivariate Estimation with High Breakdown Point*, 1985.
"""

from __future__ import annotations

from torch import Tensor

from fedimmune.rules.subsets import SubsetRule

__all__ = ["MDA"]


class MDA(SubsetRule):
    """The mean of the n − f updates with the smallest largest distance between two of them.

    Every subset is tried; more than 200,000 (11 of 20 clients make 167,960) are refused.

    Parameters
    ----------
    attackers
        How many clients may attack (f); 2f + 1 are needed. By default ⌊(n − 1) / 2⌋.
    """

    name = "mda"
    summary = "the mean of the n − f updates with the smallest diameter"
    paper = "El Mhamdi et al., PODC 2020"

    def spread(self, inner: Tensor, squared: Tensor) -> Tensor:
        return squared.amax((1, 2))
