"""Importance: which layers, and what about them, a defence looks at.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, measure feature i
by imptz(i) = Σⱼ |Wᵢⱼ| over the first layer of the key's encoder, and sum it up by layer of the
model to find the traits of an attack. That is what is done here for their form; the relational form
reads a client in two parts, alone and against the estimate, and both are added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedimmune.adaptive.defence import Defence

__all__ = ["Importance", "importance_of"]


@dataclass(frozen=True)
class Importance:
    """How much a defence makes of what it is told.

    Features are not brought to a common unit, as in the paper: it says how strongly the network
    reacts to a feature, not how often the feature differs.

    Parameters
    ----------
    by_layer
        The sum over a layer's features, by the layer's name, in the model's order.
    by_kind
        The sum over all layers, by what is measured there: a principal component in the paper's
        form, such as the length or the cosine to the server's update in the relational form.
    """

    by_layer: Mapping[str, float]
    by_kind: Mapping[str, float]

    @property
    def most_telling(self) -> str:
        """Name of the layer that matters most."""
        return max(self.by_layer, key=lambda name: self.by_layer[name])


@torch.no_grad()
def importance_of(defence: Defence) -> Importance:
    """Sum up the importance of a defence's features."""
    names = list(defence.about.layers)
    by_layer = dict.fromkeys(names, 0.0)
    by_kind: dict[str, float] = {}
    for part in defence.form.first_layers():
        reactions = part.weight.abs().sum(0).tolist()
        for feature, reaction in zip(part.features, reactions, strict=True):
            by_layer[names[feature.layer]] += reaction
            by_kind[feature.kind] = by_kind.get(feature.kind, 0.0) + reaction
    return Importance(by_layer, by_kind)
