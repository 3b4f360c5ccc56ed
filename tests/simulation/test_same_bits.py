"""The same scenario gives the same bits, whoever computes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedimmune import Rule, Scenario, simulate
from fedimmune.rules.mean import Mean
from fedimmune.simulation import run_folder
from tests.simulation.test_client import BLOBS, WOBBLY


def outcome(scenario: Scenario, runs: Path, workers: int) -> tuple[list[dict[str, Any]], bytes]:
    """Records without their times, and the final model's file."""
    records = list(simulate(scenario, runs=runs, workers=workers))
    written = run_folder(scenario, runs).records()
    assert written == records
    model = (run_folder(scenario, runs).path / "model.safetensors").read_bytes()
    return [record.model_dump(exclude={"seconds"}) for record in records], model


SCENARIOS = [
    Scenario(attack="backdoor", rule="geometric-median", rounds=3, clients=7),
    Scenario(task=WOBBLY, attack="omniscient", rule="mean", rounds=3, clients=5),
    Scenario(
        task=WOBBLY,
        rule="median",
        rounds=3,
        clients=5,
        participation=0.6,
        optimizer={"momentum": 0.9, "carried": True},
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.title)
def test_with_one_worker_two_workers_and_again(scenario: Scenario, tmp_path: Path) -> None:
    first = outcome(scenario, tmp_path / "one", 1)
    torch.manual_seed(99)
    torch.set_num_threads(2)
    try:
        again = outcome(scenario, tmp_path / "again", 1)
    finally:
        torch.set_num_threads(1)
    two = outcome(scenario, tmp_path / "two", 2)
    assert again == first
    assert two == first


def test_another_seed_gives_other_records(tmp_path: Path) -> None:
    found = [
        outcome(Scenario(task=BLOBS, seed=seed, rounds=1), tmp_path, 1) for seed in range(1, 5)
    ]
    assert len({model for _, model in found}) == 4


def test_fewer_rounds_are_the_beginning_of_more(tmp_path: Path) -> None:
    short = outcome(Scenario(task=WOBBLY, rounds=2), tmp_path, 1)[0]
    long = outcome(Scenario(task=WOBBLY, rounds=4), tmp_path, 1)[0]
    assert long[:2] == short
    assert [record["round"] for record in long] == [1, 2, 3, 4]


class Newcomer(Mean):
    """A rule that worker processes have never heard of."""

    name = "newcomer"


def test_rules_that_only_this_process_knows_work_with_workers(
    registered: Callable[[type[Rule]], type[Rule]], tmp_path: Path
) -> None:
    registered(Newcomer)
    own = outcome(Scenario(task=BLOBS, rule="newcomer", rounds=2), tmp_path, 2)
    known = outcome(Scenario(task=BLOBS, rule="mean", rounds=2), tmp_path, 1)
    assert own == known
