"""Projected gradient descent: a backdoor that never leaves a ball around the global model.

Sun, Kairouz, Suresh, McMahan, *Can You Really Backdoor Federated Learning?*, 2019; Wang et al.,
*Attack of the Tails: Yes, You Really Can Backdoor Federated Learning*, NeurIPS 2020. Against
servers that bound the length of updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor, nn

from fedimmune.attacks.any_backdoor import AnyBackdoor, flat, moved, multiply, trained
from fedimmune.attacks.backdoor import Backdoor, Pattern
from fedimmune.attacks.base import Context
from fedimmune.validation import check_float, check_int

__all__ = ["ProjectedGradientDescent"]


class ProjectedGradientDescent(AnyBackdoor):
    """Train a backdoor, and pull the model back to within `radius` of the global one.

    Parameters
    ----------
    radius
        Of the ball, over all trained parameters together: about as long as an honest update. The
        authors' program has 0.25 on digits and 2 on CIFAR-10.
    every
        Number of steps between two projections; 10 in the authors' program. What is sent is in the
        ball in any case.
    scale
        How many times the projected update is sent; n/f replaces the model, as `scaling` does.
    **pattern
        As for `backdoor`. On text and tables, a phrase or a value stands for the pattern.
    """

    name = "pgd"
    summary = "trains a backdoor within a ball around the global model"
    paper = "Sun et al. 2019; Wang et al. 2020"
    label = "projected gradient descent"
    symbols = {"radius": "ε"}
    ranges = {**Backdoor.ranges, "radius": (0.25, 2.0), "every": (1, 10), "scale": (1.0, 2.5)}

    def __init__(
        self,
        *,
        radius: float = 0.5,
        every: int = 10,
        scale: float = 1.0,
        **pattern: Unpack[Pattern],
    ) -> None:
        super().__init__(**pattern)
        self.radius = check_float(self.name, "radius", radius, 0)
        self.every = check_int(self.name, "every", every, 1)
        self.scale = check_float(self.name, "scale", scale, 0)

    def on_step(self, model: nn.Module, context: Context) -> None:
        if context.moment != "after" or context.step % self.every:
            return
        away = moved(model, context.global_model)
        shorter = self._shorter(flat(away.values()))
        if shorter < 1:
            for name, weight in model.named_parameters():
                if name in away:
                    weight.sub_((1 - shorter) * away[name])

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        multiply(update, self._shorter(trained(update)) * self.scale)

    def _shorter(self, away: Tensor) -> float:
        """Return the factor that brings a vector into the ball: at most 1."""
        length = float(torch.linalg.vector_norm(away, dtype=torch.float64))
        return min(1.0, self.radius / length) if length else 1.0
