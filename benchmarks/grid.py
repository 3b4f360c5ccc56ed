"""A grid of runs beside the same runs one by one; run as ``python -m benchmarks.grid``.

The same runs are played three ways, in turn: as `python -m reproduction` does, each by a process of
one thread and as many at a time as there are cores; as `fedimmune simulate` does by default, one
after the other on all cores; and by one process, so that a run has a core to itself. Every way
starts its processes, reads the data and writes its run folders. Prints a table and writes
``build/bench-grid.json``. A missed bar is shown and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.report import progress
from fedimmune import simulate
from fedimmune.io import write_text_atomically
from fedimmune.simulation.workers import usable_cores
from reproduction.jobs import RunJob, Store
from reproduction.methods import find_method
from reproduction.schedule import execute, plan_jobs

_BUILD = Path(__file__).resolve().parents[1] / "build"
_BUSY_BAR = 0.9
_SLOWER_BAR = 1.0
_RULES = ("mean", "median", "krum", "geometric-median")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid", description=__doc__)
    parser.add_argument("--task", default="mnist", help="what is trained")
    parser.add_argument("--rounds", type=int, default=5, help="of every run")
    parser.add_argument("--turns", type=int, default=2, help="how often everything is played")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    options = parser.parse_args(arguments)
    runs = [
        RunJob(_fields(options.task, options.rounds), find_method(rule), defense=None, seconds=1.0)
        for rule in _RULES
    ]
    cores = usable_cores()
    turns = []
    for turn in range(options.turns):
        progress(f"turn {turn + 1} of {options.turns}")
        turns.append(_turn(runs, cores, options.data))
    found = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    about = {
        "task": options.task,
        "runs": len(runs),
        "rounds": options.rounds,
        "cores": cores,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    path = _BUILD / "bench-grid.json"
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({**about, **found, "turns": turns}, indent=2) + "\n"
    write_text_atomically(text, path)
    _show(f"{len(runs)} runs of {options.task}, {options.rounds} rounds, {cores} cores", found)
    print(f"Written to {path.relative_to(_BUILD.parent)}")


def _fields(task: str, rounds: int) -> dict[str, object]:
    return {"task": task, "attack": "backdoor", "attackers": 4, "rounds": rounds}


def _turn(runs: Sequence[RunJob], cores: int, data: Path | None) -> dict[str, float]:
    """Play all runs each way, in folders of their own."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), data)
        grid = execute(plan_jobs(runs, store), store, workers=cores)
        if grid.failed:
            raise SystemExit(grid.failed[0].problem)
    progress(f"grid: {grid.seconds:.1f} s")
    together = _one_by_one(runs, None, data)
    progress(f"one by one on all cores: {together:.1f} s")
    alone = _one_by_one(runs, 1, data)
    progress(f"one by one on one core: {alone:.1f} s")
    inside = statistics.fmean(ended.seconds for ended in grid.done)
    return {
        "busy": grid.busy,
        "grid_seconds_a_run": grid.seconds / len(runs),
        "simulate_seconds_a_run": together / len(runs),
        "one_core_seconds_a_run": alone / len(runs),
        "grid_of_simulate": grid.seconds / together,
        "run_in_grid_of_one_core": inside * len(runs) / alone,
    }


def _one_by_one(runs: Sequence[RunJob], workers: int | None, data: Path | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), data)
        begun = time.perf_counter()
        for run in runs:
            for _ in simulate(run.scenario_in(store), data=data, runs=store.runs, workers=workers):
                pass
        return time.perf_counter() - begun


def _show(title: str, found: dict[str, float]) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("", "seconds a run", "ratio", "bar", ""):
        table.add_column(heading, justify="right" if heading else "left")
    ways = (
        ("the grid's processes at work", None, "busy", f"≥ {_BUSY_BAR}", _BUSY_BAR, 1),
        ("grid, × simulate on all cores", "grid", "grid_of_simulate", "≤ 1", _SLOWER_BAR, -1),
    )
    for words, seconds, ratio, bar, limit, better in ways:
        holds = (found[ratio] - limit) * better >= 0
        table.add_row(
            words,
            "" if seconds is None else f"{found[f'{seconds}_seconds_a_run']:.1f}",
            f"{found[ratio]:.2f}",
            bar,
            "[green]holds[/]" if holds else "[red]missed[/]",
        )
    table.add_row("simulate on all cores", f"{found['simulate_seconds_a_run']:.1f}", "1", "", "")
    table.add_row(
        "a run in the grid, × on one core with nothing beside it",
        f"{found['one_core_seconds_a_run'] * found['run_in_grid_of_one_core']:.1f}",
        f"{found['run_in_grid_of_one_core']:.2f}",
        "",
        "",
    )
    Console().print(table)


if __name__ == "__main__":
    main()
