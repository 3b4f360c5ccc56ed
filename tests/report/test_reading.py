"""Which runs a report is of, and which it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedimmune import Scenario, simulate
from fedimmune.errors import InputError
from fedimmune.federation import run_folder
from fedimmune.report import write_report
from fedimmune.report.grouping import settings_of
from fedimmune.report.reading import read_run, read_runs
from tests.federation.own_task import Blobs
from tests.report.making import make_run, scenario_of


def test_a_folder_of_runs_stands_for_them_and_nothing_counts_twice(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / f"run{seed}", scenario_of(seed=seed))
    (tmp_path / "notes").mkdir()
    (tmp_path / "read.me").write_text("no run")
    assert [run.seed for run in read_runs([tmp_path])] == [1, 2]
    twice = [tmp_path / "run2", tmp_path, tmp_path / "notes" / ".." / "run1"]
    assert [run.seed for run in read_runs(twice)] == [2, 1]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "nowhere does not exist"),
        ("file", "file is no folder"),
        ("empty", "there is no run in .*empty"),
        ("x" * 300, "cannot read|does not exist"),
    ],
)
def test_no_run_is_named(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=said):
        write_report([tmp_path / place], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a run"):
        write_report([], tmp_path / "report.html")


def overwrite(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "scenario.toml").unlink(),
        overwrite("scenario.toml", "rounds = = 3"),
        overwrite("rounds.jsonl", "garbage\n"),
        overwrite("rounds.jsonl", '{"round": 1}\n'),
        overwrite("partition.json", "[1, 2]"),
        overwrite("partition.json", '[{"client": 1, "samples": "many"}]'),
        lambda folder: (folder / "scenario.toml").write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_run_is_named_even_among_others(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    make_run(tmp_path / "good")
    damage(make_run(tmp_path / "spoiled", scenario_of(seed=2)))
    with pytest.raises(InputError, match=r"the run .*spoiled is damaged"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_settings_part_what_differs_in_more_than_rule_and_seed(tmp_path: Path) -> None:
    variants = [
        scenario_of("mean"),
        scenario_of("mean", seed=2),
        scenario_of({"name": "krum", "attackers": 3}),
        scenario_of({"name": "krum", "attackers": 4}),
        scenario_of("mean", attack="omniscient"),
        scenario_of("mean", partition={"name": "dirichlet", "alpha": 0.1}),
    ]
    for i, scenario in enumerate(variants):
        make_run(tmp_path / str(i), scenario)
    settings = settings_of(read_runs([tmp_path]))
    assert [setting.title for setting in settings] == [
        "digits · backdoor by 4 of 10 clients · partition.alpha = 0.9",
        "digits · omniscient by 4 of 10 clients",
        "digits · backdoor by 4 of 10 clients · partition.alpha = 0.1",
    ]
    first = settings[0].lines
    assert [line.label for line in first] == ["mean", "krum (attackers=3)", "krum (attackers=4)"]
    assert [len(line.runs) for line in first] == [2, 1, 1]
    styles = {line.label: line.style for setting in settings for line in setting.lines}
    assert len(set(styles.values())) == 3, "a rule looks the same everywhere"


def test_a_simulation_writes_down_who_has_what(tmp_path: Path) -> None:
    scenario = Scenario(
        task="tests.federation.own_task:Blobs", clients=5, rounds=2, attack="backdoor", attackers=2
    )
    records = simulate(scenario, runs=tmp_path, workers=1)
    next(records)
    records.close()
    folder = run_folder(scenario, tmp_path)
    found = folder.partition()
    assert found is not None
    labels = Blobs().load(Path()).clients.labels.tolist()
    assert [client.client for client in found] == ["0", "1", "2", "3", "4"]
    totals = [sum(client.samples[k] for client in found) for k in range(4)]
    assert totals == [labels.count(k) for k in range(4)]
    attackers = {client.client for client in folder.records()[0].clients if client.is_attacker}
    assert {client.client for client in found if client.is_attacker} == attackers
    # A run of before goes on, and has it then.
    written = (folder.path / "partition.json").read_bytes()
    (folder.path / "partition.json").unlink()
    assert read_run(folder.path).partition is None
    list(simulate(scenario, runs=tmp_path, workers=1))
    assert (folder.path / "partition.json").read_bytes() == written
