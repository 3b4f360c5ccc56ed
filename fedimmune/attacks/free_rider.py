"""Free riders: who sends something without having trained, to get the model for nothing.

Lin, Du, Liu, *Free-riders in Federated Learning: Attacks and Defenses*, 2019 (arXiv:1911.12560);
Fraboni, Vidal, Lorenzi, *Free-rider Attacks on Model Aggregation in Federated Learning*, AISTATS
2021. They poison nothing: the federation learns more slowly, as if they had no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedimmune._layers import Kind, layers_of
from fedimmune.attacks.base import Attack, Context, draw_int
from fedimmune.tasks import DataSpec
from fedimmune.validation import check_choice, check_float

__all__ = ["FreeRider"]

_KINDS = ("zero", "repeated", "noisy")


class FreeRider(Attack):
    """Send what takes no training.

    FedAvg still learns, only more slowly: with ``zero`` its steps are shorter by the free riders'
    share, and a repeated step points where the last did, like momentum.

    Parameters
    ----------
    kind
        ``zero``: no change, that is, the global model as it came. ``repeated``: the global model's
        last change. ``noisy``: that and noise, so that no two free riders send the same. In the
        first round nothing has changed yet, and all send zeros.
    scale
        With ``noisy``: how many times as long as the last change the noise is.
    """

    name = "free-rider"
    summary = "sends no change, the global model's last one, or that with noise"
    paper = "Lin et al. 2019; Fraboni et al. 2021"
    label = "free rider"
    advice = "check that you do train: what you send looks like the model that you were sent"
    ranges = {"scale": (0.1, 1.0)}

    def __init__(self, *, kind: str = "repeated", scale: float = 0.5) -> None:
        self.kind = check_choice(self.name, "kind", kind, _KINDS)
        self.scale = check_float(self.name, "scale", scale, 0)
        self.needs_previous_model = kind != "zero"

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw a kind and a length of the noise."""
        return super().sample_parameters(spec, rng) | {"kind": _KINDS[draw_int(0, 2, rng)]}

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        before = context.previous_model
        for layer in layers_of(update):
            tensor = update[layer.name]
            if before is None or self.kind == "zero" or layer.kind is Kind.COUNTER:
                tensor.zero_()
                continue
            tensor.copy_(context.global_model[layer.name] - before[layer.name])
            if self.kind == "noisy" and layer.kind is Kind.PARAMETER:
                deviation = self.scale * float(tensor.double().square().mean().sqrt())
                noise = torch.randn(tensor.shape, generator=context.rng)
                tensor.add_(noise.to(tensor), alpha=deviation)
