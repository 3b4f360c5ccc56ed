"""What goes wrong is written down, and never reaches the global model."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedimmune import Aggregation, RoundRecord, Rule, Scenario, Updates, rules, simulate
from fedimmune.errors import InputError
from fedimmune.simulation import Observer, run_folder
from fedimmune.simulation.federation import Federation
from fedimmune.simulation.workers import WorkerError
from tests.simulation.own_task import Blobs
from tests.simulation.processes import alive, wait_until, worker_pids
from tests.simulation.test_client import BLOBS, set_up
from tests.simulation.test_engine import assert_well_formed

Register = Callable[[type[Rule]], type[Rule]]


class Models(Observer):
    """Keeps the global model as it is whenever a round's testing is done."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def starting(self, federation: Federation, finished: int) -> None:
        self.federation = federation
        self._keep()

    def progress(self, phase: str, done: int, total: int) -> None:
        if phase == "testing" and done == total:
            self._keep()

    def _keep(self) -> None:
        model = self.federation.global_model
        self.seen.append({name: tensor.clone() for name, tensor in model.items()})


def play(**fields: Any) -> tuple[list[RoundRecord], list[dict[str, Tensor]]]:
    models = Models()
    records = list(simulate(Scenario(**fields), workers=1, observer=models))
    assert len(models.seen) == len(records) + 1
    return records, models.seen


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def broken(breaks: list[int], how: str) -> dict[str, Any]:
    """Four clients with a class each, some of which break whoever trains on them."""
    return {
        "task": {"name": BLOBS, "breaks": breaks, "how": how},
        "clients": 4,
        "partition": {"name": "by-label", "shards": 1},
        "rounds": 2,
    }


def holders(fields: dict[str, Any], classes: list[int]) -> list[str]:
    _, data, federation = set_up(Scenario(**fields))
    return [
        str(client)
        for client, part in enumerate(federation.parts)
        if set(data.clients.labels[part].tolist()) & set(classes)
    ]


@pytest.mark.parametrize("rule", ["mean", "median", "geometric-median", "oracle"])
@pytest.mark.parametrize(("how", "verdict"), [("nan", "rejected"), ("raise", "failed")])
def test_a_client_that_breaks_is_left_out_and_the_round_goes_on(
    rule: str, how: str, verdict: str
) -> None:
    fields = {**broken([1], how), "rule": rule}
    (bad,) = holders(fields, [1])
    records, models = play(**fields)
    for record in records:
        assert_well_formed(record, Scenario(**fields))
        assert record.error is None
        assert [c.verdict for c in record.clients if c.client != bad] == ["trusted"] * 3
        (client,) = [c for c in record.clients if c.client == bad]
        assert client.verdict == verdict
        assert client.weight is None
        assert client.reason
        if how == "raise":
            assert "RuntimeError: it does not" in client.reason
    assert not same(models[0], models[1])
    assert all(torch.isfinite(tensor).all() for model in models for tensor in model.values())


def test_the_others_count_as_if_it_had_not_been_there() -> None:
    models = {how: play(**broken([1], how))[1] for how in ("nan", "raise")}
    assert same(models["nan"][-1], models["raise"][-1])


@pytest.mark.parametrize("how", ["nan", "raise"])
@pytest.mark.parametrize("rule", ["mean", "median", "oracle"])
def test_where_all_break_the_model_stays(rule: str, how: str) -> None:
    fields = {**broken([0, 1, 2, 3], how), "rule": rule}
    records, models = play(**fields)
    assert len(records) == 2
    for record in records:
        assert_well_formed(record, Scenario(**fields))
        assert record.error
        assert rule in record.error
        expected = "rejected" if how == "nan" else "failed"
        assert [client.verdict for client in record.clients] == [expected] * 4
        assert record.distance is None
    assert same(models[0], models[1])
    assert same(models[0], models[2])


def test_an_enormous_learning_rate_is_no_end() -> None:
    fields = {"task": BLOBS, "clients": 3, "rounds": 2, "optimizer": {"lr": 1e38}}
    records, models = play(**fields)
    assert [record.round for record in records] == [1, 2]
    assert all(torch.isfinite(tensor).all() for model in models for tensor in model.values())
    for record in records:
        assert_well_formed(record, Scenario(**fields))
        assert record.error or all(client.verdict for client in record.clients)


class Anchored(Rule):
    """A user's own rule that wants the server's own update."""

    name = "anchored"
    summary = "the mean, if there is an anchor"
    paper = "–"
    needs = frozenset({"anchor"})

    def _attempt(self, updates: Updates) -> Aggregation:
        assert updates.references["anchor"]
        return rules.get("mean").aggregate(updates)


@pytest.mark.parametrize("how", ["nan", "raise"])
def test_where_the_server_itself_cannot_train_the_round_is_lost_and_the_run_goes_on(
    how: str, registered: Register
) -> None:
    registered(Anchored)
    fields = {**broken([], how), "rule": "anchored", "anchor": 8}
    assert [record.error for record in play(**fields)[0]] == [None, None]
    records, models = play(**{**fields, **broken([0, 1, 2, 3], how), "rule": "anchored"})
    assert len(records) == 2
    for record in records:
        assert record.error
        assert "server's own" in record.error
        verdicts = {client.verdict for client in record.clients}
        assert verdicts == {"unused" if how == "nan" else "failed"}, "nobody is accused"
    assert same(models[0], models[2])


