"""The tables, against a naive reading of the lines on disk, and what is refused."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Scenario, load_runs, simulate
from fedimmune.errors import InputError
from fedimmune.results import ClientResult, Verdict
from fedimmune.runs.records import ClientData, RoundRecord, Seconds
from fedimmune.runs.results import FIGURES, Results, _rows
from fedimmune.simulation import run_folder
from tests.report.making import make_run, scenario_of
from tests.simulation.own_task import Blobs

NO_TIME = Seconds(training=0, aggregating=0, testing=0)
VERDICTS = ("trusted", "unused", "suspected", "rejected", "failed", "late")
MEASURED = ("accuracy", "loss", "asr", "precision", "recall", "attacker_weight", "distance")


def lines(folder: Path) -> list[dict[str, Any]]:
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def same(found: Any, wanted: Any) -> bool:
    """Whether a cell holds what JSON does; null is a missing value."""
    return bool(pd.isna(found)) if wanted is None else found == pytest.approx(wanted)


def figures(results: Results, run: str) -> dict[str, Any]:
    table = results.figures.set_index("run")
    return {str(name): value for name, value in table.loc[run].items()}


# -------------------------------------------------------------------- rows


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("played", [0, 4, 6])
def test_every_line_is_a_row_and_every_client_one(tmp_path: Path, truth: bool, played: int) -> None:
    places = {
        name: make_run(tmp_path / name, scenario, truth=truth, played=played, error="it <b> broke")
        for name, scenario in (
            ("a", scenario_of("krum")),
            ("b", scenario_of("mean", seed=7, task="some.module:Mine")),
        )
    }
    results = load_runs(tmp_path)
    rounds = results.rounds.set_index(["run", "round"])
    clients = results.clients.set_index(["run", "round", "client"])
    raw = {(name, line["round"]): line for name in places for line in lines(places[name])}
    assert list(rounds.index) == list(raw)
    for place, line in raw.items():
        row = rounds.loc[place]
        assert all(same(row[name], line[name]) for name in MEASURED)
        assert same(row["error"], line["error"])
        assert row["seconds"] == pytest.approx(sum(line["seconds"].values()))
        assert row["accused"] == sum(c["verdict"] == "suspected" for c in line["clients"])
        assert (row["rule"], row["seed"]) == (("krum", 1) if place[0] == "a" else ("mean", 7))
        assert row["task"] == ("digits" if place[0] == "a" else "Mine")
        for client in line["clients"]:
            found = clients.loc[(*place, client["client"])]  # type: ignore[index]
            assert same(found["is_attacker"], client["is_attacker"])
            assert all(same(found[name], client[name]) for name in ("weight", "score", "kind"))
            assert found["verdict"] == client["verdict"]
            assert same(found["reason"], client["reason"])
    assert len(clients) == sum(len(line["clients"]) for line in raw.values())
    assert list(results.runs["finished"]) == [played == 6] * 2
    data = {c["client"]: c for c in json.loads((places["a"] / "partition.json").read_text())}
    part = results.partition[results.partition["run"] == "a"]
    for row in part.to_dict("records"):
        assert data[row["client"]]["samples"][row["class"]] == row["samples"]
    assert len(part) == 100


def test_a_folder_of_runs_stands_for_them_and_nothing_counts_twice(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / f"run{seed}", scenario_of(seed=seed))
    (tmp_path / "notes").mkdir()
    (tmp_path / "read.me").write_text("no run")
    assert list(load_runs(str(tmp_path)).runs["seed"]) == [1, 2]
    twice = [tmp_path / "run2", tmp_path, tmp_path / "notes" / ".." / "run1"]
    assert list(load_runs(twice).runs["seed"]) == [2, 1]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    places = [make_run(tmp_path / part / "run", scenario_of(seed=1)) for part in "ab"]
    results = load_runs(places)
    assert list(results.runs["run"]) == [str(place) for place in places]
    assert len(results.rounds) == 12


def test_keys_tell_apart_what_differs_in_more_than_rule_and_seed(tmp_path: Path) -> None:
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
    runs = load_runs([tmp_path]).runs
    assert runs["key"].nunique() == 3
    assert list(runs.groupby("key", sort=False)["label"].first()) == [
        "digits · backdoor by 4 of 10 clients · partition.alpha = 0.9",
        "digits · omniscient by 4 of 10 clients",
        "digits · backdoor by 4 of 10 clients · partition.alpha = 0.1",
    ]
    assert list(runs["rule_label"][:4]) == [
        *("mean", "mean", "krum (attackers=3)", "krum (attackers=4)")
    ]


# -------------------------------------------------------------------- figures and summary


@pytest.mark.parametrize("attack", ["backdoor", "omniscient", "none"])
@pytest.mark.parametrize("truth", [True, False])
def test_a_runs_figures(tmp_path: Path, attack: str, truth: bool) -> None:
    folder = make_run(tmp_path / "run", scenario_of(attack=attack), truth=truth, error="broke")
    raw, found = lines(folder), figures(load_runs(folder), "run")
    assert found["played"] == len(raw) == 6
    for name in ("accuracy", "asr", "accuracy_without_success"):
        assert same(found[name], raw[-1][name])
    shares = [line["attacker_weight"] for line in raw]
    assert same(found["attacker_weight"], average(shares))
    has_attackers = truth and attack != "none"
    assert same(found["over_half"], sum(s > 0.5 for s in shares) if has_attackers else None)
    assert same(found["recall"], average([line["recall"] for line in raw]))
    honest = [c for line in raw for c in line["clients"] if c["is_attacker"] is False]
    kept = [c for c in honest if c["weight"] is not None and c["weight"] > 0]
    assert same(found["honest_kept"], len(kept) / len(honest) if honest else None)
    assert found["distance"] == pytest.approx(average([line["distance"] / 2.0 for line in raw]))
    accused = [
        sum(c["verdict"] in {"suspected", "rejected"} for c in line["clients"])
        for line in raw
        if line["error"] is None
    ]
    assert found["accused"] == pytest.approx(sum(accused) / len(accused))
    assert found["failed_rounds"] == 1


def test_a_rule_without_weights_kept_and_weighed_nobody(tmp_path: Path) -> None:
    found = figures(load_runs(make_run(tmp_path / "run", weighs=False)), "run")
    assert all(pd.isna(found[name]) for name in ("honest_kept", "attacker_weight", "over_half"))


def test_seeds_are_averaged_and_compared_with_their_own_oracle(tmp_path: Path) -> None:
    for rule in ("krum", "oracle"):
        for seed in (1, 2, 3):
            make_run(tmp_path / f"{rule}{seed}", scenario_of(rule, seed=seed))
    results = load_runs(tmp_path)
    summary = results.summary()
    assert list(summary["rule_label"]) == ["krum", "oracle"]
    assert list(summary["n"]) == [3, 3]
    last = {
        (rule, seed): lines(tmp_path / f"{rule}{seed}")[-1]
        for rule in ("krum", "oracle")
        for seed in (1, 2, 3)
    }
    krum = summary.iloc[0]
    for name in ("accuracy", "asr", "accuracy_without_success"):
        values = [last["krum", seed][name] for seed in (1, 2, 3)]
        assert krum[name] == pytest.approx(statistics.mean(values))
        assert krum[f"{name}_std"] == pytest.approx(statistics.stdev(values))
    score = "accuracy_without_success"
    gaps = [last["oracle", seed][score] - last["krum", seed][score] for seed in (1, 2, 3)]
    assert krum["behind_oracle"] == pytest.approx(statistics.mean(gaps))
    assert krum["behind_oracle_std"] == pytest.approx(statistics.stdev(gaps))
    assert summary.iloc[1]["behind_oracle"] == 0
    assert {*FIGURES, *(f"{name}_std" for name in FIGURES)} <= set(summary)
    by_seed = results.summary(by="seed").set_index("seed")
    both = [last[rule, 2]["accuracy"] for rule in ("krum", "oracle")]
    assert by_seed.loc[2, "accuracy"] == pytest.approx(statistics.mean(both))


def test_without_asr_the_oracle_is_ahead_in_accuracy(tmp_path: Path) -> None:
    for rule in ("krum", "oracle"):
        make_run(tmp_path / rule, scenario_of(rule, attack="omniscient"))
    gap = lines(tmp_path / "oracle")[-1]["accuracy"] - lines(tmp_path / "krum")[-1]["accuracy"]
    assert figures(load_runs(tmp_path), "krum")["behind_oracle"] == pytest.approx(gap)


def test_an_interrupted_run_is_compared_where_it_stopped(tmp_path: Path) -> None:
    make_run(tmp_path / "krum", scenario_of("krum"), played=3)
    make_run(tmp_path / "oracle", scenario_of("oracle"))
    score = "accuracy_without_success"
    gap = lines(tmp_path / "oracle")[2][score] - lines(tmp_path / "krum")[2][score]
    assert figures(load_runs(tmp_path), "krum")["behind_oracle"] == pytest.approx(gap)


# -------------------------------------------------------------------- truth that is told afterwards


def told(attacks: list[bool]) -> tuple[ClientData, ...]:
    return tuple(
        ClientData(client=str(i), is_attacker=a, samples=()) for i, a in enumerate(attacks)
    )


@pytest.mark.parametrize("rule", ["krum", "median", "mean"])
def test_a_simulation_that_forgot_who_attacks_is_told_again(tmp_path: Path, rule: str) -> None:
    scenario = Scenario(rule=rule, attack="omniscient", attackers=2, clients=7, rounds=2)
    for _ in simulate(scenario, runs=tmp_path, workers=1):
        pass
    folder = run_folder(scenario, tmp_path).path
    known = load_runs(folder)
    records = lines(folder)
    for record in records:
        record.update(dict.fromkeys(("precision", "recall", "attacker_weight")))
        for client in record["clients"]:
            client["is_attacker"] = None
    (folder / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    again = load_runs(folder)
    pd.testing.assert_frame_equal(again.clients, known.clients)
    pd.testing.assert_frame_equal(again.rounds, known.rounds)
    (folder / "partition.json").unlink()
    assert load_runs(folder).clients["is_attacker"].isna().all()


@given(
    st.lists(
        st.tuples(st.sampled_from(VERDICTS), st.booleans(), st.floats(0, 1)),
        min_size=1,
        max_size=8,
    )
)
def test_figures_by_their_definition(drawn: list[tuple[str, bool, float]]) -> None:
    sent = [verdict in VERDICTS[:3] for verdict, _, _ in drawn]
    clients = tuple(
        ClientResult(str(i), Verdict(verdict), weight=weight if sent[i] else None)
        for i, (verdict, _, weight) in enumerate(drawn)
    )
    record = RoundRecord(round=1, clients=clients, seconds=NO_TIME)
    (judged,), rows = _rows("run", [record], told([attacks for _, attacks, _ in drawn]))
    assert [row["is_attacker"] for row in rows] == [attacks for _, attacks, _ in drawn]
    there = [each for each in drawn if each[0] not in {"failed", "late"}]
    accused = [attacks for verdict, attacks, _ in there if verdict in {"suspected", "rejected"}]
    bad = [verdict for verdict, attacks, _ in there if attacks]
    if accused:
        assert judged["precision"] == pytest.approx(accused.count(True) / len(accused))
    else:
        assert judged["precision"] is None
    if bad and (accused or any(sent)):
        assert judged["recall"] == pytest.approx(accused.count(True) / len(bad))
    if bad and any(sent):
        theirs = sum(w for (_, attacks, w), s in zip(drawn, sent, strict=True) if attacks and s)
        assert judged["attacker_weight"] == pytest.approx(theirs)


def test_what_records_say_themselves_stays() -> None:
    client = ClientResult("0", Verdict.TRUSTED, 1.0, is_attacker=False)
    record = RoundRecord(round=1, clients=(client,), attacker_weight=0.0, seconds=NO_TIME)
    (row,), (only,) = _rows("run", [record], told([True]))
    assert (row["attacker_weight"], only["is_attacker"]) == (0.0, False)


def test_a_skipped_round_has_no_figures() -> None:
    client = ClientResult("0", Verdict.REJECTED)
    record = RoundRecord(round=1, clients=(client,), error="too few", seconds=NO_TIME)
    (row,), (only,) = _rows("run", [record], told([True]))
    assert (only["is_attacker"], row["precision"]) == (True, None)


def test_a_simulation_writes_down_who_has_what(tmp_path: Path) -> None:
    scenario = Scenario(
        task="tests.simulation.own_task:Blobs", clients=5, rounds=2, attack="backdoor", attackers=2
    )
    records = simulate(scenario, runs=tmp_path, workers=1)
    next(records)
    records.close()
    results = load_runs(tmp_path)
    labels = Blobs().load(Path()).clients.labels.tolist()
    totals = results.partition.groupby("class")["samples"].sum()
    assert dict(totals) == {k: labels.count(k) for k in range(4)}
    found = {table: set(frame.loc[frame["is_attacker"].astype(bool), "client"]) for table, frame in
             (("partition", results.partition), ("clients", results.clients))}  # fmt: skip
    assert found["partition"] == found["clients"]
    assert len(found["clients"]) == 2


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "nowhere does not exist"),
        ("file", "file is not a folder"),
        ("empty", "there is no run in .*empty"),
        ("x" * 300, "cannot read|does not exist"),
    ],
)
def test_no_run_is_named(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=said):
        load_runs([tmp_path / place])


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="needs a run"):
        load_runs([])


def overwrite(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def suspect_since(folder: Path) -> None:
    text = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(text.replace('"since":null', f'"since":{2**63}', 1))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "scenario.toml").unlink(),
        overwrite("scenario.toml", "rounds = = 3"),
        overwrite("scenario.toml", 'seed = "one"'),
        overwrite("scenario.toml", f"clients = {2**60}"),
        overwrite("scenario.toml", "attackers = -1"),
        overwrite("rounds.jsonl", "garbage\n"),
        overwrite("rounds.jsonl", '{"round": 1}\n'),
        suspect_since,
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
    with pytest.raises(InputError, match=r"the run .*spoiled is damaged") as error:
        load_runs(tmp_path)
    assert len(str(error.value).splitlines()) == 1
