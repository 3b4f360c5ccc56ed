"""The omniscient attack: the update, turned round.

Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*,
NeurIPS 2017; here as in Wan and Chen (2021): an attacker trains honestly and sends the negative of
its update, which turns descent into ascent.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedimmune.attacks.base import Attack
from fedimmune.checks import number

__all__ = ["Omniscient"]


class Omniscient(Attack):
    """Send the update times −`scale`.

    Parameters and floating-point buffers are turned round; counters, which no rule averages, are
    sent as they are.

    Parameters
    ----------
    scale
        How many times the update; 1 leaves its length as it is.
    """

    name = "omniscient"
    aliases = ("sign-flip",)
    summary = "sends its update times −scale"
    acts_on = "update"
    paper = "Blanchard et al. 2017"

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale = number(self.name, "scale", scale, 0)

    def corrupt(self, update: Mapping[str, Tensor]) -> None:
        for tensor in update.values():
            if tensor.is_floating_point():
                tensor.mul_(-self.scale)