def test_too_few_for_the_rule_are_named() -> None:
    fields = {**broken([0, 1], "nan"), "rule": "krum"}
    bad = holders(fields, [0, 1])
    records, models = play(**fields)
    for record in records:
        assert record.error is not None
        assert "krum needs at least" in record.error
        verdicts = {client.client: client.verdict for client in record.clients}
        assert verdicts == {c: "rejected" if c in bad else "unused" for c in "0123"}
    assert same(models[0], models[2])


# -------------------------------------------------------------------- rules of a user's own


class Broken(Rule):
    """A user's own rule: the mean, spoiled."""

    name = "broken"
    summary = "the mean, spoiled"
    paper = "–"

    def __init__(self, *, how: str = "raise", every: int = 1) -> None:
        self.how, self.every, self.calls = how, every, 0

    def _attempt(self, updates: Updates) -> Aggregation:
        mean = rules.get("mean").aggregate(updates)
        self.calls += 1
        if self.calls % self.every:
            return mean
        if self.how == "raise":
            raise ValueError("two\nlines")
        if self.how == "nan":
            mean.update["fc.bias"][1] = torch.nan
        elif self.how == "infinite":
            mean.update["fc.weight"].fill_(torch.inf)
        elif self.how == "layers":
            del mean.update["fc.bias"]
        elif self.how == "shape":
            mean.update["fc.bias"] = torch.zeros(7, 4)
        elif self.how == "wide":
            mean.update["fc.weight"] = torch.zeros(2, 4, 64)
        elif self.how == "nothing":
            return None  # type: ignore[return-value]
        return mean


@pytest.mark.parametrize("how", ["raise", "nan", "infinite", "layers", "shape", "wide", "nothing"])
def test_a_broken_rule_changes_nothing_and_the_run_finishes(
    how: str, registered: Register, tmp_path: Path
) -> None:
    registered(Broken)
    fields: dict[str, Any] = {
        "task": BLOBS,
        "clients": 4,
        "rule": {"name": "broken", "how": how, "every": 2},
        "rounds": 4,
    }
    records, models = play(**fields)
    assert [bool(record.error) for record in records] == [False, True, False, True]
    for number, record in enumerate(records, start=1):
        assert_well_formed(record, Scenario(**fields))
        assert same(models[number], models[number - 1]) == bool(record.error)
        if record.error:
            assert "broken" in record.error or how in {"layers", "shape", "wide"}
        if how == "raise" and record.error:
            assert "ValueError: two" in record.error
            assert record.distance is None
            assert all(client.verdict == "unused" for client in record.clients)
    scenario = Scenario(**fields)
    list(simulate(scenario, runs=tmp_path, workers=1))
    folder = run_folder(scenario, tmp_path)
    assert folder.is_finished
    assert [record.error for record in folder.records()] == [record.error for record in records]
    assert same(folder.model(), models[-1])


# -------------------------------------------------------------------- processes that break


@pytest.fixture(scope="module")
def reference() -> list[dict[str, Any]]:
    """Records of the run below, as they are when nothing goes wrong."""
    return [r.model_dump(exclude={"seconds"}) for r in simulate(PRINTING, workers=1)]


PRINTING = Scenario(
    task={"name": BLOBS, "breaks": [0], "how": "print"}, clients=4, rounds=5, attack="backdoor"
)


def test_a_killed_worker_ends_the_run_and_the_same_call_goes_on(
    tmp_path: Path, reference: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    records = simulate(PRINTING, runs=tmp_path, workers=2)
    next(records)
    next(records)
    pids = worker_pids(os.getpid())
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"signal 9.*resumes"):
        list(records)
    assert alive(pids) == []
    assert "a user's own words" in capfd.readouterr().err  # and not among the answers
    assert len(run_folder(PRINTING, tmp_path).records()) == 2
    found = [r.model_dump(exclude={"seconds"}) for r in simulate(PRINTING, runs=tmp_path)]
    assert found == reference


def test_a_generator_that_is_closed_early_ends_its_workers(
    tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    before = worker_pids(os.getpid())
    for _ in simulate(PRINTING, runs=tmp_path, workers=2):
        pids = worker_pids(os.getpid())
        assert len(pids) == 2
        break
    # As soon as nobody holds the generator, which CPython notices at once.
    wait_until(lambda: not alive(pids), "the workers have ended")
    assert worker_pids(os.getpid()) == before == []
    found = [r.model_dump(exclude={"seconds"}) for r in simulate(PRINTING, runs=tmp_path)]
    assert found == reference


def test_a_task_that_workers_cannot_have_is_refused_in_words() -> None:
    class Hidden(Blobs):
        """Nobody else can import it."""

    task = Hidden()
    with pytest.raises(InputError, match="workers=1"):
        Federation(PRINTING, task, task.load(Path()), workers=2)
    assert worker_pids(os.getpid()) == []
