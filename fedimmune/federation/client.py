"""What a client does in a round: it trains the global model on its data and sends the change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedimmune.attacks import Attack, Context
from fedimmune.federation.scenario import ResolvedScenario
from fedimmune.federation.seeds import generator, seeded
from fedimmune.tasks import Samples, Task

__all__ = ["batches", "train_client", "write_update"]

_MOMENTUM = "momentum_buffer"
"""What PyTorch calls it."""


def batches(indices: Tensor, size: int, random: torch.Generator) -> Iterator[Tensor]:
    """Shuffle a client's samples and cut them into batches, for one epoch.

    The incomplete last batch is dropped; a client with less than one batch uses what it has.
    """
    order = indices[torch.randperm(len(indices), generator=random)]
    whole = len(order) // size * size
    yield from (order[:whole] if whole else order).split(size)


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
) -> None:
    """Train a model in place, as one client does in one round.

    Parameters
    ----------
    model
        Holds the global model; on the scenario's device.
    task
        Says what to minimise.
    samples
        All clients' samples.
    indices
        Which of them are this client's.
    scenario
        Epochs, batch size, optimiser, seed.
    client
        What randomness depends on, besides the seed and the round.
    attack
        What the client does; an honest one has `NoAttack`.
    context
        What the attack is told about the round.
    momentum
        What the client's optimiser resumes with, by layer, 0 at first; it is left there for the
        next round. None to start afresh.
    """
    device, round_number = torch.device(scenario.device), context.round
    on_batch = attack.on_batch if attack.overrides("on_batch") else None
    on_loss = attack.on_loss if attack.overrides("on_loss") else None
    on_step = attack.on_step if attack.overrides("on_step") else None
    before, after = replace(context, moment="before"), replace(context, moment="after")
    random = generator(scenario.seed, "batches", round_number, client)
    optimiser = scenario.optimiser.make(model)
    if momentum is not None:
        for name, weight in model.named_parameters():
            going_on = torch.empty_like(weight).copy_(momentum[name])
            optimiser.state[weight][_MOMENTUM] = going_on
    model.train()
    with seeded(scenario.seed, "training", round_number, client):
        for _ in range(scenario.local_epochs):
            for batch in batches(indices, scenario.batch, random):
                inputs = samples.inputs.index_select(0, batch)
                labels = samples.labels.index_select(0, batch)
                inputs = task.augment(inputs)
                if on_batch is not None:
                    inputs, labels = on_batch(inputs, labels, context)
                optimiser.zero_grad()
                loss = task.loss(model(inputs.to(device)), labels.to(device))
                if on_loss is not None:
                    loss = on_loss(loss, model, context)
                loss.backward()
                if on_step is not None:
                    with torch.no_grad():
                        on_step(model, before)
                optimiser.step()
                if on_step is not None:
                    with torch.no_grad():
                        on_step(model, after)
    if momentum is not None:
        for name, weight in model.named_parameters():
            momentum[name].copy_(optimiser.state[weight][_MOMENTUM])


def write_update(
    model: nn.Module, global_model: Mapping[str, Tensor], update: Mapping[str, Tensor]
) -> None:
    """Write what a trained model has that the global one has not into the tensors of `update`."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.dtype == torch.bool:
                torch.logical_xor(tensor.cpu(), global_model[name], out=update[name])
            else:
                torch.sub(tensor.cpu(), global_model[name], out=update[name])
