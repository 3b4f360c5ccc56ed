"""What clients send against local SGD in a plain loop, and what the server makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedimmune import RunFolder, Scenario, simulate
from fedimmune.simulation import run_folder
from fedimmune.simulation.client import batches
from fedimmune.simulation.federation import Federation, RoundUpdates
from fedimmune.simulation.seeding import generator, seeded
from fedimmune.tasks import Data, Task, data_folder
from tests.attacks.contexts import context
from tests.simulation.own_task import CLASSES, Blobs

BLOBS = "tests.simulation.own_task:Blobs"
WOBBLY = "tests.simulation.own_task:Wobbly"


def nobody(done: int, total: int) -> None:
    """Does not care how many of how many are done."""


def set_up(scenario: Scenario) -> tuple[Task, Data, Federation]:
    task = scenario.make_task()
    data = task.load(data_folder())
    return task, data, Federation(scenario, task, data, workers=1)


def sent(updates: RoundUpdates, client: int) -> dict[str, Tensor]:
    """One client's update, out of what the server sees."""
    only = updates.updates.only([client])
    found = {}
    for layer in only.layers:
        rows = only.source.read(layer, 0, layer.size, torch.empty(layer.size, dtype=layer.dtype))
        found[layer.name] = rows[0].reshape(layer.shape).clone()
    return found


