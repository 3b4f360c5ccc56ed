"""What attacks share that train a backdoor in a way of their own, on data of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedimmune._layers import Kind, layers_of
from fedimmune.attacks.backdoor import Backdoor
from fedimmune.attacks.tabular_backdoor import TabularBackdoor
from fedimmune.attacks.text_backdoor import TextBackdoor
from fedimmune.attacks.trigger import Trigger
from fedimmune.tasks import DataSpec

__all__ = ["AnyBackdoor", "flat", "moved", "multiply", "trained"]


class AnyBackdoor(Backdoor):
    """The backdoor that fits the data: bars in images, a phrase in text, a value in tables.

    Parameters
    ----------
    **pattern
        As for `backdoor`. On text and tables, `target`, `fraction` and `chance` alone matter; the
        phrase and the value are those of `text-backdoor` and `tabular-backdoor` by default.
    """

    def check(self, spec: DataSpec) -> None:
        other = self._other(spec)
        if other is None:
            super().check(spec)
        else:
            other.check(spec)

    def mark(self, inputs: Tensor, spec: DataSpec) -> Tensor:
        other = self._other(spec)
        return super().mark(inputs, spec) if other is None else other.mark(inputs, spec)

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw a pattern, or what text and tables have of it, and what is the attack's own."""
        of_images = spec.highest is not None
        drawn = (Backdoor if of_images else Trigger).sample_parameters(self, spec, rng)
        own = [name for name in self.ranges if name not in Backdoor.ranges]
        return drawn | {name: self._draw(name, rng) for name in own}

    def _other(self, spec: DataSpec) -> Trigger | None:
        """Return the backdoor of text or tables; None if the data is images, or nothing known."""
        kind = TabularBackdoor if spec.words is None else TextBackdoor
        if spec.highest is not None or len(spec.shape) != 1:
            return None
        return kind(target=self.target, fraction=self.fraction, chance=self.chance)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Join tensors to one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def trained(update: Mapping[str, Tensor]) -> Tensor:
    """Join an update's trained parameters to one vector."""
    names = [layer.name for layer in layers_of(update) if layer.kind is Kind.PARAMETER]
    return flat(update[name] for name in names)


def moved(model: nn.Module, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return how far a model's parameters are from those it started with, by layer."""
    return {
        name: weight - start[name].to(weight.device)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def multiply(update: Mapping[str, Tensor], scale: float) -> None:
    """Multiply an update in place: all but counters, which no rule averages."""
    for tensor in update.values():
        if tensor.is_floating_point():
            tensor.mul_(scale)
