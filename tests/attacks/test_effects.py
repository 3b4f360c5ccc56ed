"""What four attackers of ten do to FedAvg on digits: four rounds, compared with nobody attacking.

Clients' data are alike here, and the loss after four rounds is compared: it shows harm long before
the accuracy does.
"""

from __future__ import annotations

from typing import Any

import pytest

from fedimmune import Scenario, simulate
from fedimmune.runs.records import RoundRecord


def played(attack: Any) -> list[RoundRecord]:
    scenario = Scenario(
        attack=attack,
        attackers=0 if attack == "none" else 4,
        partition="iid",
        batch=8,
        rounds=4,
    )
    return [*simulate(scenario, workers=1)]


def loss(attack: Any) -> float:
    """Return the last loss; a model that is beyond numbers has an infinite one."""
    found = played(attack)[-1].loss
    return float("inf") if found is None else found


@pytest.fixture(scope="module")
def unharmed() -> float:
    return loss("none")


@pytest.mark.parametrize(
    "attack",
    [
        {"name": "alie", "z": 1.5},
        {"name": "alie", "z": "search"},
        "ipm",
        {"name": "ipm", "scale": "search"},
        "min-max",
        "min-sum",
        "fang",
        {"name": "fang", "against": "krum"},
        {"name": "sign-flip", "flip": "mean"},
        {"name": "sign-flip", "flip": "training"},
        "gaussian",
        "poisoned-fl",
        "late-layers",
        "blend",
        "search",
    ],
    ids=str,
)
def test_it_hurts_fedavg(attack: Any, unharmed: float) -> None:
    assert loss(attack) > 1.15 * unharmed


def test_alies_own_z_does_little_among_ten(unharmed: float) -> None:
    """By the paper's formula four of ten attackers shift the mean by 0.43 deviations only."""
    assert unharmed < loss("alie") < 1.15 * unharmed


def test_a_copy_of_a_client_like_all_others_does_no_harm(unharmed: float) -> None:
    assert loss("mimic") < 1.05 * unharmed


@pytest.mark.parametrize("kind", ["zero", "repeated", "noisy"])
def test_free_riders_slow_fedavg_down_and_poison_nothing(kind: str, unharmed: float) -> None:
    losses = [record.loss for record in played({"name": "free-rider", "kind": kind})]
    assert losses == sorted(losses, key=lambda each: -(each or 0)), "it falls in every round"
    assert (losses[-1] or 0) > 1.15 * unharmed