def naive_sgd(
    model: nn.Module, steps: list[tuple[Tensor, Tensor]], lr: float, momentum: float, decay: float
) -> dict[str, Tensor]:
    """Train by the formulas: v ← momentum·v + g + decay·w, w ← w − lr·v. Give the change."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    speed = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    model.train()
    for inputs, labels in steps:
        logits = model(inputs)
        picked = logits.log_softmax(1)[torch.arange(len(labels)), labels]
        gradients = torch.autograd.grad(-picked.mean(), list(model.parameters()))
        with torch.no_grad():
            for (name, weight), gradient in zip(model.named_parameters(), gradients, strict=True):
                speed[name] = momentum * speed[name] + gradient + decay * weight
                weight.sub_(lr * speed[name])
    after = model.state_dict()
    return {name: after[name] - before[name] for name in after if name != "even"}


@settings(max_examples=15)
@given(
    lr=st.sampled_from([0.01, 0.1]),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    decay=st.sampled_from([0.0, 0.1]),
    epochs=st.integers(1, 3),
    batch=st.sampled_from([4, 8, 1000]),
    seed=st.integers(0, 99),
    round_number=st.integers(1, 5),
)
def test_an_honest_update_is_local_sgd_with_momentum(
    lr: float,
    momentum: float,
    decay: float,
    epochs: int,
    batch: int,
    seed: int,
    round_number: int,
) -> None:
    scenario = Scenario(
        task=BLOBS,
        clients=3,
        local_epochs=epochs,
        batch=batch,
        seed=seed,
        optimizer={"lr": lr, "momentum": momentum, "weight_decay": decay},
    )
    task, data, federation = set_up(scenario)
    answer = federation.train(round_number, nobody)
    for client in federation.participants(round_number):
        model = task.model(data)
        model.load_state_dict(federation.global_model)
        random = generator(seed, "batches", round_number, client)
        steps = [
            (data.clients.inputs[chosen], data.clients.labels[chosen])
            for _ in range(epochs)
            for chosen in batches(federation.parts[client], batch, random)
        ]
        expected = naive_sgd(model, steps, lr, momentum, decay)
        for name, change in sent(answer, client).items():
            torch.testing.assert_close(change, expected[name], rtol=1e-3, atol=1e-4)


def test_momentum_is_carried_over_rounds_where_it_is_asked_for() -> None:
    """With momentum carried, two rounds from one global model are one long training, cut in two."""
    optimizer = {"lr": 0.1, "momentum": 0.9, "carried": True}
    scenario = Scenario(task=BLOBS, clients=3, batch=8, optimizer=optimizer)
    task, data, federation = set_up(scenario)
    start = {name: tensor.clone() for name, tensor in federation.global_model.items()}
    first = sent(federation.train(1, nobody), 1)
    # It ends where it would have without a stop, whatever the others' model.
    federation.set_global_model({name: tensor + first[name] for name, tensor in start.items()})
    second = sent(federation.train(2, nobody), 1)
    steps = [
        (data.clients.inputs[chosen], data.clients.labels[chosen])
        for number in (1, 2)
        for chosen in batches(federation.parts[1], 8, generator(1, "batches", number, 1))
    ]
    model = task.model(data)
    model.load_state_dict(start)
    whole = naive_sgd(model, steps, 0.1, 0.9, 0)
    for name, change in whole.items():
        torch.testing.assert_close(first[name] + second[name], change, rtol=1e-3, atol=1e-4)
    afresh = set_up(
        Scenario(task=BLOBS, clients=3, batch=8, optimizer=optimizer | {"carried": False})
    )
    afresh[2].train(1, nobody)
    afresh[2].set_global_model({name: tensor + first[name] for name, tensor in start.items()})
    other = sent(afresh[2].train(2, nobody), 1)
    assert any(not torch.allclose(other[name], second[name], atol=1e-4) for name in other)


def test_with_dropout_and_batch_norm_too() -> None:
    scenario = Scenario(task=WOBBLY, clients=3, seed=4)
    task, data, federation = set_up(scenario)
    answer = federation.train(2, nobody)
    for client in range(3):
        model = task.model(data)
        model.load_state_dict(federation.global_model)
        random = generator(4, "batches", 2, client)
        chosen = list(batches(federation.parts[client], 8, random))
        steps = [(data.clients.inputs[each], data.clients.labels[each]) for each in chosen]
        with seeded(4, "training", 2, client):
            expected = naive_sgd(model, steps, lr=0.05, momentum=0.5, decay=0)
        found = sent(answer, client)
        for name, change in expected.items():
            if change.is_floating_point():
                torch.testing.assert_close(found[name], change, rtol=1e-3, atol=1e-5)
        assert bool(found["even"]) == bool(len(chosen) % 2)
        assert int(found["norm.num_batches_tracked"]) == len(chosen)
        assert found["steps"].tolist() == [len(chosen)] * 2


def test_adam_too() -> None:
    scenario = Scenario(task=BLOBS, clients=2, batch=16, optimizer={"name": "adam", "lr": 0.01})
    task, data, federation = set_up(scenario)
    answer = federation.train(1, nobody)
    model = task.model(data)
    model.load_state_dict(federation.global_model)
    moment = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    square = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    random = generator(1, "batches", 1, 0)
    for step, chosen in enumerate(batches(federation.parts[0], 16, random), start=1):
        loss = nn.functional.cross_entropy(
            model(data.clients.inputs[chosen]), data.clients.labels[chosen]
        )
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for (name, weight), g in zip(model.named_parameters(), gradients, strict=True):
                moment[name] = 0.9 * moment[name] + 0.1 * g
                square[name] = 0.999 * square[name] + 0.001 * g * g
                ahead = moment[name] / (1 - 0.9**step)
                spread = (square[name] / (1 - 0.999**step)).sqrt()
                weight.sub_(0.01 * ahead / (spread + 1e-8))
    for name, change in sent(answer, 0).items():
        expected = model.state_dict()[name] - federation.global_model[name]
        torch.testing.assert_close(change, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "attack", ["backdoor", {"name": "label-flip", "target": 3}, "sign-flip", "none"]
)
def test_attackers_do_what_they_do_and_honest_clients_do_not_notice(attack: Any) -> None:
    fields: dict[str, Any] = {"task": BLOBS, "clients": 4}
    honest = set_up(Scenario(**fields))[2]
    task, data, hostile = set_up(Scenario(**fields, attack=attack, attackers=2))
    first, second = honest.train(1, nobody), hostile.train(1, nobody)
    name = hostile.scenario.attack.name
    assert len(hostile.attackers) == (0 if name == "none" else 2)
    for client in range(4):
        usual, found = sent(first, client), sent(second, client)
        if client not in hostile.attackers:
            assert all(torch.equal(found[layer], usual[layer]) for layer in usual)
            continue
        if name == "sign-flip":
            assert all(torch.equal(found[layer], -usual[layer]) for layer in usual)
            continue
        made = hostile.scenario.make_attack()
        model = task.model(data)
        model.load_state_dict(hostile.global_model)
        random = generator(1, "batches", 1, client)
        told = context(data.spec)
        steps = [
            made.on_batch(data.clients.inputs[each], data.clients.labels[each], told)
            for each in batches(hostile.parts[client], 8, random)
        ]
        expected = naive_sgd(model, steps, lr=0.1, momentum=0.5, decay=0)
        assert any(not torch.allclose(found[layer], usual[layer]) for layer in usual)
        for layer in usual:
            torch.testing.assert_close(found[layer], expected[layer], rtol=1e-3, atol=1e-5)


def test_training_changes_neither_the_data_nor_the_global_model() -> None:
    scenario = Scenario(task=BLOBS, clients=4, attack="backdoor")
    _, data, federation = set_up(scenario)
    fresh = Blobs().load(Path())
    before = {name: tensor.clone() for name, tensor in federation.global_model.items()}
    federation.train(1, nobody)
    federation.test(nobody)
    for kept, loaded in ((data.clients, fresh.clients), (data.server, fresh.server)):
        assert torch.equal(kept.inputs, loaded.inputs)
        assert torch.equal(kept.labels, loaded.labels)
    assert all(torch.equal(federation.global_model[name], before[name]) for name in before)


def final_model(scenario: Scenario, runs: Path) -> Mapping[str, Tensor]:
    assert len(list(simulate(scenario, runs=runs, workers=1))) == scenario.resolve().rounds
    folder: RunFolder = run_folder(scenario, runs)
    return folder.model()


@pytest.mark.parametrize("task", [BLOBS, WOBBLY])
def test_a_round_of_fedavg_adds_the_mean_of_the_updates(task: str, tmp_path: Path) -> None:
    scenario = Scenario(task=task, rule="mean", clients=5, rounds=2, attack="omniscient")
    expected = set_up(scenario)[2]
    for round_number in (1, 2):
        answer = expected.train(round_number, nobody)
        moved = {}
        for name, old in expected.global_model.items():
            changes = torch.stack([sent(answer, client)[name] for client in range(5)])
            if old.is_floating_point():
                moved[name] = old + changes.mean(0)
                if name.endswith("running_var"):
                    moved[name].clamp_(min=0)
            elif name == "even":
                moved[name] = old ^ (changes.sum() > 2)
            else:
                moved[name] = old + changes.median(0).values
        expected.set_global_model(moved)
    found = final_model(scenario, tmp_path)
    assert set(found) == set(expected.global_model)
    for name, tensor in expected.global_model.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5)


# -------------------------------------------------------------------- where chance is from


def test_the_seed_decides_who_attacks_whatever_else_there_is() -> None:
    usual = set_up(Scenario(task=BLOBS, clients=9, attack="backdoor", attackers=3))[2]
    for changes in (
        {"rule": "krum"},
        {"attack": "omniscient"},
        {"attack": {"name": "backdoor", "gap": 1}},
        {"rounds": 2, "batch": 3, "local_epochs": 2, "optimizer": "adam"},
    ):
        fields: dict[str, Any] = {"attack": "backdoor", "attackers": 3, **changes}
        other = set_up(Scenario(task=BLOBS, clients=9, **fields))[2]
        assert other.attackers == usual.attackers
        assert all(torch.equal(a, b) for a, b in zip(other.parts, usual.parts, strict=True))
        for name, tensor in usual.global_model.items():
            assert torch.equal(other.global_model[name], tensor)
    none = set_up(Scenario(task=BLOBS, clients=9))[2]
    assert none.attackers == frozenset()
    assert all(torch.equal(a, b) for a, b in zip(none.parts, usual.parts, strict=True))


def test_another_seed_draws_anew() -> None:
    made = [
        set_up(Scenario(task=BLOBS, clients=20, attack="omniscient", attackers=8, seed=seed))[2]
        for seed in range(4)
    ]
    assert len({federation.attackers for federation in made}) == 4
    assert len({tuple(part.tolist()) for f in made for part in f.parts[:1]}) == 4
    assert len({float(federation.global_model["fc.weight"][0, 0]) for federation in made}) == 4


@pytest.mark.parametrize("attackers", [0, 1, 5, 6])
def test_any_number_may_attack(attackers: int) -> None:
    scenario = Scenario(task=BLOBS, clients=6, attack="omniscient", attackers=attackers)
    found = set_up(scenario)[2].attackers
    assert len(found) == attackers
    assert found <= set(range(6))


def test_more_attackers_are_the_same_ones_and_some_more() -> None:
    grown = [
        set_up(Scenario(task=BLOBS, clients=8, attack="omniscient", attackers=count))[2].attackers
        for count in range(9)
    ]
    assert all(few < more for few, more in pairwise(grown))


def test_every_client_may_be_drawn() -> None:
    drawn = [
        set_up(Scenario(task=BLOBS, clients=5, attack="omniscient", attackers=1, seed=s))[2]
        for s in range(60)
    ]
    assert {client for federation in drawn for client in federation.attackers} == set(range(5))


def test_the_callers_randomness_is_left_alone() -> None:
    scenario = Scenario(task=WOBBLY, clients=3, rounds=1)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = torch.get_num_threads()
    list(simulate(scenario, workers=1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == before


def test_blobs_are_worth_testing_with() -> None:
    assert CLASSES == 4
    *_, last = simulate(Scenario(task=BLOBS, clients=5, rounds=8), workers=1)
    assert last.accuracy is not None
    assert last.accuracy > 0.9
