"""Public benchmarks: what is played, and what their tables say of it."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from fedimmune import Scenario, attacks, rules, simulate
from reproduction import benchmarks
from reproduction.benchmarks import byzfl, figures, grid, heat_map, most_attackers, thesis, worst
from reproduction.rows import as_csv

FILES = {"adaptive": Path("some.defense"), "spectral": Path("some.detector")}


def test_a_rule_is_told_of_as_many_attackers_as_it_admits() -> None:
    assert most_attackers("median") == 4
    assert most_attackers("krum") == 3
    assert most_attackers("bulyan") == 1
    for name in rules.available():
        f = most_attackers(name)
        assert 1 <= f <= 4
        if f < 4:
            assert rules.get(name, attackers=f).clients_needed <= 10
            assert rules.get(name, attackers=f + 1).clients_needed > 10


def test_the_grid_has_every_rule_under_every_attack_that_fits() -> None:
    entries = list(grid("digits", rules.available(), attacks.available(), [1, 2], FILES))
    played = {(one.row, one.column) for one in entries}
    fitting = set(attacks.available()) - {"text-backdoor", "tabular-backdoor"}
    assert played == {(rule, attack) for rule in rules.available() for attack in fitting}
    assert len({one.scenario.to_toml() for one in entries}) == len(entries), "nothing twice"
    for one in entries:
        if one.row != "oracle":  # there is an oracle to compare with
            same = {"attack", "attackers", "seed"}
            assert any(
                other.row == "oracle"
                and all(getattr(other.scenario, k) == getattr(one.scenario, k) for k in same)
                for other in entries
            )


def test_byzfls_benchmark_is_played_as_published() -> None:
    entries = list(byzfl(["geometric-median", "oracle"], [1], [0.0, 1.0], {}))
    assert len(entries) == 2 * 4 * (3 + 1), "one attack is enough for the oracle"
    one = entries[0].scenario
    assert (one.clients, one.attackers, one.rounds, one.batch, one.local_steps) == (
        *(11, 1, 800, 25, 1),
    )
    for each in entries:
        if each.row == "geometric-median":
            f = each.scenario.attackers
            assert each.scenario.rule.parameters["before"] == f"clip(at=0.2),nnm(attackers={f})"
    assert one.attacker_data == "copied"
    own = {"adaptive": Path("own.defense")}
    names = ["foolsgold", "adaptive", "oracle", "geometric-median"]
    given = byzfl(names, [1], [0.0], own, before="nnm,arc,nnm(2)", max_false_alarms=0.01)
    found = {each.row: each.scenario.rule.parameters for each in given}
    assert found["foolsgold"]["before"] == "nnm(attackers=4),arc(attackers=4),nnm(attackers=2)"
    assert found["geometric-median"]["before"] == "clip(at=0.2),nnm(attackers=4)"
    assert not {"before"} & {*found["adaptive"], *found["oracle"]}
    assert found["adaptive"]["max_false_alarms"] == 0.01
    assert one.optimizer.carried
    for each in entries:
        attacks.get(each.scenario.attack.name, **each.scenario.attack.parameters)


def test_the_learned_rule_stands_with_its_own_defense_and_a_universal_one() -> None:
    files = {"adaptive": Path("own.defense"), "universal": None}
    own, universal = list(thesis(["adaptive", "universal"], [1], files))[:2]
    assert own.scenario.rule.name == universal.scenario.rule.name == "adaptive"
    assert "own.defense" in str(own.scenario.rule)
    assert "defense" not in universal.scenario.rule.parameters
    assert most_attackers("universal") == 4


def test_the_thesis_has_two_partitions() -> None:
    entries = list(thesis(["mean", "oracle"], [1], {}))
    assert {one.scenario.partition.name for one in entries} == {"iid", "dirichlet"}
    assert {one.scenario.attackers for one in entries} == {2}
    assert {one.scenario.task.name for one in entries} == {"mnist"}
    elsewhere = thesis(["mean"], [1], {}, "fashion-mnist")
    assert {one.scenario.task.name for one in elsewhere} == {"fashion-mnist"}


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Play a small grid, two rounds each."""
    runs = tmp_path_factory.mktemp("runs")
    names, kinds = ["mean", "median", "krum", "oracle"], ["none", "sign-flip", "backdoor"]
    entries = [
        replace(one, scenario=Scenario(**{**one.scenario.model_dump(), "rounds": 2}))
        for one in grid("digits", names, kinds, [1], {})
    ]
    for one in entries:
        list(simulate(one.scenario, runs=runs, workers=1))
    return figures(entries, runs)


