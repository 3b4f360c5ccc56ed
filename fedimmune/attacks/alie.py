"""A Little Is Enough: all attackers send the honest mean, shifted by z standard deviations.

Baruch, Baruch, Goldberg, *A Little Is Enough: Circumventing Defenses For Distributed Learning*,
NeurIPS 2019. A shift that hides in the honest spread at every coordinate adds up over thousands of
coordinates.
"""

from __future__ import annotations

from statistics import NormalDist

from fedimmune.attacks.base import Context
from fedimmune.attacks.collusion import Collusion, Seen
from fedimmune.attacks.line_search import SEARCH, check_factor, knows, most_harmful
from fedimmune.updates import Updates

__all__ = ["ALittleIsEnough"]


class ALittleIsEnough(Collusion):
    """Send the honest mean less `z` honest standard deviations, coordinate by coordinate.

    Parameters
    ----------
    z
        How many standard deviations. By default the paper's Φ⁻¹((n − f − s) / (n − f)) with
        s = ⌊n / 2 + 1⌋ − f: the largest shift for which the f attackers and the s honest clients
        beyond them are a majority. Among few clients that is little or nothing: 0 for 2 of 10, 0.18
        for 3, 0.43 for 4; then give it, or ``"search"`` for the most harmful: that takes the
        server's rule (knowledge ``defense``).

    Notes
    -----
    The authors' program takes mean and deviation of the attackers' own updates and z = 1.5; here
    they are the honest clients', as in the paper's analysis.
    """

    name = "alie"
    summary = "sends the honest mean less z honest standard deviations"
    paper = "Baruch et al. 2019"
    label = "a little is enough"
    advice = (
        "check that your data and your training are like the others', and that nobody copies you"
    )
    ranges = {"z": (0.3, 2.0)}
    needs_training = False

    def __init__(self, *, z: float | str | None = None) -> None:
        self.z = None if z is None else check_factor(self.name, "z", z)
        self.knowledge = knows(self.z)

    def collude(self, seen: Seen, context: Context) -> Updates:
        down = seen.trained(seen.deviation, -1)
        if self.z == SEARCH:
            factor = most_harmful(seen, seen.mean, down, context)
        elif self.z is None:
            factor = _formula(len(seen.visible), len(seen.attackers))
        else:
            factor = float(self.z)
        return seen.send(seen.along(seen.mean, factor, down))


def _formula(n: int, attackers: int) -> float:
    supporters = max(1, n // 2 + 1 - attackers)
    honest = n - attackers
    share = (honest - supporters) / honest
    return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0
