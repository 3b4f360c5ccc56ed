"""Noise: attackers send normally distributed numbers in place of an update.

Blanchard et al., *Machine Learning with Adversaries*, NeurIPS 2017, with a deviation of 200. What
programs call Gaussian differs in the deviation (1, 0.1 about 0.1, or 10 added to the model).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedimmune._layers import Kind, layers_of
from fedimmune.attacks.base import Context
from fedimmune.attacks.collusion import Collusion, Seen
from fedimmune.updates import Updates
from fedimmune.validation import check_float

__all__ = ["Gaussian"]


class Gaussian(Collusion):
    """Replace the trained layers' update by noise, each attacker by its own.

    In thousands of dimensions noise is at right angles to everything, and the noise of several
    attackers cancels in part: FedAvg loses the attackers' share of each step, and little else until
    the noise is far longer than an honest update.

    Parameters
    ----------
    scale
        How many times as long as the honest updates are on average; that takes the knowledge
        ``everyone``.
    deviation
        The noise's standard deviation instead: then attackers need to know nobody's update
        (knowledge ``own``), and `scale` has no meaning.
    """

    name = "gaussian"
    summary = "sends noise, twice as long as honest updates or with a given deviation"
    paper = "Blanchard et al. 2017"
    label = "noise"
    advice = "check that what you send is your model after training, and is not damaged on the way"
    ranges = {"scale": (1.0, 10.0)}

    def __init__(self, *, scale: float = 2.0, deviation: float | None = None) -> None:
        self.scale = check_float(self.name, "scale", scale, 0)
        self.deviation = (
            None if deviation is None else check_float(self.name, "deviation", deviation, 0)
        )
        self.knowledge = "everyone" if deviation is None else "own"
        self.needs_training = deviation is not None  # which its buffers are from

    def overrides(self, method: str) -> bool:
        return method == ("on_round" if self.deviation is None else "on_update")

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        if self.deviation is not None:
            for layer in layers_of(update):
                if layer.kind is Kind.PARAMETER:
                    tensor = update[layer.name]
                    tensor.copy_(self.deviation * _noise(tensor, context.rng))

    def collude(self, seen: Seen, context: Context) -> Updates:
        if self.deviation is not None:
            return seen.attackers
        lengths = seen.products().sum(0).diagonal().sqrt()
        size = sum(layer.size for layer in seen.layers)
        deviation = self.scale * float(lengths.mean()) / math.sqrt(size)
        shapes = seen.trained(seen.mean)
        return seen.send(
            *(
                {name: deviation * _noise(tensor, context.rng) for name, tensor in shapes.items()}
                for _ in seen.clients
            )
        )


def _noise(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng).to(like)
