"""How good a model is, and how far an attack has come: counted in pieces, added up exactly."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Self

import torch
from torch import Tensor, nn

from fedimmune.attacks import Attack
from fedimmune.tasks import Facts, Samples, Task

__all__ = ["PIECE", "Counts", "test_piece"]

PIECE = 500
"""Test samples at a time. Fixed, so that the same sums come out whoever computes them."""


@dataclass(frozen=True)
class Counts:
    """What was counted on test samples.

    Parameters
    ----------
    samples, correct
        How many there were, and how many were classified rightly.
    loss
        Sum over them.
    tried, hits
        On how many the attack was tried, and how often the model said the target.
    tried_others, hits_others
        The same, without the samples that truly are of the target's class.
    """

    samples: int = 0
    correct: int = 0
    loss: float = 0.0
    tried: int = 0
    hits: int = 0
    tried_others: int = 0
    hits_others: int = 0

    def __add__(self, other: Self) -> Self:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return type(self)(**sums)

    @property
    def accuracy(self) -> float:
        """Share of the samples that were classified rightly (ACC)."""
        return self.correct / self.samples

    @property
    def mean_loss(self) -> float | None:
        """Mean over the samples; None where it is not finite."""
        return self.loss / self.samples if isfinite(self.loss) else None

    @property
    def asr(self) -> float | None:
        """Share of all tried samples on which the attack succeeded, as the paper has it."""
        return self.hits / self.tried if self.tried else None

    @property
    def asr_others(self) -> float | None:
        """The same among samples that are not of the target's class: 0 for a perfect model."""
        return self.hits_others / self.tried_others if self.tried_others else None

    @property
    def accuracy_without_success(self) -> float | None:
        """ACC · (1 − ASR); None where the attack has no target."""
        return None if self.asr is None else self.accuracy * (1 - self.asr)


@torch.no_grad()
def test_piece(
    model: nn.Module,
    task: Task,
    samples: Samples,
    indices: Tensor,
    attack: Attack,
    facts: Facts,
    device: torch.device,
) -> Counts:
    """Test a model on a few samples, by their numbers."""
    model.eval()
    inputs = samples.inputs.index_select(0, indices).to(device)
    labels = samples.labels.index_select(0, indices).to(device)
    outputs = model(inputs)
    counts = Counts(
        samples=len(labels),
        correct=int((outputs.argmax(1) == labels).sum()),
        loss=float(task.loss(outputs, labels)) * len(labels),
    )
    shown = attack.triggered(inputs, labels, facts)
    if shown is None or not len(shown.inputs):
        return counts
    said = model(shown.inputs).argmax(1) == shown.target
    return counts + Counts(
        tried=len(said),
        hits=int(said.sum()),
        tried_others=int((~shown.is_target).sum()),
        hits_others=int((said & ~shown.is_target).sum()),
    )


test_piece.__test__ = False  # type: ignore[attr-defined]  # its name is not a test's
