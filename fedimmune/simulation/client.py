"""One client's training, and a model's test: counted in pieces, added up exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import count, islice
from math import isfinite
from typing import Self

import torch
from torch import Tensor, nn

from fedimmune.attacks import Attack, Context
from fedimmune.simulation.components import Oddity
from fedimmune.simulation.scenario import ResolvedScenario
from fedimmune.simulation.seeding import generator, seeded
from fedimmune.tasks import DataSpec, Samples, Task
from fedimmune.tasks.text import PADDING

__all__ = ["PIECE", "Counts", "batches", "odd_inputs", "test_piece", "train_client", "write_update"]

PIECE = 500
"""Test samples at a time. Fixed, so that sums do not depend on who computes them."""


@dataclass(frozen=True)
class Counts:
    """What was counted on test samples.

    Parameters
    ----------
    samples, correct
        How many there were, and how many were classified correctly.
    loss
        Sum over them.
    tried, hits
        On how many the attack was tried, and on how many the model predicted its target.
    tried_others, hits_others
        The same, without samples of the target's class.
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
        """Share of the samples that were classified correctly (ACC)."""
        return self.correct / self.samples

    @property
    def mean_loss(self) -> float | None:
        """Mean over the samples; None if it is not finite."""
        return self.loss / self.samples if isfinite(self.loss) else None

    @property
    def asr(self) -> float | None:
        """Share of all tried samples on which the attack succeeded, as the paper has it."""
        return self.hits / self.tried if self.tried else None

    @property
    def asr_others(self) -> float | None:
        """The same without samples of the target's class: 0 for a perfect model."""
        return self.hits_others / self.tried_others if self.tried_others else None

    @property
    def accuracy_without_success(self) -> float | None:
        """ACC · (1 − ASR); None if the attack has no target."""
        return None if self.asr is None else self.accuracy * (1 - self.asr)


@torch.no_grad()
def test_piece(
    model: nn.Module,
    task: Task,
    samples: Samples,
    indices: Tensor,
    attack: Attack,
    spec: DataSpec,
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
    shown = attack.triggered(inputs, labels, spec)
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


_MOMENTUM = "momentum_buffer"
"""PyTorch's name for it."""
_REPLACED = 0.3
"""Share of the words that a noisy text loses."""


def batches(indices: Tensor, size: int, random: torch.Generator) -> Iterator[Tensor]:
    """Shuffle a client's samples and cut them into the batches of one epoch.

    An incomplete last batch is dropped, unless it is the only one.
    """
    order = indices[torch.randperm(len(indices), generator=random)]
    whole = len(order) // size * size
    yield from (order[:whole] if whole else order).split(size)


def odd_inputs(inputs: Tensor, odd: Oddity | None, spec: DataSpec) -> Tensor:
    """Return a batch as a client with odd data has it; PyTorch is seeded."""
    if odd in {None, "one-class"}:
        return inputs
    if spec.words is not None:
        if odd == "inverted":
            return inputs.flip(1)
        other = torch.randint(1, max(2, spec.words), inputs.shape).to(inputs)
        replaced = (torch.rand(inputs.shape) < _REPLACED) & (inputs != PADDING)
        return torch.where(replaced, other, inputs)
    if odd == "inverted":
        return -inputs
    return inputs + (1 if odd == "brighter" else torch.randn_like(inputs))


def train_client(
    model: nn.Module,
    task: Task,
    samples: Samples,
    indices: Tensor,
    scenario: ResolvedScenario,
    *,
    client: int,
    attack: Attack,
    context: Context,
    momentum: Mapping[str, Tensor] | None = None,
    odd: Oddity | None = None,
) -> None:
    """Train a global model in place, as one client does in one round.

    Parameters
    ----------
    model, task, scenario
        On the scenario's device; the loss; the rest of the recipe.
    samples, indices
        All clients' samples, and which of them are this client's.
    client
        What randomness depends on, besides the seed and the round.
    attack, context
        What the client does, and what it knows; an honest one has `NoAttack`.
    momentum
        What the client's optimizer resumes with, by layer, 0 at first; updated in place for the
        next round. None to start afresh.
    odd
        What is odd about its data.
    """
    device, round_number = torch.device(scenario.device), context.round
    on_batch = attack.on_batch if attack.overrides("on_batch") else None
    on_loss = attack.on_loss if attack.overrides("on_loss") else None
    on_step = attack.on_step if attack.overrides("on_step") else None
    random = generator(scenario.seed, "batches", round_number, client)
    optimizer = scenario.optimizer.make(model)
    if momentum is not None:
        for name, weight in model.named_parameters():
            optimizer.state[weight][_MOMENTUM] = torch.empty_like(weight).copy_(momentum[name])
    model.train()
    step = 0
    with seeded(scenario.seed, "training", round_number, client):
        epochs = count() if scenario.local_steps else range(scenario.local_epochs)
        drawn = (batch for _ in epochs for batch in batches(indices, scenario.batch, random))
        for batch in islice(drawn, scenario.local_steps):
            inputs = samples.inputs.index_select(0, batch)
            labels = samples.labels.index_select(0, batch)
            inputs = odd_inputs(task.augment(inputs), odd, context.spec)
            if on_batch is not None:
                inputs, labels = on_batch(inputs, labels, context)
            step += 1
            optimizer.zero_grad()
            loss = task.loss(model(inputs.to(device)), labels.to(device))
            if on_loss is not None:
                loss = on_loss(loss, model, context)
            loss.backward()
            if on_step is not None:
                with torch.no_grad():
                    on_step(model, replace(context, moment="before", step=step))
            optimizer.step()
            if on_step is not None:
                with torch.no_grad():
                    on_step(model, replace(context, moment="after", step=step))
    if momentum is not None:
        for name, weight in model.named_parameters():
            momentum[name].copy_(optimizer.state[weight][_MOMENTUM])


def write_update(
    model: nn.Module, global_model: Mapping[str, Tensor], update: Mapping[str, Tensor]
) -> None:
    """Write the difference of a trained model to the global one into the tensors of `update`."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.dtype == torch.bool:
                torch.logical_xor(tensor.cpu(), global_model[name], out=update[name])
            else:
                torch.sub(tensor.cpu(), global_model[name], out=update[name])
