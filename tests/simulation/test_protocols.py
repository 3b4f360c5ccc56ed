"""The protocol of the authors' program: what it fills in, and that it leaves what is said alone."""

from __future__ import annotations

from typing import Any

import pytest

from fedimmune import Scenario
from fedimmune.errors import ParameterError
from fedimmune.simulation.protocols import PROTOCOLS, with_protocol
from fedimmune.simulation.rehearsal import plan
from fedimmune.simulation.scenario import ResolvedScenario
from fedimmune.tasks import DataSpec

FACTS = DataSpec(classes=10, shape=(1, 32, 32), highest=(1.0,))


def scenario(**fields: Any) -> ResolvedScenario:
    return Scenario(**with_protocol("authors", fields)).resolve()


def test_what_it_fills_in() -> None:
    found = scenario(task="mnist", attack="backdoor")
    assert found.optimizer.carried
    assert found.optimizer.lr == 0.01
    assert found.attack.parameters["value"] == 1
    assert found.attack.parameters["chance"] == 0.5
    assert found.attack.parameters["drawn_at"] == 32
    assert scenario(task="cifar10").task.parameters["scaling"] == "half"
    assert scenario(task="cifar10").optimizer.lr == 0.1
    tiny = scenario(task="tiny-imagenet", attack="omniscient")
    assert tiny.task.parameters["varied"] == "flips"
    assert tiny.task.parameters["scaling"] == "imagenet"
    assert tiny.optimizer.lr == 0.01
    assert tiny.attack.parameters["spare"] == ["*running_*"]
    assert scenario() == Scenario(optimizer={"carried": True}).resolve()


def test_what_is_said_stays() -> None:
    given = {
        "task": {"name": "cifar10", "scaling": None, "width": 16},
        "attack": {"name": "backdoor", "value": 2.0, "target": 5},
        "optimizer": {"lr": 0.5, "carried": False},
        "rounds": 3,
    }
    found = scenario(**given)
    assert "scaling" not in found.task.parameters
    assert (found.attack.parameters["value"], found.attack.parameters["target"]) == (2, 5)
    assert (found.optimizer.lr, found.optimizer.carried, found.rounds) == (0.5, False, 3)
    assert not scenario(optimizer="adam").optimizer.carried
    assert not scenario(optimizer={"momentum": 0}).optimizer.carried
    assert scenario(task="tests.simulation.own_task:Blobs").optimizer.carried


@pytest.mark.parametrize("attack", ["none", "backdoor", "omniscient", "label-flip"])
def test_the_papers_text_is_the_usual(attack: str) -> None:
    given = {"task": "mnist", "attack": attack}
    assert with_protocol("paper", given) == given
    usual = Scenario(**given).resolve().attack.parameters
    assert not usual.keys() & {"value", "chance", "drawn_at", "spare"}


def test_rehearsals_have_it_too() -> None:
    listed = plan(
        {"task": "mnist"},
        FACTS,
        attacks=["backdoor", "omniscient"],
        attackers=[0, 2],
        runs=1,
        follow=["mean"],
        protocol="authors",
    )
    attacks = {each.scenario.attack.name: each.scenario.attack.parameters for each in listed}
    assert attacks["backdoor"]["value"] == 1
    assert attacks["sign-flip"]["spare"] == ["*running_*"]
    assert all(each.scenario.optimizer.carried for each in listed)


def test_unknown_names_are_answered_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match=", ".join(PROTOCOLS)):
        with_protocol("mine", {})
