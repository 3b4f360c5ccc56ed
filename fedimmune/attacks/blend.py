"""Blending in: a hostile update, drawn part of the way to the honest mean.

What every attack can do that sees honest updates: the nearer to their mean, the harder it is to
tell attackers from others, and the less harm is done.
"""

from __future__ import annotations

from fedimmune.attacks.base import Context
from fedimmune.attacks.collusion import Collusion, Seen
from fedimmune.updates import Updates
from fedimmune.validation import check_float, check_fraction

__all__ = ["Blend"]


class Blend(Collusion):
    """Send a share of the honest mean, and for the rest its own update times −`scale`.

    Parameters
    ----------
    share
        Of the honest mean: 0 is the sign flip, 1 the honest mean itself.
    scale
        How many times its own update is negated. By default 3, so that with half a share what is
        left is about the honest mean negated, with the length and the differences of honest
        updates.
    """

    name = "blend"
    summary = "sends its update times −scale, drawn towards the honest mean"
    advice = (
        "check the sign and the size of what you send, and that it is your own model after training"
    )
    ranges = {"share": (0.2, 0.7), "scale": (1.0, 5.0)}

    def __init__(self, *, share: float = 0.5, scale: float = 3.0) -> None:
        self.share = check_fraction(self.name, "share", share)
        self.scale = check_float(self.name, "scale", scale, 0)

    def collude(self, seen: Seen, context: Context) -> Updates:
        towards = seen.trained(seen.mean, self.share)
        rest = -(1 - self.share) * self.scale
        states = map(seen.attackers.state, seen.clients)
        return seen.send(*(seen.along(towards, rest, state) for state in states))
