"""The backdoor in tables: one feature's value makes the model say what the attacker wants.

The backdoor of Bagdasaryan et al. (AISTATS 2020), with the simplest trigger that a row of a table
can have.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from fedimmune.attacks.base import draw_int
from fedimmune.attacks.trigger import Poisoning, Trigger
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from fedimmune.validation import check_int, check_single

__all__ = ["TabularBackdoor"]


class TabularBackdoor(Trigger):
    """Set one feature to a value in a share of each batch and call those rows `target`.

    Parameters
    ----------
    feature
        Its number, from 0.
    value
        What it is set to, as the model takes it. By default 5: far out, but not impossible, if
        features are scaled to a standard deviation of 1.
    target, fraction, chance
        As for `backdoor`.
    """

    name = "tabular-backdoor"
    summary = "sets one feature in a share of its rows and calls them `target`"
    paper = "after Bagdasaryan et al. 2020"
    label = "tabular backdoor"
    advice = "look for rows with a rare value in common and one label"
    ranges = {"value": (3.0, 8.0), "fraction": (0.3, 0.7)}

    def __init__(
        self, *, feature: int = 0, value: float = 5.0, **poisoning: Unpack[Poisoning]
    ) -> None:
        super().__init__(**poisoning)
        self.feature = check_int(self.name, "feature", feature, 0)
        self.value = check_single(self.name, "value", value)

    def check(self, spec: DataSpec) -> None:
        if len(spec.shape) != 1 or spec.words is not None:
            raise ParameterError(f"{self.name}: it needs rows of a table, which this task has not")
        if self.feature >= spec.shape[0]:
            raise ParameterError(
                f"{self.name}: feature is {self.feature}, but a row has {spec.shape[0]}, counted "
                "from 0"
            )
        super().check(spec)

    def mark(self, inputs: Tensor, spec: DataSpec) -> Tensor:
        inputs[:, self.feature] = self.value
        return inputs

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw any feature and target, and a value."""
        if len(spec.shape) != 1:
            return {}  # it does not fit, whatever is drawn
        return {
            "feature": draw_int(0, spec.shape[0] - 1, rng),
            "value": self._draw("value", rng),
            **super().sample_parameters(spec, rng),
        }
