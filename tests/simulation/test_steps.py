"""Rounds of single steps, tests now and then, and what rules need besides updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedimmune import Scenario, simulate
from fedimmune.aggregation import Aggregation
from fedimmune.errors import ParameterError
from fedimmune.rules.mean import Mean
from fedimmune.simulation.federation import Federation
from fedimmune.tasks import load_data
from fedimmune.tasks.digits import Digits
from fedimmune.updates import Updates
from tests.simulation.test_failures import Register


class Seeing(Mean):
    """The mean; keeps what came with each round."""

    name = "seeing"
    summary = "of a test"
    needs = frozenset({"anchor", "model", "server_loss"})
    rounds: list[tuple[Updates, float, float]] = []

    def aggregate(self, updates: Any) -> Aggregation:
        zeros = {name: 0 * t for name, t in updates.state(updates.clients[0]).items()}
        answer = super().aggregate(updates)
        loss = updates.server_loss
        self.rounds.append((updates, loss(zeros), loss(answer.update)))
        return answer


def test_a_federation_supplies_what_rules_need(registered: Register) -> None:
    registered(Seeing)
    Seeing.rounds.clear()
    records = list(simulate(Scenario(task="digits", rule="seeing", rounds=3), workers=1))
    assert len(Seeing.rounds) == 3
    for number, (updates, before, after) in enumerate(Seeing.rounds, 1):
        assert set(updates.references) == {"anchor", "model"}
        assert updates.round == number
        assert after < before, "an honest step makes the server's loss smaller"
    losses = [before for _, before, _ in Seeing.rounds]
    assert losses == sorted(losses, reverse=True)
    assert losses[1] == pytest.approx(Seeing.rounds[0][2])
    assert records[-1].accuracy


def test_what_cannot_be_supplied_is_refused_before_anything_is_trained(
    registered: Register,
) -> None:
    class Wants(Seeing):
        name = "wants"
        needs = frozenset({"history"})

    registered(Wants)
    registered(Seeing)
    with pytest.raises(ParameterError, match="wants needs earlier global models"):
        list(simulate(Scenario(task="digits", rule="wants", rounds=1), workers=1))
    with pytest.raises(ParameterError, match="set the scenario's `anchor`"):
        list(simulate(Scenario(task="digits", rule="seeing", rounds=1, anchor=0), workers=1))


def test_one_step_per_round_is_distributed_sgd() -> None:
    """One batch, plain SGD: an update is −lr times a gradient, whose mean moves the model."""
    fields: dict[str, Any] = {"task": "digits", "clients": 3, "rounds": 1, "batch": 10_000}
    steps = list(simulate(Scenario(local_steps=1, **fields), workers=1))
    epochs = list(simulate(Scenario(local_epochs=1, **fields), workers=1))
    assert steps[0].loss == epochs[0].loss, "a batch that holds everything is an epoch"
    more = list(simulate(Scenario(local_steps=4, **fields), workers=1))
    same = list(simulate(Scenario(local_epochs=4, **fields), workers=1))
    assert more[0].loss == same[0].loss
    assert more[0].loss != steps[0].loss


def test_models_are_tested_as_often_as_asked() -> None:
    fields: dict[str, Any] = {"task": "digits", "rounds": 5, "local_steps": 1}
    every = list(simulate(Scenario(**fields), workers=1))
    some = list(simulate(Scenario(test_every=2, **fields), workers=1))
    assert [one.accuracy is None for one in some] == [True, False, True, False, False]
    for one, other in zip(every, some, strict=True):
        assert other.accuracy in (None, one.accuracy)


def test_digests_of_older_scenarios_stay() -> None:
    plain = Scenario(task="digits").digest
    assert Scenario(task="digits", test_every=1).digest == plain
    assert Scenario(task="digits", test_every=2).digest != plain
    assert Scenario(task="digits", local_steps=1).digest != plain


def test_attackers_may_copy_data_so_that_none_is_lost_to_them() -> None:
    task, scenario = Digits(), Scenario(task="digits", clients=7, attackers=2, attack="sign-flip")
    data = load_data(task, Path())
    copied = Scenario(**{**scenario.model_dump(), "attacker_data": "copied"})
    with Federation(copied, task, data, workers=1) as made:
        honest = [part for client, part in enumerate(made.parts) if client not in made.attackers]
        assert sorted(torch.cat(honest).tolist()) == list(range(len(data.clients)))
        for client in made.attackers:
            assert any(torch.equal(made.parts[client], part) for part in honest)
    with Federation(scenario, task, data, workers=1) as plain:
        assert plain.attackers == made.attackers
        everything = torch.cat(plain.parts).tolist()
    assert sorted(everything) == list(range(len(data.clients)))
