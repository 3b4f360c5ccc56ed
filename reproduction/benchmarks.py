"""Public benchmarks; run as ``python -m reproduction.benchmarks``.

``grid`` plays every rule under every attack that fits a task. ``byzfl`` plays the benchmark of
ByzFL (worst case over three attacks, by number of attackers), ``thesis`` the table of a thesis on
Flower's strategies. Each run has a folder of its own: a command that was interrupted resumes, and
``--no-run`` makes the tables of what is finished.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import typer

from fedimmune import Scenario, attacks, load_runs, rules, simulate, tasks
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from fedimmune.io import write_text_atomically
from fedimmune.simulation import run_folder
from reproduction.defenses import BYZFL, BYZFL_TASK, learned
from reproduction.figures import Chart, save
from reproduction.methods import UNIVERSAL
from reproduction.rows import as_csv
from reproduction.tables import markdown_table

__all__ = ["TABLES", "Entry", "byzfl", "figures", "grid", "main", "most_attackers", "play"]
__all__ += ["thesis", "worst"]

_CLIENTS, _ATTACKERS = 10, 4
_ORACLE = "oracle"
_SIMILARITIES = (0.0, 0.33, 0.66, 1.0)
_BYZFL = {  # as ByzFL's documentation shows it: worst accuracy by similarity, for f = 1 … 4
    (1.0, "geometric-median"): (0.98, 0.98, 0.98, 0.97),
    (1.0, "trimmed-mean"): (0.98, 0.98, 0.98, 0.98),
    (0.66, "geometric-median"): (0.98, 0.97, 0.97, 0.96),
    (0.66, "trimmed-mean"): (0.98, 0.97, 0.97, 0.97),
    (0.33, "geometric-median"): (0.98, 0.96, 0.94, 0.94),
    (0.33, "trimmed-mean"): (0.98, 0.97, 0.94, 0.91),
    (0.0, "geometric-median"): (0.87, 0.56, 0.26, 0.27),
    (0.0, "trimmed-mean"): (0.87, 0.61, 0.26, 0.21),
}
_THESIS = {  # as its tables print them: ASR with clients alike; ACC, ASR with Dirichlet 0.1
    "mean": ("99.3", "81.5", "96.9"),
    "median": ("16.8", "70.5", "29.0"),
    "trimmed-mean": ("38.9", "74.6", "58.4"),
    "multi-krum": ("0.2", "70.3", "76.1"),
}
_STEP = 0.1
"""ByzFL's learning rate. It sends (1 − β)-averaged gradients, we send steps: −0.1 times those."""
_LEARNED = ("adaptive", "spectral")

Files = Mapping[str, Path | None]
"""What learned rules are made with, by rule."""


@dataclass(frozen=True)
class Entry:
    """One run of a benchmark.

    Parameters
    ----------
    row, column
        Where it stands: a rule as the table names it, and what it is played under.
    scenario
        What is played.
    """

    row: str
    column: str
    scenario: Scenario


# -------------------------------------------------------------------- what is played


def most_attackers(rule: str, clients: int = _CLIENTS, most: int = _ATTACKERS) -> int:
    """Return how many attackers a rule can be told of among so many clients, `most` at most."""
    if "attackers" not in _find(rule).parameters() or rule == _ORACLE:
        return most
    fitting = (
        f for f in range(most, 0, -1) if rules.get(rule, attackers=f).clients_needed <= clients
    )
    return next(fitting, 0)


def grid(
    task: str,
    names: Sequence[str],
    kinds: Sequence[str],
    seeds: Sequence[int],
    files: Files,
    data: Path | None = None,
    *,
    clients: int = _CLIENTS,
    attackers: int = _ATTACKERS,
    **fields: Any,
) -> Iterator[Entry]:
    """Every rule under every attack that fits the task; the oracle for each number of attackers.

    Four of ten attack, or as many as the rule admits. `fields` are other fields of the scenarios.
    """
    spec = tasks.load_data(tasks.get(task), tasks.data_folder(data)).spec
    fitting = [kind for kind in kinds if _fits(kind, spec)]
    numbers = {name: most_attackers(name, clients, attackers) for name in names}
    fields = {"clients": clients, **fields}
    for seed in seeds:
        for kind in fitting:
            told = {name: f for name, f in numbers.items() if f and name != _ORACLE}
            for name, f in told.items():
                yield Entry(name, kind, _cell(task, _rule(name, f, files), kind, f, seed, **fields))
            for f in sorted(set(told.values()))[: 1 if kind == "none" else None]:
                yield Entry(_ORACLE, kind, _cell(task, {"name": _ORACLE}, kind, f, seed, **fields))


