"""The figures of a report, beside the same ones computed naively from the lines on disk."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from fedimmune.report.grouping import settings_of
from fedimmune.report.lines import outcome_charts, weight_charts
from fedimmune.report.measures import figures_of, line_figures
from fedimmune.report.reading import read_run, read_runs
from tests.report.making import make_run, scenario_of


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@pytest.mark.parametrize("attack", ["backdoor", "omniscient", "none"])
@pytest.mark.parametrize("truth", [True, False])
def test_a_runs_figures(tmp_path: Path, attack: str, truth: bool) -> None:
    folder = make_run(tmp_path / "run", scenario_of(attack=attack), truth=truth, error="broke")
    raw, found = lines(folder), figures_of(read_run(folder))
    assert found.rounds == len(raw) == 6
    assert found.accuracy == raw[-1]["accuracy"]
    assert found.asr == raw[-1]["asr"]
    assert found.score == raw[-1]["accuracy_without_success"]
    shares = [line["attacker_weight"] for line in raw]
    assert found.attacker_weight == pytest.approx(average(shares))
    if truth and attack != "none":
        assert found.over_half == sum(share > 0.5 for share in shares)
        assert found.recall == pytest.approx(average([line["recall"] for line in raw]))
    else:
        assert found.over_half is None
        assert found.recall is None
    honest = [c for line in raw for c in line["clients"] if c["is_attacker"] is False]
    kept = [c for c in honest if c["weight"] is not None and c["weight"] > 0]
    assert found.honest_kept == (len(kept) / len(honest) if honest else None)
    assert found.distance == pytest.approx(average([line["distance"] / 2.0 for line in raw]))
    accused = [
        sum(c["verdict"] in {"suspected", "rejected"} for c in line["clients"])
        for line in raw
        if line["error"] is None
    ]
    assert found.accused == pytest.approx(sum(accused) / len(accused))
    assert found.failed_rounds == 1


def test_a_rule_without_weights_kept_and_weighed_nobody(tmp_path: Path) -> None:
    found = figures_of(read_run(make_run(tmp_path / "run", weighs=False)))
    assert found.honest_kept is None
    assert found.attacker_weight is None
    assert found.over_half is None


def test_seeds_are_averaged_and_compared_with_their_own_oracle(tmp_path: Path) -> None:
    for rule in ("krum", "oracle"):
        for seed in (1, 2, 3):
            make_run(tmp_path / f"{rule}{seed}", scenario_of(rule, seed=seed))
    (setting,) = settings_of(read_runs([tmp_path]))
    krum, oracle = setting.lines
    assert (krum.label, oracle.label) == ("krum", "oracle")
    assert oracle.is_oracle
    last = {
        (rule, seed): lines(tmp_path / f"{rule}{seed}")[-1]["accuracy_without_success"]
        for rule in ("krum", "oracle")
        for seed in (1, 2, 3)
    }
    found = line_figures(setting, krum)
    scores = [last["krum", seed] for seed in (1, 2, 3)]
    assert found["score"].mean == pytest.approx(statistics.mean(scores))
    assert found["score"].spread == pytest.approx(statistics.stdev(scores))
    gaps = [last["oracle", seed] - last["krum", seed] for seed in (1, 2, 3)]
    assert found["behind_oracle"].mean == pytest.approx(statistics.mean(gaps))
    assert line_figures(setting, oracle)["behind_oracle"].mean == 0


def test_without_asr_the_oracle_is_ahead_in_accuracy(tmp_path: Path) -> None:
    for rule in ("krum", "oracle"):
        make_run(tmp_path / rule, scenario_of(rule, attack="omniscient"))
    (setting,) = settings_of(read_runs([tmp_path]))
    gap = lines(tmp_path / "oracle")[-1]["accuracy"] - lines(tmp_path / "krum")[-1]["accuracy"]
    assert line_figures(setting, setting.lines[0])["behind_oracle"].mean == pytest.approx(gap)


def test_an_interrupted_run_is_compared_where_it_stopped(tmp_path: Path) -> None:
    make_run(tmp_path / "krum", scenario_of("krum"), played=3)
    make_run(tmp_path / "oracle", scenario_of("oracle"))
    (setting,) = settings_of(read_runs([tmp_path]))
    score = "accuracy_without_success"
    gap = lines(tmp_path / "oracle")[2][score] - lines(tmp_path / "krum")[2][score]
    assert line_figures(setting, setting.lines[0])["behind_oracle"].mean == pytest.approx(gap)


def test_lines_are_means_over_seeds_and_bands_their_range(tmp_path: Path) -> None:
    make_run(tmp_path / "a", scenario_of(seed=1))
    make_run(tmp_path / "b", scenario_of(seed=2), played=4)
    (setting,) = settings_of(read_runs([tmp_path]))
    series = outcome_charts(setting)[0].series[0]
    one, other = ([line["accuracy"] for line in lines(tmp_path / name)] for name in "ab")
    assert series.low is not None
    assert series.high is not None
    assert len(series.values) == 6
    for i in range(6):
        there = [values[i] for values in (one, other) if i < len(values)]
        assert series.values[i] == pytest.approx(sum(there) / len(there))
        assert (series.low[i], series.high[i]) == (min(there), max(there))


def test_the_attackers_share_is_a_level_line(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    (chart,) = weight_charts(settings_of(read_runs([tmp_path]))[0])
    assert chart.level is not None
    assert chart.level[0] == 0.4
