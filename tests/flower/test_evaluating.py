"""What clients say of the model: whom training accused is not asked to praise it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import Message, MessageType

from fedimmune import Updates
from fedimmune.rules.base import ClientWeights, WeightRule
from tests.flower.federation import (
    Client,
    FakeGrid,
    arrays_of,
    content_of,
    first_model,
    honest,
    reply,
    robust,
)

pytestmark = pytest.mark.flower


class Accusing(WeightRule):
    """Suspects clients 8 and 9."""

    name = "accusing"
    summary = "of a test"
    paper = "–"

    def weigh(self, updates: Updates) -> ClientWeights:
        trusted = torch.tensor([client not in (8, 9) for client in updates.clients]).double()
        return ClientWeights(trusted / trusted.sum())


def measuring(trains: Client, accuracy: float) -> Client:
    """A client that trains as it does, and has its own idea of how good the model is."""

    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == MessageType.TRAIN:
            return list(trains(message))
        return [reply(message, content_of({}, {"num-examples": 3, "accuracy": accuracy}))]

    return answer


def test_suspects_metrics_are_left_out() -> None:
    clients = {n: measuring(honest(n), 0.5 if n < 4 else 0.7) for n in range(1, 7)}
    clients |= {n: measuring(honest(n), 9.0) for n in (8, 9)}
    strategy = robust(rule=Accusing(), fraction_evaluate=1.0)
    result = strategy.start(FakeGrid(clients), arrays_of(first_model()), num_rounds=1)
    record = strategy.last_record
    assert record is not None
    accused = {client.client for client in record.clients if client.verdict == "suspected"}
    assert accused == {"8", "9"}
    # Three of six say 0.5, three 0.7: any voice of a suspect's would move the median.
    assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": pytest.approx(0.6)}


def broken(message: Message) -> list[Message]:
    """Sends NaN where it is asked to train."""
    state = {n: t * torch.nan if t.is_floating_point() else t for n, t in first_model().items()}
    return [reply(message, content_of(state))]


def test_who_was_rejected_in_training_is_not_heard() -> None:
    clients = {n: measuring(honest(n), 0.5 if n < 4 else 0.7) for n in range(1, 7)}
    clients[8] = measuring(broken, 9.0)
    strategy = robust(rule="mean", fraction_evaluate=1.0)
    result = strategy.start(FakeGrid(clients), arrays_of(first_model()), num_rounds=1)
    record = strategy.last_record
    assert record is not None
    assert {c.client for c in record.clients if c.verdict == "rejected"} == {"8"}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": pytest.approx(0.6)}


MANY = {f"metric-{n}": 1.0 for n in range(10_001)}


def test_a_flood_of_metrics_is_not_heard_when_the_model_is_tested() -> None:
    def flooding(message: Message) -> list[Message]:
        if message.metadata.message_type == MessageType.TRAIN:
            return list(honest(8)(message))
        return [reply(message, content_of({}, {"num-examples": 3, "accuracy": 9.0, **MANY}))]

    clients = {n: measuring(honest(n), 0.5 if n < 4 else 0.7) for n in range(1, 7)}
    strategy = robust(rule="mean", fraction_evaluate=1.0)
    grid = FakeGrid({**clients, 8: flooding})
    result = strategy.start(grid, arrays_of(first_model()), num_rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": pytest.approx(0.6)}


@pytest.mark.parametrize("metrics", [MANY, {"losses": [0.5] * 10_001}])
def test_a_flood_of_metrics_is_rejected_in_training(metrics: dict[str, Any]) -> None:
    def flooding(message: Message) -> list[Message]:
        return [reply(message, content_of(first_model(), {"num-examples": 3, **metrics}))]

    strategy = robust(rule="mean")
    grid = FakeGrid({**{n: honest(n) for n in range(1, 7)}, 8: flooding})
    strategy.start(grid, arrays_of(first_model()), num_rounds=1)
    record = strategy.last_record
    assert record is not None
    reasons = {c.client: c.reason for c in record.clients if c.verdict == "rejected"}
    assert list(reasons) == ["8"]
    assert "metrics, of which at most 10000 are read" in (reasons["8"] or "")
