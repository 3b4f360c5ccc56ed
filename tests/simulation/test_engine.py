"""Rounds on real digits: every rule under every attack, and what the paper shows of them."""

from __future__ import annotations

import json
import logging
import math
import warnings
from functools import cache
from typing import Any

import pytest

from fedimmune import RoundRecord, Scenario, attacks, rules, simulate
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from fedimmune.simulation import Observer
from fedimmune.simulation.federation import Federation
from fedimmune.tasks.digits import DigitsNet
from tests.attacks.contexts import IMAGES, fitting
from tests.rounds import needs_of
from tests.simulation.test_client import BLOBS, set_up

DIGITS = tuple(DigitsNet().state_dict())
DIGITS_SHAPES = {name: tuple(each.shape) for name, each in DigitsNet().state_dict().items()}
SHARES = ("accuracy", "asr", "asr_others", "accuracy_without_success", "precision", "recall")


def assert_well_formed(record: RoundRecord, scenario: Scenario) -> None:
    for name in (*SHARES, "auroc", "attacker_weight"):
        value = getattr(record, name)
        assert value is None or 0 <= value <= 1 + 1e-9, name
    for name in ("loss", "distance", "robust_mean_norm"):
        value = getattr(record, name)
        assert value is None or (math.isfinite(value) and value >= 0), name
    assert [client.client for client in record.clients] == [str(n) for n in range(scenario.clients)]
    assert (
        sum(bool(client.is_attacker) for client in record.clients) == scenario.resolve().attackers
    )
    weights = [client.weight for client in record.clients if client.weight is not None]
    assert not weights or math.fsum(weights) == pytest.approx(1)
    text = record.model_dump_json()
    plain = json.loads(text, parse_constant=no_constant)
    assert RoundRecord.model_validate_json(text) == record
    assert plain["seconds"].keys() >= {"training", "aggregating", "testing"}
    assert all(second >= 0 for second in plain["seconds"].values())


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


FITTING = [name for name in attacks.available() if fitting(name) is IMAGES]
PAIRS = {(rule, attack) for rule in rules.available() for attack in ("sign-flip", "search")}
PAIRS |= {(rule, attack) for rule in ("median", "multi-krum", "oracle") for attack in FITTING}


@pytest.mark.parametrize(("rule", "attack"), sorted(PAIRS))
def test_every_rule_and_every_attack_runs(rule: str, attack: str) -> None:
    chosen = {"name": rule, **needs_of(rule, DIGITS_SHAPES if rule == "spectral" else DIGITS)}
    scenario = Scenario(rule=chosen, attack=attack, rounds=2, clients=8, attackers=3, batch=32)
    records = list(simulate(scenario, workers=1))
    assert [record.round for record in records] == [1, 2]
    for record in records:
        assert_well_formed(record, scenario)
        assert record.error is None
        assert record.accuracy is not None
        assert record.loss is not None
        assert record.distance is not None
        has_target = attacks.get(attack).overrides("triggered")
        assert (record.asr is not None) == has_target
        assert (record.asr_others is not None) == has_target
        if record.asr is not None:
            assert record.accuracy_without_success == pytest.approx(
                record.accuracy * (1 - record.asr)
            )
        if rule == "oracle":
            assert record.distance == pytest.approx(0, abs=1e-5)
            if attack != "none":
                assert (record.precision, record.recall, record.auroc) == (1, 1, 1)


@cache
def played(rule: str, attack: str, seed: int, rounds: int = 20) -> tuple[RoundRecord, ...]:
    """Four attackers of ten clients."""
    scenario = Scenario(rule=rule, attack=attack, attackers=4, seed=seed, rounds=rounds)
    return tuple(simulate(scenario, workers=1))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_backdoor_takes_fedavg_over_and_not_the_oracle(seed: int) -> None:
    taken, told = played("mean", "backdoor", seed)[-1], played("oracle", "backdoor", seed)[-1]
    assert taken.asr is not None
    assert taken.asr > 0.9
    assert told.asr is not None
    assert told.asr < 0.2
    assert told.asr_others is not None
    assert told.asr_others < 0.1
    assert told.accuracy is not None
    assert told.accuracy > 0.8
    assert taken.accuracy_without_success is not None
    assert taken.accuracy_without_success < 0.1


@pytest.mark.parametrize("seed", [1, 2])
def test_the_omniscient_attack_ruins_fedavg_and_not_the_oracle(seed: int) -> None:
    ruined = played("mean", "omniscient", seed)[-1]
    assert ruined.accuracy is not None
    assert ruined.accuracy < 0.5
    # The oracle hears honest clients alone, so that it cannot matter which attack it is.
    told = played("oracle", "backdoor", seed)
    short = played("oracle", "omniscient", seed, rounds=4)
    assert [record.accuracy for record in short] == [record.accuracy for record in told[:4]]
    assert [record.loss for record in short] == [record.loss for record in told[:4]]
    assert (told[-1].accuracy or 0) > 0.8


# -------------------------------------------------------------------- who takes part


