"""What rules hold on real data, from finished runs; run as ``python -m benchmarks.defended RUNS``.

Reads the run folders in RUNS (the commands that make them are in docs/results/learned-mnist.md) and
prints, in Markdown, one table of accuracy and attack success by rule and scenario, the mean over
seeds, one of the distances to the oracle, seed by seed, and one of the kinds that suspected
attackers were called.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedimmune import rules
from fedimmune.runs.folder import RunFolder

_SCENARIOS = ("no attack", "backdoor", "omniscient", "unseen pattern", "unseen label flip")
_HAS_PATTERN = {"backdoor", "unseen pattern"}


@dataclass(frozen=True)
class Figures:
    """What there is to say of one finished run, in percent; and what suspects were called."""

    accuracy: float
    success: float | None
    attacker_weight: float
    rounds_over_half: int
    accused: float
    called: Counter[str]


Runs = dict[tuple[str, str, int], Figures]
"""By rule (or defense), scenario and seed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--task", default="mnist", help="whose runs are read")
    given = parser.parse_args(arguments)
    runs = read(given.runs, given.task)
    print(f"{len(runs)} finished runs\n")
    print(outcomes(runs), "\n")
    print(distances(runs), "\n")
    print(kinds(runs))


def read(folder: Path, task: str) -> Runs:
    """Read the finished runs of a task in a folder."""
    found: Runs = {}
    for path in sorted(folder.iterdir()):
        if not (path / "model.safetensors").is_file():
            continue
        scenario = tomllib.loads((path / "scenario.toml").read_text())
        if scenario["task"]["name"] != task:
            continue
        rule = scenario["rule"]
        found[_name(rule), scenario_title(scenario["attack"]), scenario["seed"]] = _figures(path)
    return found


def _name(rule: dict[str, Any]) -> str:
    if "defense" not in rule:
        return str(rule["name"])
    name = Path(rule["defense"]).stem
    usual = "paper" not in name
    return name if rule["memory"] == usual else f"{name}, {'with' if not usual else 'no'} memory"


def scenario_title(attack: dict[str, Any]) -> str:
    """Name a scenario by its attack."""
    if attack["name"] == "none":
        return "no attack"
    if attack["name"] == "label-flip":
        return "unseen label flip"
    return "unseen pattern" if attack.get("shift_y") else str(attack["name"])


def _figures(path: Path) -> Figures:
    records = RunFolder(path).records()
    honest = [c for record in records for c in record.clients if not c.is_attacker]
    shares = [record.attacker_weight or 0.0 for record in records]
    last = records[-1]
    return Figures(
        accuracy=100 * (last.accuracy or 0.0),
        success=None if last.asr is None else 100 * last.asr,
        attacker_weight=100 * statistics.fmean(shares),
        rounds_over_half=sum(share > 0.5 for share in shares),
        accused=100 * statistics.fmean(client.verdict == "suspected" for client in honest),
        called=Counter(
            c.suspicion.kind
            for record in records
            for c in record.clients
            if c.is_attacker and c.suspicion
        ),
    )


def outcomes(runs: Runs) -> str:
    """Accuracy, and attack success where there is a pattern, by rule and scenario."""
    lines = ["| | " + " | ".join(_SCENARIOS) + " |", "|---" * (len(_SCENARIOS) + 1) + "|"]
    for rule in dict.fromkeys(rule for rule, _, _ in runs):
        cells = []
        for scenario in _SCENARIOS:
            found = [runs[key] for key in runs if key[:2] == (rule, scenario)]
            if not found:
                cells.append("–")
                continue
            cell = f"{statistics.fmean(run.accuracy for run in found):.2f}"
            successes = [run.success for run in found if run.success is not None]
            if successes and scenario in _HAS_PATTERN:
                cell += f" / {statistics.fmean(successes):.2f}"
            cells.append(f"{cell} ({len(found)})")
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def distances(runs: Runs) -> str:
    """How far each defense is from the oracle; every seed is compared with itself."""
    lines = [
        "| defense | scenario | seeds | ACC below oracle | ASR above oracle | weight on attackers |"
        " rounds over half | honest accused |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain = set(rules.available())
    for rule in dict.fromkeys(rule for rule, _, _ in runs if rule not in plain):
        for scenario in _SCENARIOS:
            pairs = [
                (runs[key], limit)
                for key in runs
                if key[:2] == (rule, scenario)
                and (limit := runs.get(("oracle", *key[1:]))) is not None
            ]
            if pairs:
                figures = _compared(pairs, has_pattern=scenario in _HAS_PATTERN)
                lines.append(f"| {rule} | {scenario} | {len(pairs)} | {figures} |")
    return "\n".join(lines)


def _compared(pairs: Sequence[tuple[Figures, Figures]], *, has_pattern: bool) -> str:
    below = statistics.fmean(limit.accuracy - run.accuracy for run, limit in pairs)
    above = [
        run.success - limit.success
        for run, limit in pairs
        if has_pattern and run.success is not None and limit.success is not None
    ]
    return " | ".join(
        [
            f"{below:+.2f}",
            f"{statistics.fmean(above):+.2f}" if above else "–",
            f"{statistics.fmean(run.attacker_weight for run, _ in pairs):.2f} %",
            str(sum(run.rounds_over_half for run, _ in pairs)),
            f"{statistics.fmean(run.accused for run, _ in pairs):.1f} %",
        ]
    )


def kinds(runs: Runs) -> str:
    """What suspected attackers were called, over all seeds, in percent."""
    named = sorted({kind for run in runs.values() for kind in run.called})
    lines = [
        "| defense | scenario | seeds | suspected attackers | " + " | ".join(named) + " |",
        "|---" * (4 + len(named)) + "|",
    ]
    for rule in dict.fromkeys(rule for rule, _, _ in runs):
        for scenario in _SCENARIOS:
            found = [runs[key] for key in runs if key[:2] == (rule, scenario) and runs[key].called]
            if found:
                called = sum((run.called for run in found), Counter[str]())
                shares = [f"{100 * called[kind] / called.total():.1f}" for kind in named]
                head = f"| {rule} | {scenario} | {len(found)} | {called.total()} | "
                lines.append(head + " | ".join(shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
