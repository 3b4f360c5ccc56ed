"""Fitting a form to recordings: epochs of Adam, the best on the run held out is kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedimmune.adaptive.description import Epoch
from fedimmune.adaptive.forms import Form, Inputs
from fedimmune.adaptive.inventing import lengthen
from fedimmune.adaptive.recordings import Recording
from fedimmune.errors import InputError

__all__ = ["Epoch", "Examples", "examples_of", "fit"]

_LENGTHENED = 0.25


@dataclass(frozen=True)
class Examples:
    """Rounds with the same number of clients, ready to be learned from.

    Parameters
    ----------
    inputs
        What the form reads, one row per round.
    attackers
        Who attacks, (rounds, n).
    """

    inputs: Inputs
    attackers: Tensor

    def __len__(self) -> int:
        return len(self.attackers)

    def take(self, rows: Tensor) -> Examples:
        """Return some of the rounds."""
        inputs = {name: tensor[rows] for name, tensor in self.inputs.items()}
        return Examples(inputs, self.attackers[rows])


def examples_of(
    form: Form,
    recordings: Sequence[Recording],
    *,
    random: torch.Generator | None = None,
) -> list[Examples]:
    """Prepare recordings for a form; rounds with the same number of clients come together.

    Parameters
    ----------
    form
        What will read them.
    recordings
        Of one model.
    random
        With it, a quarter of the rounds is there a second time, with other lengths (`lengthen`).

    Raises
    ------
    InputError
        There is no round that the form would learn from.
    """
    by_clients: dict[int, list[Recording]] = {}
    for recording in recordings:
        by_clients.setdefault(recording.attackers.shape[1], []).append(recording)
    prepared = []
    for _, group in sorted(by_clients.items()):
        grams = torch.cat([recording.grams_with(*form.references) for recording in group])
        attackers = torch.cat([recording.attackers for recording in group])
        if random is not None:
            some = torch.rand(len(grams), generator=random) < _LENGTHENED
            longer, attack = lengthen(grams[some], attackers[some], random)
            grams, attackers = torch.cat([grams, longer]), torch.cat([attackers, attack])
        every = Examples(form.prepare(grams), attackers)
        prepared.append(every.take(form.usable(every.inputs)))
    if recordings and not any(map(len, prepared)):
        raise InputError("every round has diverged beyond the form's `limit`: none is left")
    return [group for group in prepared if len(group)]


def fit(
    form: Form,
    to_train: Sequence[Examples],
    to_validate: Sequence[Examples],
    *,
    epochs: int = 500,
    batch: int = 32,
    lr: float = 1e-3,
    seed: int = 1,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> list[Epoch]:
    """Train a form in place with Adam, and leave it as it was at its best validation epoch.

    Parameters
    ----------
    form
        What learns.
    to_train, to_validate
        Rounds of different runs.
    epochs, batch, lr, seed
        Of the training.
    on_epoch
        Called after every epoch.

    Returns
    -------
    list of Epoch
        The learning curve.
    """
    if not to_train or not to_validate:
        raise InputError(
            "there have to be rounds to train on and rounds of another run to validate"
        )
    random = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(form.parameters(), lr=lr, fused=True)
    best, best_state = float("inf"), copy.deepcopy(form.state_dict())
    curve = []
    for number in range(1, epochs + 1):
        form.train()
        total, count = 0.0, 0
        for examples in _batches(to_train, batch, random):
            optimiser.zero_grad()
            inputs = form.augmented(examples.inputs, random)
            loss = form.loss(inputs, form(inputs), examples.attackers)
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(examples)
            count += len(examples)
        curve.append(Epoch(number, total / count, _validate(form, to_validate)))
        if curve[-1].validation < best:
            best, best_state = curve[-1].validation, copy.deepcopy(form.state_dict())
        on_epoch(curve[-1])
    form.load_state_dict(best_state)
    form.eval()
    return curve


def _batches(groups: Sequence[Examples], size: int, random: torch.Generator) -> Iterator[Examples]:
    """Shuffle rounds and cut them into batches, each of one number of clients."""
    chosen = [
        (group, rows)
        for group in groups
        for rows in torch.randperm(len(group), generator=random).split(size)
    ]
    for position in torch.randperm(len(chosen), generator=random).tolist():
        group, rows = chosen[position]
        yield group.take(rows)


@torch.no_grad()
def _validate(form: Form, groups: Sequence[Examples]) -> float:
    form.eval()
    losses = [
        float(form.choosing_loss(g.inputs, form(g.inputs), g.attackers)) * len(g) for g in groups
    ]
    return sum(losses) / sum(len(g) for g in groups)
