"""What clients say of the model: suspects are not asked to praise it."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Message, MessageType

from fedimmune import Updates
from fedimmune.rules.base import Weighing, WeightRule
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

    def weigh(self, updates: Updates) -> Weighing:
        trusted = torch.tensor([client not in (8, 9) for client in updates.clients]).double()
        return Weighing(trusted / trusted.sum())


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
    accused = {client.id for client in record.clients if client.verdict == "suspected"}
    assert accused == {8, 9}
    # Three of six say 0.5, three 0.7: any voice of a suspect's would move the median.
    assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": pytest.approx(0.6)}
