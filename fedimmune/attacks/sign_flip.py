"""The sign flip: the update, negated. Its first paper calls the attacker omniscient.

Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*,
NeurIPS 2017; here as in Wan and Chen (2021): an attacker trains honestly and sends the negative of
its update, which turns descent into ascent. Other programs call other things by this name: ByzFL
negates the honest mean, and Blades lets attackers climb the loss while they train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from fedimmune.attacks.base import Attack, Context
from fedimmune.attacks.collusion import Seen
from fedimmune.errors import ParameterError
from fedimmune.updates import Updates
from fedimmune.validation import check_choice, check_float

__all__ = ["SignFlip"]

_MOMENTS = {"own": "on_update", "mean": "on_round", "training": "on_loss"}


class SignFlip(Attack):
    """Send the update times −`scale`.

    Trained parameters and floating-point buffers are negated; counters, which no rule averages, are
    sent as they are. With the honest ``mean`` and nothing to spare, attackers need not train, and
    counters are the honest clients' lower median.

    Parameters
    ----------
    scale
        Factor; 1 leaves the update's length as it is.
    spare
        Patterns (``*`` and ``?``) of layers that are sent as they are. By default none: buffers
        are negated too. ``["*running_*"]`` negates trained parameters only, and leaves batch-norm
        statistics as they are.
    flip
        What is negated: its ``own`` update; the ``mean`` of the honest clients' updates, which all
        attackers send (knowledge ``everyone``); or the loss in ``training``, which is climbed.
        There `scale` is a factor of the gradient, `spare` has no meaning, and who climbs so far
        that numbers end sends NaN and is rejected.
    """

    name = "sign-flip"
    aliases = ("omniscient",)
    summary = "sends its update times −scale; or the honest mean's, or climbs the loss"
    paper = "Blanchard et al. 2017"
    label = "sign flip"
    advice = (
        "check the sign and the size of what you send: it has to be the model after training, and "
        "training has to lower the loss"
    )
    shared = frozenset({"flip"})  # older runs do not say it
    ranges = {"scale": (0.5, 2.0)}

    def __init__(
        self, *, scale: float = 1.0, spare: Sequence[str] | None = None, flip: str = "own"
    ) -> None:
        self.scale = check_float(self.name, "scale", scale, 0)
        if spare is not None and (
            isinstance(spare, str) or not all(isinstance(each, str) for each in spare)
        ):
            raise ParameterError(f"sign-flip: spare must be a list of patterns: {spare!r}")
        self.spare = None if spare is None else tuple(spare)
        self.flip = check_choice(self.name, "flip", flip, tuple(_MOMENTS))
        if flip == "mean":
            self.knowledge = "everyone"
            self.needs_training = bool(self.spare)

    def overrides(self, method: str) -> bool:
        return method == _MOMENTS[self.flip]

    def on_loss(self, loss: Tensor, model: nn.Module, context: Context) -> Tensor:
        return -self.scale * loss if self.flip == "training" else loss

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        if self.flip == "own":
            for tensor in self._negated(update).values():
                tensor.mul_(-self.scale)

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Updates:
        seen = Seen(attackers, visible)
        if self.flip != "mean" or not len(seen.honest):
            return attackers
        hostile = {name: -self.scale * mean for name, mean in self._negated(seen.mean).items()}
        return Updates.from_states(
            {
                client: {**(attackers.state(client) if self.spare else seen.mean), **hostile}
                for client in attackers.clients
            }
        )

    def _negated(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the layers that are negated: floating-point ones that are not spared."""
        return {
            name: tensor
            for name, tensor in update.items()
            if tensor.is_floating_point()
            and not any(fnmatchcase(name, pattern) for pattern in self.spare or ())
        }