def test_a_share_of_the_clients_takes_part_by_the_seed() -> None:
    fields: dict[str, Any] = {"task": BLOBS, "clients": 20, "participation": 0.3}
    scenario = Scenario(**fields, attack="omniscient", attackers=5, rounds=12, partition="iid")
    federation = set_up(scenario)[2]
    records = list(simulate(scenario, workers=1))
    who = [[client.client for client in record.clients] for record in records]
    assert who == [[str(c) for c in federation.participants(n)] for n in range(1, 13)]
    assert all(len(ids) == 6 == len(set(ids)) for ids in who)
    assert who[0] != who[1]
    assert {client for ids in who for client in ids} == {str(n) for n in range(20)}
    for record in records:
        assert [c.is_attacker for c in record.clients] == [
            int(c.client) in federation.attackers for c in record.clients
        ]
    other = Scenario(**fields, partition="iid", rule="median", rounds=1)
    assert [client.client for client in next(simulate(other, workers=1)).clients] == who[0]
    anew = Scenario(**fields, partition="iid", seed=2)
    assert [[str(c) for c in set_up(anew)[2].participants(n)] for n in range(1, 13)] != who


@pytest.mark.parametrize(
    ("clients", "participation", "count"), [(10, 0.01, 1), (10, 1.0, 10), (3, 0.5, 2), (7, 0.99, 7)]
)
def test_at_least_one_takes_part(clients: int, participation: float, count: int) -> None:
    scenario = Scenario(task=BLOBS, clients=clients, participation=participation, partition="iid")
    assert len(set_up(scenario)[2].participants(1)) == count


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "by-label"])
def test_more_clients_than_samples(partition: str, caplog: pytest.LogCaptureFixture) -> None:
    scenario = Scenario(
        task={"name": BLOBS, "samples": 12},
        clients=30,
        partition=partition,
        attack="omniscient",
        rounds=2,
    )
    with caplog.at_level(logging.WARNING, logger="fedimmune"):
        records = list(simulate(scenario, workers=1))
    able = [str(c) for c, part in enumerate(set_up(scenario)[2].parts) if len(part)]
    assert f"{30 - len(able)} of 30 clients have no data" in caplog.text
    for record in records:
        assert [client.client for client in record.clients] == able
        assert record.error is None


def test_a_rule_that_needs_more_clients_says_so_before_anything_runs() -> None:
    for fields in ({"clients": 2}, {"clients": 20, "participation": 0.1}):
        scenario = Scenario(task=BLOBS, rule="krum", partition="iid", **fields)
        with pytest.raises(ParameterError, match=r"krum needs at least \d+ valid clients"):
            next(simulate(scenario, workers=1))


@pytest.mark.parametrize(
    ("rule", "clients", "said"),
    [
        ({"name": "krum", "attackers": 2, "before": "bucketing(size=3)"}, 10, "makes 4 of 10"),
        ({"name": "mda"}, 30, "ways"),
        ({"name": "smea", "before": "nnm"}, 30, "ways"),
    ],
)
def test_rounds_that_cannot_be_aggregated_are_refused_before_anything_runs(
    rule: dict[str, object], clients: int, said: str
) -> None:
    """Seen before: every round was trained, and the model stayed each time."""
    scenario = Scenario(task=BLOBS, rule=rule, partition="iid", clients=clients)
    with pytest.raises(ParameterError, match=said):
        next(simulate(scenario, workers=1))


def test_one_client_alone() -> None:
    scenario = Scenario(task=BLOBS, clients=1, rounds=2)
    assert [record.error for record in simulate(scenario, workers=1)] == [None, None]


# -------------------------------------------------------------------- who watches, what is refused


class Notes(Observer):
    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.finished: list[int] = []
        self.phases: list[tuple[str, int, int]] = []

    def loading(self, task: str) -> None:
        self.loaded.append(task)

    def starting(self, federation: Federation, finished: int) -> None:
        self.finished.append(finished)

    def progress(self, phase: str, done: int, total: int) -> None:
        self.phases.append((phase, done, total))


def test_an_observer_is_told() -> None:
    notes = Notes()
    list(simulate(Scenario(task=BLOBS, clients=3, rounds=2), workers=1, observer=notes))
    assert notes.loaded == [BLOBS]
    assert notes.finished == [0]
    a_round = [("training", 1, 3), ("training", 2, 3), ("training", 3, 3), ("testing", 1, 1)]
    assert notes.phases == a_round * 2


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    notes = Notes()
    records = simulate(Scenario(task=BLOBS, clients=3, rounds=50), workers=1, observer=notes)
    next(records)
    records.close()
    assert len(notes.phases) == 4


def test_who_plays_no_round_is_warned() -> None:
    scenario = Scenario(task=BLOBS, clients=3, rounds=1)
    with pytest.warns(RuntimeWarning, match="no round has run"):
        simulate(scenario, workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(simulate(scenario, workers=1))
        simulate(scenario, workers=1).close()


@pytest.mark.parametrize("workers", [0, -1])
def test_workers_must_be_at_least_one(workers: int) -> None:
    with pytest.raises(FedimmuneError, match="workers"):
        next(simulate(Scenario(task=BLOBS), workers=workers))


def test_what_does_not_fit_the_data_is_refused_before_any_round() -> None:
    for attack in (
        {"name": "backdoor", "shift_x": 2},
        {"name": "backdoor", "target": 4},
        {"name": "label-flip", "target": 4},
    ):
        with pytest.raises(ParameterError):
            next(simulate(Scenario(task=BLOBS, attack=attack), workers=1))


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(InputError, match="cuda:7"):
        next(simulate(Scenario(task=BLOBS, device="cuda:7"), workers=1))