def _fits(kind: str, spec: tasks.DataSpec) -> bool:
    try:
        attacks.get(kind).check(spec)
    except FedimmuneError:
        return False
    return True


def _rule(row: str, f: int, files: Files, **more: Any) -> dict[str, Any]:
    if row == _ORACLE:  # who is told by the engine
        return {"name": row}
    rule, made = _find(row), files.get(row)
    told = {"attackers": f} if "attackers" in rule.parameters() else {}
    learned = {} if made is None else dict.fromkeys(rule.places, str(made))
    return {"name": rule.name, **told, **learned, **more}


def _find(row: str) -> type[rules.Rule]:
    return rules.find("adaptive" if row == UNIVERSAL else row)


def _cell(
    task: str, rule: Mapping[str, Any], attack: Any, attackers: int, seed: int, **more: Any
) -> Scenario:
    nobody = {"attackers": 0} if attack == "none" else {"attackers": attackers}
    return Scenario(task=task, rule=dict(rule), attack=attack, seed=seed, **nobody, **more)


def byzfl(
    names: Sequence[str],
    seeds: Sequence[int],
    similarities: Sequence[float],
    files: Files,
    steps: int = 800,
    max_false_alarms: float | None = None,
    before: str | None = None,
) -> Iterator[Entry]:
    """ByzFL's benchmark: distributed SGD with momentum, ten honest clients and f attackers.

    Its two rules stand behind clipping and nearest-neighbor mixing, as published; others that do
    not learn behind `before`. Mixing is told of the f attackers, so it averages ten. Under the
    oracle attackers change nothing: one attack stands for all. `max_false_alarms` is of the learned
    rule.
    """
    worst_of: dict[str, dict[str, Any]] = {
        "sign-flip": {"name": "sign-flip", "flip": "mean"},
        "ipm, searched": {"name": "ipm", "scale": "search"},
        "alie, searched": {"name": "alie", "z": "search"},
    }
    for seed in seeds:
        for gamma in similarities:
            for f in range(1, 5):
                for name in names:
                    more: dict[str, Any] = {}
                    if name == "trimmed-mean":
                        more["trim"] = f / (10 + f)
                    if name in ("adaptive", UNIVERSAL) and max_false_alarms is not None:
                        more["max_false_alarms"] = max_false_alarms
                    if (gamma, name) in _BYZFL:
                        more["before"] = _steps(f"clip(at={2 * _STEP}),nnm", f)
                    elif before is not None and name not in (*_LEARNED, UNIVERSAL, _ORACLE):
                        more["before"] = _steps(before, f)
                    for column in list(worst_of)[: 1 if name == _ORACLE else None]:
                        scenario = _cell(
                            BYZFL_TASK,
                            _rule(name, f, files, **more),
                            worst_of[column],
                            f,
                            seed,
                            clients=10 + f,
                            partition={"name": "gamma-similarity", "gamma": gamma},
                            rounds=steps,
                            test_every=50,
                            **BYZFL,
                        )
                        yield Entry(name, f"γ = {gamma:g}, f = {f}: {column}", scenario)


def _steps(before: str, f: int) -> str:
    """Tell steps of f attackers that were told of none."""
    told: list[rules.PreAggregator] = []
    for step in rules.get("mean", before=before).preaggregators:
        if isinstance(step, rules.NNM | rules.ARC) and step.attackers is None:
            told.append(type(step)(attackers=f))
        else:
            told.append(step)
    return ",".join(map(str, told))


def thesis(
    names: Sequence[str], seeds: Sequence[int], files: Files, task: str = "mnist"
) -> Iterator[Entry]:
    """A backdoor by two of ten, 40 rounds, clients alike and very different."""
    for seed in seeds:
        for column, partition in (("iid", "iid"), ("dirichlet", {"alpha": 0.1})):
            for name in names:
                rule = _rule(name, 2, files)
                scenario = _cell(task, rule, "backdoor", 2, seed, partition=partition, rounds=40)
                yield Entry(name, column, scenario)


# -------------------------------------------------------------------- playing, and the results


def _play(scenario: Scenario, runs: Path, data: Path | None) -> str:
    for _ in simulate(scenario, runs=runs, data=data, workers=1):
        pass
    return run_folder(scenario, runs).path.name


