"""Attackers that do not train, because nothing of what they send would depend on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Scenario, Updates, attacks, rules, simulate
from fedimmune.attacks.sign_flip import SignFlip
from fedimmune.simulation.federation import Federation
from fedimmune.simulation.workers import ClientRunner
from fedimmune.tasks import data_folder
from tests.attacks.contexts import a_round, context
from tests.simulation.own_task import Blobs
from tests.simulation.test_client import BLOBS, nobody

SPARED: list[dict[str, Any]] = [
    {"name": "alie"},
    {"name": "alie", "z": "search"},
    {"name": "fang"},
    {"name": "fang", "against": "krum"},
    {"name": "gaussian"},
    {"name": "ipm"},
    {"name": "ipm", "scale": "search"},
    {"name": "mimic"},
    {"name": "mimic", "whom": "farthest"},
    {"name": "min-max"},
    {"name": "min-sum"},
    {"name": "search"},
    {"name": "search", "direction": "std"},
    {"name": "sign-flip", "flip": "mean"},
]
TRAINED: list[dict[str, Any]] = [
    {"name": "blend"},
    {"name": "gaussian", "deviation": 1.0},
    {"name": "search", "direction": "own"},
    {"name": "search", "direction": "backdoor"},
    {"name": "sign-flip"},
    {"name": "sign-flip", "flip": "mean", "spare": ["b"]},
]


def test_the_lists_are_complete() -> None:
    tried = {one["name"] for one in SPARED}
    assert {name for name in attacks.available() if not attacks.get(name).needs_training} <= tried
    assert not any(attacks.get(**one).needs_training for one in SPARED)
    assert all(attacks.get(**one).needs_training for one in TRAINED)


def answered(attack: dict[str, Any], seed: int, own: int | None) -> Updates:
    """Return what two of seven send, who have trained something, by seed, or nothing."""
    sent = a_round(seed)
    for client in (0, 4):
        other = sent[client] if own is None else a_round(own)[client]
        factor = 0 if own is None else 3
        sent[client] = {
            name: t if t.dtype == torch.bool else factor * t for name, t in other.items()
        }
    visible = Updates.from_states(sent)
    told = context(rule=rules.get("trimmed-mean"))
    return attacks.get(**attack).on_round(visible.only([0, 4]), visible, told)


def bits(updates: Updates) -> dict[Any, dict[str, list[Any]]]:
    return {
        client: {name: tensor.tolist() for name, tensor in updates.state(client).items()}
        for client in updates.clients
    }


@given(seed=st.integers(0, 999), own=st.integers(0, 999))
@pytest.mark.parametrize("attack", SPARED, ids=str)
def test_what_is_sent_does_not_depend_on_what_attackers_have_trained(
    attack: dict[str, Any], seed: int, own: int
) -> None:
    assert bits(answered(attack, seed, own)) == bits(answered(attack, seed, None))


@pytest.mark.parametrize("attack", [TRAINED[0], TRAINED[2], TRAINED[5]], ids=str)
def test_what_others_send_does(attack: dict[str, Any]) -> None:
    assert bits(answered(attack, 1, 2)) != bits(answered(attack, 1, None))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("attack", [SPARED[1], SPARED[8], SPARED[-1]], ids=str)
def test_runs_are_the_same_as_if_they_had_trained(
    attack: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(
        task=BLOBS, clients=7, attackers=2, rounds=3, attack=attack, rule="trimmed-mean"
    )
    spared = [record.model_dump(exclude={"seconds"}) for record in simulate(scenario)]
    monkeypatch.setattr(Federation, "_attackers_train", True)
    trained = [
        record.model_dump(exclude={"seconds"}) for record in simulate(scenario, workers=workers)
    ]
    assert spared == trained


def federation(**fields: Any) -> Federation:
    usual: dict[str, Any] = {"task": BLOBS, "clients": 6, "attack": "mimic", "attackers": 2}
    scenario = Scenario(**(usual | fields))
    data = Blobs().load(data_folder())
    return Federation(scenario, scenario.resolve().make_task(), data, workers=1)


def those_who_train(made: Federation, monkeypatch: pytest.MonkeyPatch) -> tuple[set[int], Updates]:
    trained, plain = set(), ClientRunner._train

    def seen(self: ClientRunner, job: Any) -> str | None:
        trained.add(job.client)
        return plain(self, job)

    monkeypatch.setattr(ClientRunner, "_train", seen)
    return trained, made.train(1, nobody).updates


@pytest.mark.parametrize("attack", ["mimic", "sign-flip"])
def test_only_they_are_spared(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = federation(attack=attack)
    trained, sent = those_who_train(made, monkeypatch)
    everyone = set(range(6))
    assert trained == (everyone - made.attackers if attack == "mimic" else everyone)
    assert set(sent.clients) == everyone
    assert all(any(t.any() for t in sent.state(c).values()) for c in everyone)


@pytest.mark.parametrize("how", ["nan", "raise"])
def test_where_nobody_honest_sent_anything_valid_they_train(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every honest client's training breaks; attackers have trained, as without the declaration."""
    everything = {"name": BLOBS, "breaks": [0, 1, 2, 3], "how": how}
    made = federation(task=everything)
    trained, sent = those_who_train(made, monkeypatch)
    assert trained == set(range(6))
    assert not len(sent.checked())


def test_alone_they_send_what_they_have_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    made = federation(attackers=6)
    trained, sent = those_who_train(made, monkeypatch)
    assert trained == set(range(6))
    honest = federation(attack="none", attackers=0).train(1, nobody).updates
    assert bits(sent) == bits(honest)


def test_without_on_round_the_declaration_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SignFlip, "needs_training", False)
    trained, _ = those_who_train(federation(attack="sign-flip"), monkeypatch)
    assert trained == set(range(6))
