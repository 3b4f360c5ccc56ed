"""Run folders: complete, gone on with after every kind of death, refused when damaged."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedimmune import RoundRecord, RunFolder, Scenario, Updates, rules, simulate
from fedimmune.aggregation import aggregate_safely
from fedimmune.errors import InputError
from fedimmune.results import ClientResult, Suspicion, Verdict
from fedimmune.runs.folder import Checkpoint, finish_round
from fedimmune.runs.records import Seconds
from fedimmune.simulation import engine, run_folder, workers
from fedimmune.simulation.client import train_client
from tests.simulation.own_task import Blobs
from tests.simulation.processes import (
    alive,
    fork_killed_at,
    shared_files,
    start_run,
    wait_until,
    worker_pids,
)

BLOBS = "tests.simulation.own_task:Blobs"
WOBBLY = "tests.simulation.own_task:Wobbly"

PLAIN = Scenario(task=BLOBS, clients=4, rounds=3, attack="backdoor", attackers=1)
REMEMBERING = Scenario(
    task=BLOBS,
    clients=4,
    rounds=3,
    attack="backdoor",
    attackers=2,
    rule={"name": "foolsgold", "history": True},
    optimizer={"momentum": 0.9, "carried": True},
)
DOCUMENTED = {"scenario.toml", "partition.json", "rounds.jsonl", "model.safetensors", ".lock"}

Outcome = tuple[list[dict[str, Any]], bytes]


def run(scenario: Scenario, runs: Path, *, force: bool = False) -> list[RoundRecord]:
    return list(simulate(scenario, runs=runs, workers=1, force=force))


def outcome(scenario: Scenario, runs: Path) -> Outcome:
    """What a finished run has: its records without their times, and the bytes of its model."""
    folder = run_folder(scenario, runs)
    assert folder.is_finished
    records = [record.model_dump(exclude={"seconds"}) for record in folder.records()]
    return records, (folder.path / "model.safetensors").read_bytes()


def files(folder: RunFolder) -> set[str]:
    return {file.name for file in folder.path.iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scenario], Outcome]:
    """What a run comes to when it is never interrupted."""
    known: dict[str, Outcome] = {}

    def find(scenario: Scenario) -> Outcome:
        if scenario.digest not in known:
            runs = tmp_path_factory.mktemp("uninterrupted")
            run(scenario, runs)
            known[scenario.digest] = outcome(scenario, runs)
        return known[scenario.digest]

    return find


def part_of(scenario: Scenario, runs: Path, rounds: int) -> RunFolder:
    """Play a few rounds of a run and leave it there."""
    records = simulate(scenario, runs=runs, workers=1)
    for _ in range(rounds):
        next(records)
    records.close()
    return run_folder(scenario, runs)


def no_training(*_: object, **__: object) -> None:
    raise AssertionError("there is nothing to train")


# -------------------------------------------------------------------- what a run leaves


@pytest.mark.parametrize("scenario", [PLAIN, REMEMBERING], ids=lambda s: s.rule.name)
def test_files_are_as_documented(scenario: Scenario, tmp_path: Path) -> None:
    runs = tmp_path / "not" / "there yet"
    records = simulate(scenario, runs=runs, workers=1)
    first = next(records)
    folder = run_folder(scenario, runs)
    assert scenario.digest in folder.path.name
    assert folder.path.parent == runs
    assert [path.name for path in runs.iterdir()] == [folder.path.name]
    remembers = {"history-1.safetensors"} if scenario is REMEMBERING else set()
    usual = DOCUMENTED - {"model.safetensors"} | {"checkpoint.safetensors"}
    assert files(folder) == usual | remembers
    assert not folder.is_finished
    assert folder.records() == [first]
    rest = list(records)
    assert folder.is_finished
    assert folder.records() == [first, *rest]
    assert DOCUMENTED <= files(folder) <= DOCUMENTED | {"history-3.safetensors"}
    assert Scenario.from_toml(folder.path, trust_code=True).resolve() == scenario.resolve()
    lines = (folder.path / "rounds.jsonl").read_text().split("\n")
    assert lines[-1] == ""
    assert [json.loads(line)["round"] for line in lines[:-1]] == [1, 2, 3]
    assert set(folder.model()) == {"fc.weight", "fc.bias"}


def test_records_hold_no_clock_time_place_or_worker_count(tmp_path: Path) -> None:
    run(PLAIN, tmp_path)
    text = (run_folder(PLAIN, tmp_path).path / "rounds.jsonl").read_text()
    assert str(tmp_path) not in text
    for line in text.splitlines():
        found = json.loads(line)
        assert set(found) == set(RoundRecord.model_fields)
        assert "worker" not in line
        assert str(time.localtime().tm_year) not in {str(value) for value in found.values()}
    assert str(tmp_path) not in (run_folder(PLAIN, tmp_path).path / "scenario.toml").read_text()


def test_scenarios_do_not_share_folders(tmp_path: Path) -> None:
    other = Scenario(**{**PLAIN.model_dump(), "batch": 9})
    assert other.title == PLAIN.title
    run(PLAIN, tmp_path)
    run(other, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_written_where_nothing_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    list(simulate(PLAIN, workers=1))
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_not_run_again_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(PLAIN, tmp_path)
    folder = run_folder(PLAIN, tmp_path)
    before = {name: (folder.path / name).read_bytes() for name in files(folder)}
    with monkeypatch.context() as spy:
        spy.setattr(workers, "train_client", no_training)
        spy.setattr(Blobs, "load", no_training)
        assert run(PLAIN, tmp_path) == first  # times included: it is the very same record
    assert {name: (folder.path / name).read_bytes() for name in files(folder)} == before
    trained: list[int] = []
    usual = train_client

    def spying(*arguments: Any, **named: Any) -> None:
        trained.append(named["client"])
        usual(*arguments, **named)

    monkeypatch.setattr(workers, "train_client", spying)
    again = run(PLAIN, tmp_path, force=True)
    assert len(trained) == 12
    assert outcome(PLAIN, tmp_path)[1] == before["model.safetensors"]
    without = [record.model_dump(exclude={"seconds"}) for record in again]
    assert without == [record.model_dump(exclude={"seconds"}) for record in first]
    assert files(folder) == set(before)


floats = st.floats(allow_nan=False, allow_infinity=False)
records_of_rounds = st.builds(
    RoundRecord,
    round=st.just(1),
    accuracy=floats,
    loss=st.none() | floats,
    auroc=st.none() | floats,
    error=st.none() | st.text(),
    clients=st.lists(
        st.builds(
            ClientResult,
            client=st.text(),
            verdict=st.sampled_from(Verdict),
            weight=st.none() | st.floats(0, 1),
            score=st.none() | floats,
            reason=st.text(),
            suspicion=st.none()
            | st.builds(
                Suspicion,
                kind=st.text(),
                confidence=st.floats(0, 1),
                since=st.none() | st.integers(1, 2**53 - 1),
                runner_up=st.none() | st.text(),
                runner_up_confidence=st.none() | st.floats(0, 1),
            ),
            is_attacker=st.none() | st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    seconds=st.builds(Seconds, training=floats, aggregating=floats, testing=floats),
)


@given(record=records_of_rounds)
def test_records_are_written_and_read_without_loss(record: RoundRecord) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(place)
        folder.append(record)
        assert folder.records() == [record]
        assert (folder.path / "rounds.jsonl").read_bytes().count(b"\n") == 1


# -------------------------------------------------------------------- the end of a round

NO_TIME = Seconds(training=0, aggregating=0, testing=0)
few = st.sets(st.integers(0, 12))


@given(
    values=st.dictionaries(
        st.integers(0, 12), st.sampled_from([0.0, 1.0, -3.0, float("nan")]), max_size=7
    ),
    failed=few,
    late=few,
    noted=few,
    attackers=st.none() | few,
    least=st.integers(0, 4),
)
def test_a_round_ends_with_everybody_once_in_order(
    values: dict[int, float],
    failed: set[int],
    late: set[int],
    noted: set[int],
    attackers: set[int] | None,
    least: int,
) -> None:
    model = {"w": torch.zeros(3)}
    updates = Updates.from_models({c: {"w": torch.full((3,), v)} for c, v in values.items()}, model)
    rule = rules.get("geometric-median")
    outcome = aggregate_safely(rule, updates, model, least=least)
    record = finish_round(
        None,
        rule,
        updates,
        outcome,
        Checkpoint(5, model),
        last=False,
        seconds=NO_TIME,
        metrics={"accuracy": 0.5},
        failed=dict.fromkeys(failed, "broke"),
        late=dict.fromkeys(late, "slow"),
        notes=dict.fromkeys(noted, "sent two"),
        attackers=attackers,
    )
    assert (record.round, record.accuracy, record.error) == (5, 0.5, outcome.error)
    everybody = sorted(values.keys() | failed | late)
    assert [one.client for one in record.clients] == [str(client) for client in everybody]
    for client, one in zip(everybody, record.clients, strict=True):
        assert one.is_attacker is (None if attackers is None else client in attackers)
        assert one.reason.endswith("sent two") == (client in noted)
        if client not in values:
            assert one.verdict == ("failed" if client in failed else "late")
        elif values[client] != values[client]:
            unread = {"unused"} if len(values) < least else set()
            assert one.verdict in {"rejected"} | unread
        elif outcome.model is None:
            assert one.verdict == "unused"
        else:
            assert outcome.aggregation is not None
            assert outcome.aggregation.weights is not None
            assert one.verdict in {"trusted", "reduced", "suspected"}
            assert one.weight == outcome.aggregation.weights[client]


@pytest.mark.parametrize("name", ["rounds.jsonl", "partition.json"])
def test_a_folder_of_the_older_format_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = run_folder(PLAIN, tmp_path)
    run(PLAIN, tmp_path)
    text = (folder.path / name).read_text()
    older = text.replace('"client":', '"id":').replace('"is_attacker":', '"attacks":')
    (folder.path / name).write_text(older)
    with pytest.raises(InputError, match=f"{name}.*of an older format"):
        folder.records() if name == "rounds.jsonl" else folder.partition()


# -------------------------------------------------------------------- killed at any moment


def killed_at(moment: int, scenario: Scenario, runs: Path, *, force: bool = False) -> bool:
    return fork_killed_at(
        moment, runs, lambda: list(simulate(scenario, runs=runs, workers=1, force=force))
    )


@pytest.mark.parametrize("save_every", [0.0, 3600.0])
@pytest.mark.parametrize("scenario", [PLAIN, REMEMBERING], ids=lambda s: s.rule.name)
def test_killed_before_each_touch_of_a_file_it_goes_on_to_the_same_bits(
    scenario: Scenario,
    save_every: float,
    tmp_path: Path,
    expected: Callable[[Scenario], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "_SAVE_EVERY", save_every)
    moments = 0
    while killed_at(moments + 1, scenario, tmp_path / str(moments + 1)):
        moments += 1
        runs = tmp_path / str(moments)
        before = run_folder(scenario, runs).records()
        found = run(scenario, runs)
        assert outcome(scenario, runs) == expected(scenario), f"killed at touch {moments}"
        # Of what was finished nothing is done again: times are those of the first process.
        kept = sum(a == b for a, b in zip(before, found, strict=False))
        saved = len(before) - 1 if save_every == 0 else min(1, len(before) - 1)
        assert kept >= saved, f"killed at touch {moments}"
    assert moments > (20 if save_every == 0 else 15)
    litter = {
        file.name
        for folder in tmp_path.iterdir()
        for file in run_folder(scenario, folder).path.iterdir()
    }
    assert litter - {"history-3.safetensors"} == DOCUMENTED


@settings(max_examples=15)
@example(deaths=[(36, False), (5, True), (4, False)], scenario=REMEMBERING)
@given(
    deaths=st.lists(st.tuples(st.integers(1, 45), st.booleans()), min_size=2, max_size=4),
    scenario=st.sampled_from([PLAIN, REMEMBERING]),
)
def test_killed_again_and_again_and_while_forced(
    deaths: list[tuple[int, bool]],
    scenario: Scenario,
    expected: Callable[[Scenario], Outcome],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        for moment, force in deaths:
            killed_at(moment, scenario, Path(place), force=force)
        run(scenario, Path(place))
        assert outcome(scenario, Path(place)) == expected(scenario)


@pytest.mark.parametrize("scenario", [PLAIN, REMEMBERING], ids=lambda s: s.rule.name)
def test_who_stops_between_rounds_loses_none(
    scenario: Scenario,
    tmp_path: Path,
    expected: Callable[[Scenario], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "_SAVE_EVERY", 3600.0)
    before = part_of(scenario, tmp_path, 2).records()
    assert run(scenario, tmp_path)[:2] == before, "with their times: they were not played again"
    assert outcome(scenario, tmp_path) == expected(scenario)


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_torn_last_line_is_written_again(
    cut: int, tmp_path: Path, expected: Callable[[Scenario], Outcome]
) -> None:
    folder = part_of(PLAIN, tmp_path, 1)
    first = folder.records()
    rounds = folder.path / "rounds.jsonl"
    line = rounds.read_text().replace('"round":1', '"round":2')
    rounds.write_text(rounds.read_text() + line[:-cut])
    assert folder.records() == first
    run(PLAIN, tmp_path)
    assert outcome(PLAIN, tmp_path) == expected(PLAIN)
    assert folder.records()[0] == first[0]


@pytest.mark.parametrize("scenario", [PLAIN, REMEMBERING], ids=lambda s: s.rule.name)
def test_a_record_without_its_checkpoint_is_made_again(
    scenario: Scenario, tmp_path: Path, expected: Callable[[Scenario], Outcome]
) -> None:
    folder = part_of(scenario, tmp_path / "runs", 1)
    shutil.copytree(folder.path, tmp_path / "after-one")
    part_of(scenario, tmp_path / "runs", 2)  # one from disk, one more
    for file in (tmp_path / "after-one").iterdir():
        if file.name.startswith(("checkpoint", "history")):
            shutil.copy(file, folder.path)
    assert len(folder.records()) == 2
    run(scenario, tmp_path / "runs")
    assert outcome(scenario, tmp_path / "runs") == expected(scenario)


LONG = Scenario(task=WOBBLY, clients=4, rounds=40, attack="backdoor")


def lines(scenario: Scenario, runs: Path) -> int:
    rounds = run_folder(scenario, runs).path / "rounds.jsonl"
    return rounds.read_bytes().count(b"\n") if rounds.is_file() else 0


@pytest.mark.parametrize("after", [1, 15])
def test_a_process_of_its_own_killed_after_some_lines(
    after: int, tmp_path: Path, expected: Callable[[Scenario], Outcome]
) -> None:
    process = start_run(LONG, tmp_path)
    try:
        wait_until(lambda: lines(LONG, tmp_path / "runs") >= after, f"{after} lines are there")
        time.sleep(random.random() * 0.05)  # anywhere within a round
    finally:
        process.kill()
        process.wait()
    before = run_folder(LONG, tmp_path / "runs").records()
    found = run(LONG, tmp_path / "runs")
    assert outcome(LONG, tmp_path / "runs") == expected(LONG)
    assert found[: min(after - 1, 1)] == before[: min(after - 1, 1)], "the first is saved at once"


MANY = Scenario(task=WOBBLY, clients=4, rounds=400)


def test_killed_with_workers_it_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    process = start_run(MANY, tmp_path, workers=2)
    pids: list[int] = []
    try:
        wait_until(lambda: lines(MANY, tmp_path / "runs") >= 2, "2 lines are there")
        pids = worker_pids(process.pid)
        assert len(pids) == 2
        assert shared_files(tmp_path) == []
        with pytest.raises(InputError, match="another process is at the run"):
            run(MANY, tmp_path / "runs")
        with pytest.raises(InputError, match="another process is at the run"):
            run(MANY, tmp_path / "runs", force=True)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not alive(pids), "the workers have ended by themselves")
    assert shared_files(tmp_path) == []
    done = len(run_folder(MANY, tmp_path / "runs").records())
    records = simulate(MANY, runs=tmp_path / "runs", workers=1)
    assert [next(records).round for _ in range(done + 1)] == list(range(1, done + 2))


def test_killed_while_its_workers_begin_it_leaves_nothing_either(tmp_path: Path) -> None:
    process = start_run(MANY, tmp_path, workers=2)
    pids: list[int] = []
    try:
        wait_until(lambda: len(worker_pids(process.pid)) == 2, "both workers are there")
        pids = worker_pids(process.pid)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not alive(pids), "the workers have ended by themselves")
    assert shared_files(tmp_path) == []


# -------------------------------------------------------------------- in each other's way


def test_two_at_the_same_run_in_one_process(tmp_path: Path) -> None:
    first = simulate(PLAIN, runs=tmp_path, workers=1)
    next(first)
    with pytest.raises(InputError, match="another process is at the run"):
        run(PLAIN, tmp_path)
    other = Scenario(**{**PLAIN.model_dump(), "seed": 2})
    assert len(run(other, tmp_path)) == 3  # another run is nobody's business
    assert len(list(first)) == 2
    assert len(run(PLAIN, tmp_path)) == 3


@pytest.mark.parametrize("place", ["file", "file/deeper", "/proc/fedimmune-runs"])
def test_where_no_run_can_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="cannot write the run"):
        run(PLAIN, tmp_path / place)
    assert (tmp_path / "file").read_text() == "no folder"


def test_a_file_where_the_runs_own_folder_should_be(tmp_path: Path) -> None:
    run_folder(PLAIN, tmp_path).path.write_text("no folder")
    with pytest.raises(InputError, match="cannot write the run"):
        run(PLAIN, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot write the run"):
            run(PLAIN, tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_said_and_the_run_goes_on_later(
    tmp_path: Path, expected: Callable[[Scenario], Outcome]
) -> None:
    records = simulate(PLAIN, runs=tmp_path, workers=1)
    next(records)
    rounds = run_folder(PLAIN, tmp_path).path / "rounds.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Half of the next line has room.
    resource.setrlimit(resource.RLIMIT_FSIZE, (rounds.stat().st_size * 3 // 2, limits[1]))
    try:
        with pytest.raises(InputError, match="cannot write"):
            next(records)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run(PLAIN, tmp_path)
    assert outcome(PLAIN, tmp_path) == expected(PLAIN)


# -------------------------------------------------------------------- damaged


def remove_records(folder: Path) -> None:
    (folder / "rounds.jsonl").unlink()


def cut_records(folder: Path) -> None:
    text = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(text.split("\n")[0] + "\n")


def garble_records(folder: Path) -> None:
    text = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text("garbage\n" + text.partition("\n")[2])


def binary_records(folder: Path) -> None:
    (folder / "rounds.jsonl").write_bytes(b"\xff\xfe\n" * 3)


def double_records(folder: Path) -> None:
    first = (folder / "rounds.jsonl").read_text().split("\n")[0]
    (folder / "rounds.jsonl").write_text(f"{first}\n" * 3)


def garble_checkpoint(folder: Path) -> None:
    (folder / "checkpoint.safetensors").write_bytes(b"garbage")


def cut_checkpoint(folder: Path) -> None:
    file = folder / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def empty_checkpoint(folder: Path) -> None:
    (folder / "checkpoint.safetensors").write_bytes(b"")


def foreign_checkpoint(folder: Path) -> None:
    save_file({"fc.weight": torch.zeros(4, 64)}, folder / "checkpoint.safetensors")


def checkpoint_of_nonsense(folder: Path) -> None:
    file = folder / "checkpoint.safetensors"
    save_file(load_file(file), file, metadata={"fedimmune": '{"round": "two"}'})


def checkpoint_without_json(folder: Path) -> None:
    file = folder / "checkpoint.safetensors"
    save_file(load_file(file), file, metadata={"fedimmune": "{"})


UNFINISHED = [
    remove_records,
    cut_records,
    garble_records,
    binary_records,
    double_records,
    garble_checkpoint,
    cut_checkpoint,
    empty_checkpoint,
    foreign_checkpoint,
    checkpoint_of_nonsense,
    checkpoint_without_json,
]


@pytest.mark.parametrize("damage", UNFINISHED, ids=lambda damage: damage.__name__)
def test_a_damaged_run_is_refused_kept_and_can_be_forced(
    damage: Callable[[Path], None], tmp_path: Path, expected: Callable[[Scenario], Outcome]
) -> None:
    folder = part_of(PLAIN, tmp_path, 2)
    damage(folder.path)
    before = {name: (folder.path / name).read_bytes() for name in files(folder)}
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            run(PLAIN, tmp_path)
        assert str(folder.path) in str(caught.value)
        assert "\n" not in str(caught.value)
        after = {name: (folder.path / name).read_bytes() for name in files(folder)}
        assert after == before
    assert len(run(PLAIN, tmp_path, force=True)) == 3
    assert outcome(PLAIN, tmp_path) == expected(PLAIN)


@pytest.mark.parametrize(
    "damage", [remove_records, cut_records, garble_records, binary_records, double_records]
)
def test_a_finished_run_without_its_records_is_refused_and_can_be_forced(
    damage: Callable[[Path], None], tmp_path: Path, expected: Callable[[Scenario], Outcome]
) -> None:
    run(PLAIN, tmp_path)
    folder = run_folder(PLAIN, tmp_path)
    damage(folder.path)
    with pytest.raises(InputError, match=folder.path.name):
        run(PLAIN, tmp_path)
    assert folder.is_finished
    assert len(run(PLAIN, tmp_path, force=True)) == 3
    assert outcome(PLAIN, tmp_path) == expected(PLAIN)


@pytest.mark.parametrize("content", [None, b"garbage", b""])
def test_a_rule_that_cannot_remember_is_refused_and_can_be_forced(
    content: bytes | None, tmp_path: Path, expected: Callable[[Scenario], Outcome]
) -> None:
    folder = part_of(REMEMBERING, tmp_path, 2)
    history = folder.path / "history-2.safetensors"
    if content is None:
        history.unlink()
    else:
        history.write_bytes(content)
    with pytest.raises(InputError, match=r"history-2\.safetensors"):
        run(REMEMBERING, tmp_path)
    assert len(folder.records()) == 2
    run(REMEMBERING, tmp_path, force=True)
    assert outcome(REMEMBERING, tmp_path) == expected(REMEMBERING)


def test_other_data_is_refused_kept_and_can_be_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Callable[[Scenario], Outcome]
) -> None:
    folder = part_of(PLAIN, tmp_path, 2)
    records = folder.records()
    with monkeypatch.context() as other:
        other.setattr(Blobs, "seed_of_data", 5)
        with pytest.raises(InputError, match="other data"):
            run(PLAIN, tmp_path)
        assert folder.records() == records
    run(PLAIN, tmp_path)
    assert outcome(PLAIN, tmp_path) == expected(PLAIN)
    monkeypatch.setattr(Blobs, "seed_of_data", 5)
    assert len(run(PLAIN, tmp_path, force=True)) == 3
    assert outcome(PLAIN, tmp_path) != expected(PLAIN)


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("part", ["inputs", "labels"])
def test_one_changed_sample_is_other_data(
    where: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_of(PLAIN, tmp_path, 1)
    usual = Blobs.load

    def changed(self: Blobs, place: Path) -> Any:
        data = usual(self, place)
        tensor = getattr(data.clients, part)
        row = tensor[0 if where == "first" else -1]
        row.fill_(3 - row if part == "labels" else 0.123)
        return data

    monkeypatch.setattr(Blobs, "load", changed)
    with pytest.raises(InputError, match="other data"):
        run(PLAIN, tmp_path)


def test_a_lost_scenario_is_written_again(tmp_path: Path) -> None:
    folder = part_of(PLAIN, tmp_path, 2)
    (folder.path / "scenario.toml").unlink()
    run(PLAIN, tmp_path)
    assert Scenario.from_toml(folder.path, trust_code=True).resolve() == PLAIN.resolve()


@pytest.mark.parametrize("force", [False, True])
def test_a_garbled_scenario_is_written_again(force: bool, tmp_path: Path) -> None:
    folder = part_of(PLAIN, tmp_path, 2)
    (folder.path / "scenario.toml").write_text("clients = ")
    run(PLAIN, tmp_path, force=force)
    assert Scenario.from_toml(folder.path, trust_code=True).resolve() == PLAIN.resolve()