def play(entries: Sequence[Entry], runs: Path, data: Path | None, workers: int) -> None:
    """Play what is not finished; one run that fails does not end the others."""
    left = [one for one in entries if not run_folder(one.scenario, runs).is_finished]
    typer.echo(f"{len(entries)} runs, {len(entries) - len(left)} of them finished before", err=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(_play, one.scenario, runs, data): one for one in left}
        for done, job in enumerate(as_completed(jobs), 1):
            one, error = jobs[job], job.exception()
            said = "" if error is None else f": {type(error).__name__}: {error}"
            typer.echo(f"{done}/{len(left)} {one.row} under {one.column}{said}", err=True)


def figures(entries: Sequence[Entry], runs: Path, own: str = "own") -> pd.DataFrame:
    """Return one row per finished run: ACC and ASR after the last round, and the harm done.

    ``defense`` is `own` if the learned rule was given one, ``universal`` if it took what ships, and
    in the row `universal` the name of a file that was given instead of that.

    ``harm`` is how far ACC is below or ASR above that of the oracle under the same attack and seed,
    whichever is more; 0 if neither. ``accused`` and ``reduced`` are the shares of honest clients'
    rounds that were suspected, or had less weight than half of an equal share. ``best`` is ACC
    after the best of the rounds that were tested.
    """
    where = {run_folder(one.scenario, runs).path: one for one in entries}
    there = {path: one for path, one in where.items() if (path / "rounds.jsonl").exists()}
    if not there:
        raise InputError(f"{runs} has no run of this benchmark yet")
    results = load_runs(there)
    found, clients = results.figures, results.clients
    honest = clients[~clients["is_attacker"].fillna(True).astype(bool)]
    judged = {
        name: (honest["verdict"] == verdict).groupby(honest["run"]).mean()
        for name, verdict in (("accused", "suspected"), ("reduced", "reduced"))
    }
    about = {path.name: one for path, one in there.items()}
    frame = pd.DataFrame(
        {
            "rule": [about[run].scenario.rule.name for run in found["run"]],
            "defense": [_defense_of(about[run], own) for run in found["run"]],
            "attack": [about[run].column for run in found["run"]],
            **{name: found[name] for name in ("attackers", "seed", "accuracy", "asr")},
            "weight": found["attacker_weight"],
            **{name: found["run"].map(share) for name, share in judged.items()},
            "rounds": found["played"].astype(int),
            "best": found["run"].map(results.rounds.groupby("run")["accuracy"].max()),
        }
    )
    place = ["attack", "attackers", "seed"]
    limit = frame[frame["rule"] == _ORACLE].drop_duplicates(place)
    both = frame.merge(
        limit[[*place, "accuracy", "asr"]], on=place, how="left", suffixes=("", "_o")
    )
    harm = pd.concat(
        [both["accuracy_o"] - both["accuracy"], both["asr"] - both["asr_o"]], axis=1
    ).max(axis=1)
    frame["harm"] = harm.clip(lower=0).to_numpy()
    return frame.sort_values(["rule", "attack", "attackers", "seed"], ignore_index=True)


def _defense_of(one: Entry, own: str) -> str:
    rule = one.scenario.rule
    if "defense" not in rules.find(rule.name).places:
        return ""
    named = str(rule.parameters.get("defense", UNIVERSAL))
    called = UNIVERSAL if named == UNIVERSAL else own
    if one.row == UNIVERSAL:
        called = Path(named).stem
    alarms = rule.parameters.get("max_false_alarms")
    return called if alarms is None else f"{called} with max_false_alarms={alarms:g}"


def _labeled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return figures with the learned rule called by its defense too, unless it is its own."""
    if "defense" not in frame:
        return frame
    named = [one if isinstance(one, str) else "" for one in frame["defense"]]  # NaN from a file
    both = zip(frame["rule"], named, strict=True)
    return frame.assign(
        rule=[rule if defense in ("", "own") else f"{rule}, {defense}" for rule, defense in both]
    )


def worst(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rule: the attack that harms it most, in the mean over seeds."""
    mean = frame.groupby(["rule", "attack"], as_index=False)[["accuracy", "asr", "harm"]].mean()
    rows = []
    for rule, own in mean.groupby("rule"):
        attacked = own[own["attack"] != "none"]
        if attacked["harm"].notna().any():
            most = attacked.dropna(subset="harm").sort_values("harm").iloc[-1]
            rows.append(
                {
                    "rule": rule,
                    "attackers": int(frame.loc[frame["rule"] == rule, "attackers"].max()),
                    "no attack": own.loc[own["attack"] == "none", "accuracy"].mean(),
                    "worst attack": most["attack"],
                    "accuracy": most["accuracy"],
                    "asr": most["asr"],
                    "harm": most["harm"],
                    "mean harm": attacked["harm"].mean(),
                }
            )
    return pd.DataFrame(rows).sort_values(["harm", "mean harm"], ignore_index=True)


