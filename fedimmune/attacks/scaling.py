"""Model replacement: a backdoored model, scaled up so that it survives the averaging.

Bagdasaryan, Veit, Hua, Estrin, Shmatikov, *How To Backdoor Federated Learning*, AISTATS 2020. If
the honest updates nearly cancel out, n times a single attacker's update makes the mean of n
clients the attacker's model; f attackers share the work, n/f each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor

from fedimmune.attacks.any_backdoor import AnyBackdoor, multiply, trained
from fedimmune.attacks.backdoor import Backdoor, Pattern
from fedimmune.attacks.base import Context
from fedimmune.errors import ParameterError
from fedimmune.validation import check_float

__all__ = ["Scaling"]


class Scaling(AnyBackdoor):
    """Train a backdoor and send the update times `scale`.

    Floating-point buffers are scaled too; counters are sent as they are.

    Parameters
    ----------
    scale
        How many times the update. By default n/f, clients over attackers.
    bound
        Train-and-scale instead: make every update this long, whatever its length was, because the
        server admits no longer ones.
    **pattern
        As for `backdoor`. On text and tables, a phrase or a value stands for the pattern.
    """

    name = "scaling"
    aliases = ("model-replacement",)
    summary = "trains a backdoor and sends its update times `scale`"
    paper = "Bagdasaryan et al. 2020"
    label = "model replacement"
    advice = (
        "check the size of what you send, and look for samples with a mark in common and one label"
    )
    symbols = {"scale": "γ", "bound": "S"}
    ranges = {**Backdoor.ranges, "scale": (1.0, 10.0)}

    def __init__(
        self,
        *,
        scale: float | None = None,
        bound: float | None = None,
        **pattern: Unpack[Pattern],
    ) -> None:
        super().__init__(**pattern)
        self.scale = None if scale is None else check_float(self.name, "scale", scale, 0)
        self.bound = None if bound is None else check_float(self.name, "bound", bound, 0)
        if self.scale is not None and self.bound is not None:
            raise ParameterError(f"{self.name}: give scale or bound, not both")

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        scale = self.scale
        if self.bound is not None:
            length = float(torch.linalg.vector_norm(trained(update), dtype=torch.float64))
            scale = self.bound / length if length else 1.0
        elif scale is None:
            scale = context.clients / context.attackers
        multiply(update, scale)
