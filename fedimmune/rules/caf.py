"""CAF, the covariance-bound agnostic filter: weights shrink along the direction of most variance.

The largest τ is taken among the clients that still have weight. Taken among all, the τ of a far-off
update that has lost its weight would dwarf all others, whose weights would then hardly shrink: the
farther off it is, the more steps there would be.

References
----------
Allouah, Guerraoui, Stephan: *Towards Trustworthy Federated Learning with Untrusted Participants*,
ICML 2025.
"""

from __future__ import annotations

import torch

from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.attackers import WithAttackers
from fedimmune.rules.base import ClientWeights, GeometryRule

__all__ = ["CAF"]

_NOTHING = 1e-9
"""Of two clients that sent the same, rounding would leave one with a trace of weight."""


class CAF(WithAttackers, GeometryRule):
    """The weighted mean with the smallest variance on the way to a total weight of n − 2f.

    All weights cᵢ begin at 1. While they sum to more than n − 2f: with the weighted mean μ and the
    direction v of most weighted variance λ, τᵢ = ⟨xᵢ − μ, v⟩² and cᵢ becomes cᵢ(1 − τᵢ / max τ).
    The result is the μ whose λ was the smallest. `scores` are the τ of that step.

    Parameters
    ----------
    attackers
        How many clients may attack (f); 2f + 1 are needed. By default ⌊(n − 1) / 2⌋.
    """

    name = "caf"
    summary = "weights shrink along the direction of most variance"
    paper = "Allouah et al., ICML 2025"
    unweighted_means = Verdict.UNUSED

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        n = len(geometry)
        gram = geometry.seen_from(geometry.middle())
        c = torch.ones(n, dtype=torch.float64)
        least, best = torch.inf, ClientWeights(c / n, torch.zeros_like(c))
        while float(c.sum()) > n - 2 * self.attackers_of(n):
            shares = c / c.sum()
            to_mean = gram @ shares
            centered = gram - to_mean[:, None] - to_mean[None, :] + shares @ to_mean
            root = shares.sqrt()
            values, vectors = torch.linalg.eigh(root[:, None] * centered * root)
            variance = float(values[-1])
            if variance <= 0:  # nobody who still counts differs
                return ClientWeights(shares, best.score)
            # Projections are squared last: the square of a far-off one's products overflows.
            tau = (centered @ (root * vectors[:, -1]) / variance**0.5).square()
            if variance < least:
                least, best = variance, ClientWeights(shares, tau)
            c = c * (1 - tau / tau[c > 0].max())
            c = torch.where(c > _NOTHING, c, 0.0)
        return best
