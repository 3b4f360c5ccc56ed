"""Local model poisoning: made against one rule, the trimmed mean (and the median) or Krum.

Fang, Cao, Jia, Gong, *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, USENIX
Security 2020; with full knowledge of the honest updates. The paper forges local models; the same is
done here to updates, as in the programs of the authors' group.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedimmune.attacks.base import Context, draw_int
from fedimmune.attacks.collusion import Collusion, Seen, State
from fedimmune.rules.krum import Krum
from fedimmune.tasks import DataSpec
from fedimmune.updates import Updates
from fedimmune.validation import check_choice, check_float

__all__ = ["LocalModelPoisoning"]

_AGAINST = ("trim", "krum")
_SMALLEST = 1e-5


class LocalModelPoisoning(Collusion):
    """Push the aggregate against the direction that it would take, as one rule lets it.

    Against ``trim``, attackers send values just beyond the honest extreme, at every coordinate on
    the side against the sign of the honest sum: between the honest minimum (or maximum) m and
    `scale` · m or m / `scale`, whichever lies outside; each attacker draws its own. Against
    ``krum``, all send −λ times the signs of the honest update that Krum would choose, with λ
    halved from the paper's bound until Krum chooses it.

    Which rule the server has is guessed with `against`; it is not looked at.

    Parameters
    ----------
    against
        ``trim`` (trimmed mean and median) or ``krum``.
    scale
        With ``trim``: how far beyond the extreme, as a factor above 1; the paper's b.
    """

    name = "fang"
    summary = "sends values just beyond the honest ones (trim), or −λ · signs that Krum picks"
    paper = "Fang et al. 2020"
    label = "local model poisoning"
    advice = "check the sign and the size of what you send: it lies at the edge of what others send"
    symbols = {"scale": "b"}
    ranges = {"scale": (1.5, 4.0)}
    needs_training = False

    def __init__(self, *, against: str = "trim", scale: float = 2.0) -> None:
        self.against = check_choice(self.name, "against", against, _AGAINST)
        self.scale = check_float(self.name, "scale", scale, 1)

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw a rule and a factor."""
        return super().sample_parameters(spec, rng) | {"against": _AGAINST[draw_int(0, 1, rng)]}

    def collude(self, seen: Seen, context: Context) -> Updates:
        if self.against == "krum":
            return seen.send(_past_krum(seen))
        lowest, highest = seen.extremes()
        hostile: list[dict[str, Tensor]] = [{} for _ in seen.clients]
        for name, mean in seen.trained(seen.mean).items():
            extreme = torch.where(mean > 0, lowest[name], highest[name])
            outward = torch.where(mean * extreme > 0, 1 / self.scale, self.scale)
            for state in hostile:
                drawn = torch.rand(mean.shape, generator=context.rng).to(mean)
                state[name] = extreme * (1 + (outward - 1) * drawn)
        return seen.send(*hostile)


def _past_krum(seen: Seen) -> State:
    """Return −λ · s: s the signs of Krum's honest choice, λ the largest tried that Krum chooses."""
    honest, attackers = len(seen.honest), len(seen.attackers)
    n = honest + attackers
    chosen = int(_krum(seen.products().sum(0), 0)) if honest > 2 else 0
    client = seen.honest.clients[chosen]
    signs = {k: v.sign() for k, v in seen.trained(seen.honest.state(client)).items()}
    gram = seen.products(signs).sum(0)
    factor = _bound(gram, n, attackers)
    rows = torch.eye(n, honest + 1, dtype=torch.float64)
    while n > 2 and factor > _SMALLEST:
        rows[honest:] = 0
        rows[honest:, -1] = -factor
        if _krum(rows @ gram @ rows.T, attackers) >= honest:
            break
        factor /= 2
    return seen.trained(signs, -factor)


def _krum(gram: Tensor, attackers: int) -> int:
    rule = Krum(attackers=min(attackers, (len(gram) - 3) // 2))
    return int(rule.weights_from_gram(gram).weight.argmax())


def _bound(gram: Tensor, n: int, attackers: int) -> float:
    """The paper's upper bound of λ, from inner products of the honest updates and the signs."""
    norms = gram.diagonal()[:-1]
    apart = (norms[:, None] + norms[None, :] - 2 * gram[:-1, :-1]).clamp(min=0).sqrt()
    nearest = apart.sort(1).values[:, : max(1, n - attackers - 2) + 1].sum(1)
    root = math.sqrt(max(1.0, float(gram[-1, -1])))
    spread = float(nearest.min()) / max(1, n - 2 * attackers - 1)
    return (spread + float(norms.clamp(min=0).sqrt().max())) / root
