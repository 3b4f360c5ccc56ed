"""One attacker's training, and the mean of a round, for tests of attacks that act in training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedimmune import Data, Samples, Scenario, Task, TrainingConfig
from fedimmune.aggregation import aggregate_safely
from fedimmune.rules.mean import Mean
from fedimmune.simulation.client import Counts
from fedimmune.simulation.federation import Federation
from fedimmune.tasks import load_data
from fedimmune.tasks.models.gru import WordGRU

__all__ = ["Effect", "Reviews", "effect", "flat_update", "sent_by_attackers"]

WORDS = 22


class Reviews(Task):
    """Texts of twelve words, one of which tells the class."""

    name = "reviews"
    summary = "words for and against"
    recipe = TrainingConfig(rounds=4, lr=1.0, batch=8, anchor=0)

    def load(self, place: Path) -> Data:
        vectors = torch.randn(WORDS, 16, generator=torch.Generator().manual_seed(3))
        extras = {"vectors": vectors}
        return Data(self._some(160, 0), self._some(80, 1), 2, extras=extras, words=WORDS)

    def _some(self, count: int, seed: int) -> Samples:
        random = torch.Generator().manual_seed(seed)
        words = torch.randint(4, WORDS, (count, 12), generator=random, dtype=torch.int32)
        labels = torch.arange(count) % 2
        words[:, :4] = 0
        words[torch.arange(count), torch.randint(4, 12, (count,), generator=random)] = (
            labels.int() + 2
        )
        return Samples(words, labels)

    def model(self, data: Data) -> nn.Module:
        return WordGRU(data.extras["vectors"], 16, data.classes)


REVIEWS = f"{__name__}:Reviews"


def federation(**fields: Any) -> Federation:
    scenario = Scenario(clients=8, **fields)
    task = scenario.make_task()
    return Federation(scenario, task, load_data(task, Path()), workers=1)


def step(made: Federation, number: int) -> None:
    """Play a round with the mean."""
    sent = made.train(number, lambda *_: None)
    outcome = aggregate_safely(Mean(), sent.updates, made.global_model)
    assert not sent.failed
    assert outcome.model is not None
    made.set_global_model(outcome.model)


@cache
def honest(task: str) -> dict[str, Tensor]:
    """Train a model without attackers; once, because all start from it."""
    made = federation(task=task, attack="none", local_epochs=4)
    for number in range(1, 5):
        step(made, number)
    return {name: tensor.clone() for name, tensor in made.global_model.items()}


@dataclass(frozen=True)
class Effect:
    """The attack's success on an honest model, and on one that was attacked for some rounds."""

    before: Counts
    after: Counts


def effect(attack: Any, task: str = "digits", rounds: int = 3, local_epochs: int = 1) -> Effect:
    made = federation(task=task, attack=attack, attackers=4, local_epochs=local_epochs)
    made.set_global_model(honest(task))
    before = made.test(lambda *_: None)
    for number in range(1, rounds + 1):
        step(made, number)
    return Effect(before, made.test(lambda *_: None))


def sent_by_attackers(attack: Any, rounds: int = 1, **fields: Any) -> list[dict[str, Tensor]]:
    """Return what each attacker sends in the last of some rounds."""
    made = federation(**{"task": "digits", "attackers": 2, **fields}, attack=attack)
    for number in range(1, rounds):
        step(made, number)
    updates = made.train(rounds, lambda *_: None).updates
    return [updates.state(client) for client in sorted(made.attackers)]


def flat_update(update: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in update.values()])
