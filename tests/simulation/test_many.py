"""A thousand clients of whom few take part: nothing of a round is sized by the others."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch

from fedimmune import Scenario, simulate
from fedimmune.io import load_mapped
from fedimmune.simulation import run_folder
from fedimmune.simulation.federation import Federation
from fedimmune.tasks import load_data
from fedimmune.tasks.digits import Digits
from tests.simulation.test_client import WOBBLY


def federation(clients: int, tmp_path: Path, **more: object) -> Federation:
    scenario = Scenario(
        task="digits", clients=clients, participation=20 / clients, partition="iid", **more
    )
    task = Digits()
    return Federation(scenario, task, load_data(task, tmp_path), 1)


def test_memory_of_a_round_is_sized_by_those_who_take_part(tmp_path: Path) -> None:
    for clients in (40, 800):
        with federation(clients, tmp_path) as made:
            arena = made._executor.arena
            assert len(arena.updates) == 21  # and the server's
            assert not arena.momenta
            assert len(made.train(1, lambda *_: None).updates) == 20


def test_only_those_who_took_part_have_momenta_to_save(tmp_path: Path) -> None:
    optimizer = {"momentum": 0.9, "carried": True}
    with federation(400, tmp_path, optimizer=optimizer) as made:
        assert not made.carried
        made.train(1, lambda *_: None)
        took_part = {int(name.partition("/")[0]) for name in made.carried}
        assert took_part == set(made.participants(1))
        kept = {name: tensor.clone() for name, tensor in made.carried.items()}
        made.train(2, lambda *_: None)
        expected = {name: tensor.clone() for name, tensor in made.carried.items()}
    with federation(400, tmp_path, optimizer=optimizer) as again:
        again.carry_on(kept)
        again.train(2, lambda *_: None)
        assert again.carried.keys() == expected.keys()
        assert all(torch.equal(again.carried[name], expected[name]) for name in expected)


def test_a_run_of_few_of_many_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    scenario = Scenario(
        task=WOBBLY,
        rounds=4,
        clients=60,
        participation=0.1,
        partition="iid",
        optimizer={"momentum": 0.9, "carried": True},
    )
    list(simulate(scenario, runs=tmp_path / "whole", workers=1))
    begun = simulate(scenario, runs=tmp_path / "stopped", workers=1)
    assert len(list(islice(begun, 2))) == 2
    begun.close()
    list(simulate(scenario, runs=tmp_path / "stopped", workers=1))
    models = [
        load_mapped(run_folder(scenario, tmp_path / name).path / "model.safetensors")
        for name in ("whole", "stopped")
    ]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