def test_harm_is_measured_against_the_oracle_of_the_same_attack(frame: pd.DataFrame) -> None:
    assert set(frame["rule"]) == {"mean", "median", "krum", "oracle"}
    assert (frame.loc[frame["rule"] == "oracle", "harm"] == 0).all()
    for _, one in frame.iterrows():
        place = (frame["rule"] == "oracle") & (frame["attack"] == one["attack"])
        limit = frame[place & (frame["attackers"] == one["attackers"])].iloc[0]
        below, above = limit["accuracy"] - one["accuracy"], one["asr"] - limit["asr"]
        expected = max(0.0, below, 0.0 if pd.isna(above) else above)
        assert one["harm"] == pytest.approx(expected)


def test_the_worst_case_is_the_attack_that_harms_most(frame: pd.DataFrame) -> None:
    found = worst(frame).set_index("rule")
    for rule in ("mean", "median", "krum"):
        own = frame[(frame["rule"] == rule) & (frame["attack"] != "none")]
        assert found.loc[rule, "harm"] == own["harm"].max()
        assert found.loc[rule, "worst attack"] == own.sort_values("harm").iloc[-1]["attack"]
    assert found.loc["krum", "attackers"] == 3
    assert list(found["harm"]) == sorted(found["harm"])


def test_the_table_and_the_heat_map_have_every_rule(frame: pd.DataFrame) -> None:
    text = benchmarks._grid_table(frame)
    assert all(f"`{rule}`" in text for rule in ("mean", "median", "krum", "oracle"))
    drawn = heat_map(frame).to_dict()
    read = pd.read_csv(StringIO(as_csv(frame)))
    assert benchmarks._grid_table(read) == text
    assert {"attack", "rule"} <= set(str(drawn).replace("'", " ").replace(":", " ").split())


def test_a_worst_case_that_is_not_whole_is_not_printed() -> None:
    rows = [
        {
            "rule": "geometric-median",
            "attack": f"γ = 0, f = 1: {name}",
            "accuracy": accuracy,
            "best": best,
        }
        for name, accuracy, best in (
            *(("sign-flip", 0.9, 0.9), ("ipm", 0.8, 0.81), ("alie", 0.7, 0.95)),
        )
    ]
    whole = benchmarks._byzfl_table(pd.DataFrame(rows))
    assert "| 0 | `geometric-median` | 0.70 (0.81) | – | – | – | 0.87, 0.56, 0.26, 0.27 |" in whole
    del rows[0]["best"]  # not known of one attack: not known of the worst
    some = benchmarks._byzfl_table(pd.DataFrame(rows))
    assert "| 0.70 | – | – | – | 0.87" in some
    part = benchmarks._byzfl_table(pd.DataFrame(rows[:2]))
    assert "0.70" not in part
    assert "0.80" not in part


def test_byzfls_benchmark_has_one_task() -> None:
    with pytest.raises(SystemExit, match="a task of its own"):
        benchmarks.main(["byzfl", "--task", "mnist", "--no-run"])


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no run of this benchmark"):
        benchmarks.main(
            ["grid", "--no-run", "--rules", "mean,oracle", "--folder", str(tmp_path / "none")]
        )