def heat_map(frame: pd.DataFrame) -> Chart:
    """Describe the grid: a row per rule, the least harmed first; a column per attack."""
    frame = _labeled(frame)
    mean = frame.groupby(["rule", "attack"], as_index=False)[["accuracy", "asr", "harm"]].mean()
    mean["points"] = 100 * mean["harm"]
    told = {
        one["rule"]: one["rule"]
        if one["attackers"] in (_ATTACKERS, 0)
        else f"{one['rule']} ({one['attackers']} of {_CLIENTS})"
        for one in worst(frame).to_dict("records")
    }
    mean["rule"] = mean["rule"].map(told)
    columns = mean.groupby("attack")["harm"].mean().sort_values().index.tolist()
    base = alt.Chart(mean.dropna(subset="points")).encode(
        x=alt.X("attack:N", sort=columns, title=None, axis=alt.Axis(labelAngle=-40, orient="top")),
        y=alt.Y("rule:N", sort=list(told.values()), title=None),
    )
    color = alt.Color(
        "points:Q",
        title="points worse than the oracle",
        scale=alt.Scale(scheme="cividis", reverse=True, domain=[0, 90], clamp=True),
    )
    light = alt.condition("datum.points > 45", alt.value("white"), alt.value("#222"))
    text = base.mark_text(fontSize=8).encode(text=alt.Text("points:Q", format=".0f"), color=light)
    shape = {"width": alt.Step(26), "height": alt.Step(15)}
    return (base.mark_rect().encode(color=color) + text).properties(**shape)


# -------------------------------------------------------------------- tables


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def _grid_table(frame: pd.DataFrame) -> str:
    frame = _labeled(frame)
    head = ["rule", "f", "no attack", "worst attack", "ACC", "ASR", "points worse", "in the mean"]
    lines = [
        [
            f"`{one['rule']}`",
            str(one["attackers"]),
            _percent(one["no attack"]),
            f"`{one['worst attack']}`",
            *(_percent(one[name]) for name in ("accuracy", "asr", "harm", "mean harm")),
        ]
        for one in worst(frame).to_dict("records")
    ]
    return markdown_table(head, lines, "-" * len(head))


def _byzfl_table(frame: pd.DataFrame) -> str:
    frame = _labeled(frame)
    parts = frame["attack"].str.extract(r"γ = (?P<gamma>[\d.]+), f = (?P<f>\d)")
    known = frame.assign(
        gamma=parts["gamma"].astype(float),
        f=parts["f"].astype(int),
        best=pd.to_numeric(frame["best"]),
    )
    of_attack = known.groupby(["gamma", "rule", "f", "attack"])[["accuracy", "best"]].mean()
    found: dict[Any, str] = {
        place: _last_and_best(own, attacks=1 if place[1] == _ORACLE else 3)
        for place, own in of_attack.groupby(["gamma", "rule", "f"])
    }
    head = ["γ", "rule", "f = 1", "f = 2", "f = 3", "f = 4", "published"]
    lines = []
    for gamma, rule in sorted({(gamma, rule) for gamma, rule, _ in found}):
        printed = _BYZFL.get((gamma, rule))
        said = "–" if printed is None else ", ".join(f"{value:.2f}" for value in printed)
        cells = [found.get((gamma, rule, f), "–") for f in range(1, 5)]
        lines.append([f"{gamma:g}", f"`{rule}`", *cells, said])
    return markdown_table(head, lines, "-" * len(head))


def _last_and_best(of_attack: pd.DataFrame, attacks: int) -> str:
    """Return ACC under the worst attack; in brackets, of the best steps, which ByzFL publishes."""
    if len(of_attack) < attacks or bool(of_attack["accuracy"].isna().any()):
        return "–"  # the worst may be missing, or still under way
    least = of_attack.min(skipna=False)
    best = "" if math.isnan(least["best"]) else f" ({least['best']:.2f})"
    return f"{least['accuracy']:.2f}{best}"


