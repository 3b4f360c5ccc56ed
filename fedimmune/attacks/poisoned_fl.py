"""PoisonedFL: the same signs in every round, so that the rounds' harm adds up.

Xie, Fang, Gong, *Model Poisoning Attacks to Federated Learning via Multi-Round Consistency*, CVPR
2025 (arXiv:2404.15611). Attackers know the global models alone. Other attacks' updates point
elsewhere in every round, and cancel in part; here a random sign per coordinate is drawn once, and
only the sizes follow what the global model does.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.attacks.base import Attack, Context
from fedimmune.updates import Updates
from fedimmune.validation import check_float, check_int

__all__ = ["PoisonedFL"]

_SHRINK, _LEAST = 0.7, 0.5
_CERTAIN = NormalDist().inv_cdf(0.99)


class PoisonedFL(Attack):
    """Send c‖h‖ · (v / ‖v‖) ⊙ s: h the global model's last change, s fixed random signs.

    v is |h − (‖h‖ / ‖m‖) m| by coordinate, where m is what was sent last: large where the others
    moved the model otherwise than attackers wanted. The factor c starts at `scale`. Every `period`
    rounds the attackers count the coordinates whose sign the model has taken over since; fewer
    than chance would give in 99 of 100 cases mean that they were filtered out, and c shrinks by
    0.7, but not below 0.5.

    In the first round attackers send what they have trained: nothing is known yet. They need no
    data. FedAvg runs away exponentially with ``scale · f / n`` above 1.

    Parameters
    ----------
    scale
        What c starts at; the authors' program has 8 for Fashion-MNIST.
    period
        Rounds between two counts.
    seed
        Of the signs.
    """

    name = "poisoned-fl"
    summary = "sends the same signs in every round, sized by the global model's last change"
    paper = "Xie et al. 2025"
    label = "PoisonedFL"
    knowledge = "colluders"
    advice = "check that what you send depends on your data: it has pointed the same way for rounds"
    symbols = {"scale": "c"}
    ranges = {"scale": (2.0, 8.0), "seed": (0, 2**31 - 1)}
    needs_previous_model = True
    needs_memory = 2

    def __init__(self, *, scale: float = 8.0, period: int = 50, seed: int = 0) -> None:
        self.scale = check_float(self.name, "scale", scale, 0)
        self.period = check_int(self.name, "period", period, 1)
        self.seed = check_int(self.name, "seed", seed, 0, 2**63 - 1)

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Updates:
        now, before = context.global_model, context.previous_model
        # What was sent last, of length c, the only thing about its length that is used; and the
        # model at the last count.
        last, counted = context.memory
        if before is None:
            for name, tensor in counted.items():
                tensor.copy_(now[name])
            return attackers
        layers = attackers.of_kind(Kind.PARAMETER)
        names = [layer.name for layer in layers]
        moved = {name: now[name] - before[name] for name in names}
        signs = self._signs(moved)
        step, factor = _length(moved), _length({name: last[name] for name in names})
        pull = step / factor if factor else 0.0
        sizes = {name: (moved[name] - pull * last[name]).abs() for name in names}
        if not _length(sizes):  # the model stayed: c is the length of what is remembered
            sizes = {name: last[name].abs() for name in names}
        factor, total = factor or self.scale, _length(sizes)
        if context.round % self.period == 0:
            since = {name: now[name] - counted[name] for name in names}
            # Before anything was sent there is nothing that c can have failed at.
            if total and _SHRINK * factor >= _LEAST and not _taken_over(since, signs):
                factor *= _SHRINK
            for name, tensor in counted.items():
                tensor.copy_(now[name])
        for name in names:
            last[name].copy_(factor / (total or 1.0) * sizes[name] * signs[name])
        hostile = {name: step * last[name] for name in names}
        return Updates.from_states({c: attackers.state(c) | hostile for c in attackers.clients})

    def _signs(self, like: dict[str, Tensor]) -> dict[str, Tensor]:
        rng = torch.Generator().manual_seed(self.seed)
        return {
            name: torch.randint(0, 2, tensor.shape, generator=rng).mul_(2).sub_(1).to(tensor)
            for name, tensor in like.items()
        }


def _length(state: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in state.values()))


def _taken_over(since: dict[str, Tensor], signs: dict[str, Tensor]) -> bool:
    """Whether more coordinates moved as the signs say than chance would explain."""
    agree = sum(int((since[name].sign() == signs[name]).sum()) for name in signs)
    count = sum(tensor.numel() for tensor in signs.values())
    return agree >= count / 2 + _CERTAIN * math.sqrt(count) / 2
