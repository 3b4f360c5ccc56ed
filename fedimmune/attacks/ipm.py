"""Inner-product manipulation: attackers send the honest mean, negated.

Xie, Koyejo, Gupta, *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
Manipulation*, UAI 2019 (PMLR 115, 2020). The aggregate need not be far from the honest mean to do
harm: it is enough that their inner product is negative.
"""

from __future__ import annotations

from fedimmune.attacks.base import Context
from fedimmune.attacks.collusion import Collusion, Seen
from fedimmune.attacks.line_search import SEARCH, check_factor, knows, most_harmful
from fedimmune.updates import Updates

__all__ = ["InnerProductManipulation"]


class InnerProductManipulation(Collusion):
    """Send −`scale` times the mean of the honest clients' updates, every attacker the same.

    Parameters
    ----------
    scale
        How many times the mean. Up to 1 it is as short as an honest update, and gets past the
        median and Krum if there are enough attackers; (n−f)/f turns the mean of all to 0.
        ``"search"`` for the most harmful: that takes the server's rule (knowledge ``defense``).
    """

    name = "ipm"
    summary = "sends −scale times the mean of the honest updates"
    paper = "Xie et al. 2020"
    label = "inner-product manipulation"
    advice = (
        "check the sign and the size of what you send, and that it is your own model after training"
    )
    symbols = {"scale": "ε"}
    ranges = {"scale": (0.1, 2.0)}
    needs_training = False

    def __init__(self, *, scale: float | str = 0.5) -> None:
        self.scale = check_factor(self.name, "scale", scale)
        self.knowledge = knows(self.scale)

    def collude(self, seen: Seen, context: Context) -> Updates:
        nothing, back = seen.trained(seen.mean, 0), seen.trained(seen.mean, -1)
        searched = self.scale == SEARCH
        factor = most_harmful(seen, nothing, back, context) if searched else float(self.scale)
        return seen.send(seen.along(nothing, factor, back))
