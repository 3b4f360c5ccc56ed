"""Min-Sum: Min-Max with sums of squared distances in place of the largest distance.

Shejwalkar, Houmansadr, *Manipulating the Byzantine*, NDSS 2021. The factor has a closed form: since
the honest updates' differences to their mean add up to 0, Σ ‖x − xᵢ‖² grows by m γ² ‖p‖² alone.
"""

from __future__ import annotations

from torch import Tensor

from fedimmune.attacks.min_max import Perturbed, squares
from fedimmune.validation import check_choice

__all__ = ["MinSum"]


class MinSum(Perturbed):
    """Send what is no farther from the honest updates, in all, than an honest one is.

    All attackers send the honest mean less γ times `direction`, with the largest γ for which the
    sum of squared distances to the honest updates is at most the bound.

    Parameters
    ----------
    direction
        As for `MinMax`.
    bound
        Of the sums of squared distances from one honest update to all others, the ``max``, as in
        the paper, or the ``min``, as in the authors' program: a smaller step.
    """

    name = "min-sum"
    summary = "sends the mean, moved until its distances add up to an honest update's"
    label = "Min-Sum"

    def __init__(self, *, direction: str = "std", bound: str = "max") -> None:
        super().__init__(direction=direction)
        self.bound = check_choice(self.name, "bound", bound, ("max", "min"))

    def largest(self, gram: Tensor) -> float:
        from_mean, apart = squares(gram)
        sums = apart.sum(1)
        most = sums.max() if self.bound == "max" else sums.min()
        room = (most - from_mean.sum()).clamp(min=0)
        return float((room / (len(sums) * gram[-1, -1])).sqrt())
