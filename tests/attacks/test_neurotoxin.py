"""Neurotoxin moves nothing outside of its mask, which is where honest clients move least."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedimmune import attacks
from fedimmune.errors import ParameterError
from tests.attacks.training import federation, flat_update, step

DECAYED = {"lr": 0.1, "weight_decay": 0.01, "momentum": 0.9, "carried": True}


def most(values: Tensor, ratio: float) -> Tensor:
    """Which coordinates are among the (1 − ratio) largest, by sorting them all."""
    count = round((1 - ratio) * len(values))
    order = sorted(range(len(values)), key=lambda i: -abs(float(values[i])))
    chosen = torch.zeros(len(values), dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen


@pytest.mark.parametrize("optimizer", [{"lr": 0.1}, DECAYED], ids=["plain", "decayed"])
@pytest.mark.parametrize("ratio", [0.5, 0.95])
def test_nothing_moves_where_the_last_global_update_was_largest(
    ratio: float, optimizer: dict[str, Any]
) -> None:
    attack = {"name": "neurotoxin", "ratio": ratio}
    made = federation(task="digits", attack=attack, attackers=2, optimizer=optimizer)
    first = flat_update(dict(made.global_model)).clone()
    step(made, 1)
    last = flat_update(dict(made.global_model)) - first
    sent = made.train(2, lambda *_: None).updates
    masked = most(last, ratio)
    for client in sent.clients:
        update = flat_update(sent.state(client))
        if client in made.attackers:
            assert not update[masked].any()
            assert update[~masked].count_nonzero() > 0.2 * (~masked).sum()
        else:
            assert update[masked].any()


def test_in_the_first_round_its_own_gradient_stands_for_the_global_update() -> None:
    made = federation(task="digits", attack="neurotoxin", attackers=2)
    task, samples = made.scenario.make_task(), made.data.clients
    sent = made.train(1, lambda *_: None).updates
    for client in made.attackers:
        model = task.model(made.data)
        model.load_state_dict(dict(made.global_model))
        part = made.parts[client]
        cross_entropy(model(samples.inputs[part]), samples.labels[part]).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        update = flat_update(sent.state(client))
        # Sums in another order may swap coordinates at the very edge.
        assert update[most(gradient, 0.95)].count_nonzero() <= 2
        assert update[most(gradient, 0.5)].any()


@pytest.mark.parametrize("ratio", [-0.1, 1, "0.9", None])
def test_bad_ratios_are_refused(ratio: object) -> None:
    with pytest.raises(ParameterError, match="ratio"):
        attacks.get("neurotoxin", ratio=ratio)
