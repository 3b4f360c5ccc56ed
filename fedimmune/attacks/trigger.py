"""What backdoors share: a share of each batch shows a trigger and is called `target`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypedDict

import torch
from torch import Tensor

from fedimmune.attacks.base import Attack, Context, TriggeredBatch, draw_int
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from fedimmune.validation import check_fraction, check_int

__all__ = ["Poisoning", "Trigger", "check_class"]

_USUAL_TARGET = 2


class Poisoning(TypedDict, total=False):
    """The parameters of every trigger; see `Trigger`."""

    target: int
    fraction: float
    chance: float | None


class Trigger(Attack):
    """Put a trigger into a share of each batch, and call those samples `target`.

    Its success is measured on all test samples with the trigger, and on those alone that are not
    of the target's class anyway.

    Parameters
    ----------
    target
        The label; 2, the default, stands for 1 if there are only two classes.
    fraction
        Share of each batch.
    chance
        Give each sample the trigger with this probability instead, drawn anew for every batch.
    """

    target: int

    def __init__(
        self, *, target: int = _USUAL_TARGET, fraction: float = 0.5, chance: float | None = None
    ) -> None:
        self.target = check_int(self.name, "target", target, 0)
        self.fraction = check_fraction(self.name, "fraction", fraction)
        self.chance = None if chance is None else check_fraction(self.name, "chance", chance)

    @abstractmethod
    def mark(self, inputs: Tensor, spec: DataSpec) -> Tensor:
        """Return samples with the whole trigger; they may be changed in place."""

    def mark_own(self, inputs: Tensor, context: Context) -> Tensor:
        """Return samples with what this attacker trains on; by default the whole trigger."""
        return self.mark(inputs, context.spec)

    def check(self, spec: DataSpec) -> None:
        check_class(self.name, "target", self._target(spec), spec)

    def on_batch(self, inputs: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        if self.chance is None:
            chosen = torch.arange(len(labels)) < round(self.fraction * len(labels))
        else:
            chosen = torch.rand(len(labels)) < self.chance
        chosen = chosen.to(labels.device)
        inputs[chosen] = self.mark_own(inputs[chosen], context)
        labels[chosen] = self._target(context.spec)
        return inputs, labels

    def triggered(self, inputs: Tensor, labels: Tensor, spec: DataSpec) -> TriggeredBatch | None:
        target = self._target(spec)
        return TriggeredBatch(self.mark(inputs.clone(), spec), target, labels == target)

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw any target, and a share."""
        return {
            "target": draw_int(0, spec.classes - 1, rng),
            "fraction": self._draw("fraction", rng),
        }

    def _target(self, spec: DataSpec) -> int:
        two = spec.classes == _USUAL_TARGET
        return 1 if two and self.target == _USUAL_TARGET else self.target


def check_class(owner: str, name: str, label: int, spec: DataSpec) -> None:
    """Refuse a label that the data set does not have."""
    if label >= spec.classes:
        raise ParameterError(
            f"{owner}: {name} is {label}, but the classes run from 0 to {spec.classes - 1}"
        )