def _thesis_table(frame: pd.DataFrame) -> str:
    frame = _labeled(frame)
    mean = frame.groupby(["rule", "attack"])[["accuracy", "asr"]].mean()
    head = ["rule", "IID: ACC", "ASR", "ASR printed", "Dirichlet 0.1: ACC", "ASR"]
    head += ["ACC, ASR printed"]

    def cell(rule: str, column: str, name: str) -> str:
        return _percent(float(mean[name].get((rule, column), math.nan)))

    def printed(rule: str, *places: int) -> str:
        return ", ".join(_THESIS[rule][place] for place in places) if rule in _THESIS else "–"

    lines = [
        [
            f"`{rule}`",
            *(cell(rule, "iid", name) for name in ("accuracy", "asr")),
            printed(rule, 0),
            *(cell(rule, "dirichlet", name) for name in ("accuracy", "asr")),
            printed(rule, 1, 2),
        ]
        for rule in sorted({rule for rule, _ in mean.index})
    ]
    return markdown_table(head, lines, "-" * len(head))


TABLES = {"grid": _grid_table, "byzfl": _byzfl_table, "thesis": _thesis_table}
"""What makes a benchmark's table of its figures, in Markdown."""


# -------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> None:
    """Play a benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=sorted(TABLES))
    parser.add_argument(
        "--task", help="of the grid, by default digits; of thesis, by default mnist"
    )
    parser.add_argument("--rules", help="names, separated by commas; by default all")
    parser.add_argument("--attacks", help="names, separated by commas; by default all that fit")
    parser.add_argument("--similarity", help="γ of byzfl, separated by commas", default="0")
    parser.add_argument("--seeds", default="1", help="separated by commas")
    parser.add_argument("--rounds", type=int, help="of the grid; by default the task's")
    parser.add_argument("--local-steps", type=int, help="of the grid, a round; else an epoch")
    parser.add_argument("--defense", type=Path, help="of adaptive; by default one is made")
    parser.add_argument("--universal", type=Path, help="of the row universal; else the shipped one")
    parser.add_argument("--max-false-alarms", type=float, help="of the learned rows of byzfl")
    parser.add_argument("--before", help="of other rules of byzfl: steps before the rule")
    parser.add_argument("--detector", type=Path, help="of spectral; by default one is made")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--no-run", action="store_true", help="tables of finished runs alone")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path, help="heat map of the grid")
    given = parser.parse_args(arguments)
    try:
        entries = list(_entries(given))
        runs = given.folder / "runs"
        if not given.no_run:
            play(entries, runs, given.data, given.workers)
        frame = figures(entries, runs)
    except FedimmuneError as error:
        raise SystemExit(f"error: {error}") from None
    typer.echo(TABLES[given.benchmark](frame), nl=False)
    if given.csv is not None:
        write_text_atomically(as_csv(frame), given.csv)
    if given.figure is not None:
        save(heat_map(frame), given.figure.with_suffix(""))


def _entries(given: argparse.Namespace) -> Iterator[Entry]:
    usual = {
        "grid": rules.available(),
        "byzfl": ("geometric-median", "trimmed-mean", "adaptive", UNIVERSAL, _ORACLE),
        "thesis": (*_THESIS, "adaptive", UNIVERSAL, _ORACLE),
    }[given.benchmark]
    names = given.rules.split(",") if given.rules else list(usual)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    usual_task = {"grid": "digits", "byzfl": BYZFL_TASK, "thesis": "mnist"}[given.benchmark]
    task = usual_task if given.task is None else given.task
    if given.benchmark == "byzfl" and task != BYZFL_TASK:
        raise ParameterError("byzfl has a task of its own: leave out --task")
    files: dict[str, Path | None] = {
        "adaptive": given.defense,
        UNIVERSAL: given.universal,
        "spectral": given.detector,
    }
    missing = [name for name in _LEARNED if name in names and files[name] is None]
    files |= learned(task, missing, given.folder, given.data, given.workers)
    if given.benchmark == "grid":
        kinds = given.attacks.split(",") if given.attacks else list(attacks.available())
        asked = {"rounds": given.rounds, "local_steps": given.local_steps}
        fields = {name: number for name, number in asked.items() if number is not None}
        yield from grid(task, names, kinds, seeds, files, given.data, **fields)
    elif given.benchmark == "byzfl":
        similarities = [float(gamma) for gamma in given.similarity.split(",")]
        alarms, before = given.max_false_alarms, given.before
        yield from byzfl(names, seeds, similarities, files, max_false_alarms=alarms, before=before)
    else:
        yield from thesis(names, seeds, files, task)


if __name__ == "__main__":
    main()
