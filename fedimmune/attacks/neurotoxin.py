"""Neurotoxin: a backdoor in the coordinates that honest clients hardly move.

Zhang et al., *Neurotoxin: Durable Backdoors in Federated Learning*, ICML 2022. Nobody writes over
what is stored there, so it stays when attackers have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedimmune.attacks.any_backdoor import AnyBackdoor, flat
from fedimmune.attacks.backdoor import Backdoor, Pattern
from fedimmune.attacks.base import Context
from fedimmune.validation import check_open_fraction

__all__ = ["Neurotoxin"]

_BATCH = 128


class Neurotoxin(AnyBackdoor):
    """Train a backdoor in the coordinates alone that honest clients move least.

    What honest clients move is seen in the last global update; in the first round, it is the
    gradient of the cross-entropy over the attacker's own samples.

    Parameters
    ----------
    ratio
        Share of all coordinates that are trained, of all layers together: those that move least.
        The authors' program is run with 0.95 to 0.99.
    **pattern
        As for `backdoor`. On text and tables, a phrase or a value stands for the pattern.
    """

    name = "neurotoxin"
    summary = "trains a backdoor in the coordinates that honest clients move least"
    paper = "Zhang et al. 2022"
    label = "Neurotoxin"
    ranges = {**Backdoor.ranges, "ratio": (0.9, 0.99)}
    needs_previous_model = True

    def __init__(self, *, ratio: float = 0.95, **pattern: Unpack[Pattern]) -> None:
        super().__init__(**pattern)
        self.ratio = check_open_fraction(self.name, "ratio", ratio, 1)
        self._spared: dict[str, Tensor] = {}

    def on_step(self, model: nn.Module, context: Context) -> None:
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if context.moment == "before":
            if context.step == 1:
                self._spared = self._masks(model, weights, context)
            for name, weight in weights.items():
                if weight.grad is not None:
                    weight.grad.masked_fill_(self._spared[name], 0)
        else:  # decay, and a momentum of earlier rounds, move what has no gradient
            for name, weight in weights.items():
                start = context.global_model[name].to(weight.device)
                weight.copy_(torch.where(self._spared[name], start, weight))

    def _masks(
        self, model: nn.Module, weights: Mapping[str, Tensor], context: Context
    ) -> dict[str, Tensor]:
        """Say of every coordinate whether it is among those that move most."""
        before, now = context.previous_model, context.global_model
        honest = (
            _gradient(model, context)
            if before is None
            else {name: now[name] - before[name] for name in weights}
        )
        size = flat(honest[name] for name in weights).abs()
        spared = torch.zeros_like(size, dtype=torch.bool)
        spared[size.topk(round((1 - self.ratio) * len(size))).indices] = True
        parts = spared.split([weight.numel() for weight in weights.values()])
        return {
            name: part.reshape(weight.shape).to(weight.device)
            for (name, weight), part in zip(weights.items(), parts, strict=True)
        }


def _gradient(model: nn.Module, context: Context) -> dict[str, Tensor]:
    """Sum the gradients over the client's own samples, on a copy: statistics stay as they are."""
    assert context.samples is not None
    samples, copy = context.samples(), deepcopy(model)
    device = next(copy.parameters()).device
    copy.zero_grad()
    with torch.enable_grad():
        for inputs, labels in zip(
            samples.inputs.split(_BATCH), samples.labels.split(_BATCH), strict=True
        ):
            cross_entropy(copy(inputs.to(device)), labels.to(device), reduction="sum").backward()
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in copy.named_parameters()
    }
