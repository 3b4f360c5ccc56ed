"""The sign flip: the update, negated. Its first paper calls the attacker omniscient.

Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*,
NeurIPS 2017; here as in Wan and Chen (2021): an attacker trains honestly and sends the negative of
its update, which turns descent into ascent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from fedimmune.attacks.base import Attack, Context
from fedimmune.errors import ParameterError
from fedimmune.validation import check_float

__all__ = ["SignFlip"]


class SignFlip(Attack):
    """Send the update times −`scale`.

    Trained parameters and floating-point buffers are negated; counters, which no rule averages, are
    sent as they are.

    Parameters
    ----------
    scale
        Factor; 1 leaves the update's length as it is.
    spare
        Patterns (``*`` and ``?``) of layers that are sent as they are. By default none: buffers
        are negated too. ``["*running_*"]`` negates trained parameters only, and leaves batch-norm
        statistics as they are.
    """

    name = "sign-flip"
    aliases = ("omniscient",)
    summary = "sends its update times −scale"
    paper = "Blanchard et al. 2017"
    label = "sign flip"
    advice = (
        "check the sign and the size of what you send: it has to be the model after training, and "
        "training has to lower the loss"
    )
    ranges = {"scale": (0.5, 2.0)}

    def __init__(self, *, scale: float = 1.0, spare: Sequence[str] | None = None) -> None:
        self.scale = check_float(self.name, "scale", scale, 0)
        if spare is not None and (
            isinstance(spare, str) or not all(isinstance(each, str) for each in spare)
        ):
            raise ParameterError(f"sign-flip: spare must be a list of patterns: {spare!r}")
        self.spare = None if spare is None else tuple(spare)

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        for name, tensor in update.items():
            spared = any(fnmatchcase(name, pattern) for pattern in self.spare or ())
            if tensor.is_floating_point() and not spared:
                tensor.mul_(-self.scale)
