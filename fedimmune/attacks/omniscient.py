"""The omniscient attack: the update, turned round.

Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*,
NeurIPS 2017; here as in Wan and Chen (2021): an attacker trains honestly and sends the negative of
its update, which turns descent into ascent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from fedimmune.attacks.base import Attack
from fedimmune.checks import number
from fedimmune.errors import ParameterError

__all__ = ["Omniscient"]


class Omniscient(Attack):
    """Send the update times −`scale`.

    Parameters and floating-point buffers are turned round; counters, which no rule averages, are
    sent as they are.

    Parameters
    ----------
    scale
        How many times the update; 1 leaves its length as it is.
    spare
        Patterns (``*`` and ``?``) of layers that are sent as they are; ``["*running_*"]`` turns
        trained parameters alone and leaves batch-norm statistics.
    """

    name = "omniscient"
    aliases = ("sign-flip",)
    summary = "sends its update times −scale"
    acts_on = "update"
    paper = "Blanchard et al. 2017"

    def __init__(self, *, scale: float = 1.0, spare: Sequence[str] | None = None) -> None:
        self.scale = number(self.name, "scale", scale, 0)
        if spare is not None and (
            isinstance(spare, str) or not all(isinstance(each, str) for each in spare)
        ):
            raise ParameterError(f"omniscient: spare must be a list of patterns: {spare!r}")
        self.spare = None if spare is None else tuple(spare)

    def corrupt(self, update: Mapping[str, Tensor]) -> None:
        for name, tensor in update.items():
            spared = any(fnmatchcase(name, pattern) for pattern in self.spare or ())
            if tensor.is_floating_point() and not spared:
                tensor.mul_(-self.scale)
