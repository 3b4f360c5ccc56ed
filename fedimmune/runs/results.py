"""The results of runs as tidy tables: one row per round, and one per client and round.

Runs of the simulator and of Flower are read alike, finished or not. Code that a scenario names is
never imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedimmune.errors import InputError
from fedimmune.results import ACCUSING, ClientResult, Verdict
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.labels import component, rule_labels, setting_labels
from fedimmune.runs.records import ClientData, RoundRecord

__all__ = ["FIGURES", "ORACLE", "Results", "load_runs"]

ORACLE = "oracle"
"""The rule that is told who attacks: a limit, not a competitor."""
FIGURES = (
    *("accuracy", "loss", "asr", "asr_others", "accuracy_without_success", "score"),
    *("attacker_weight", "over_half", "honest_kept", "precision", "recall", "behind_oracle"),
    *("distance", "accused", "failed_rounds", "played"),
)
"""What `Results.figures` and `Results.summary` have; see there."""

_SIGNS = ("scenario.toml", "rounds.jsonl")
"""A folder with one of these is a run's, perhaps a damaged one's."""
_FACTS = ("task", "rule", "rule_label", "attack", "attackers", "clients", "seed", "key", "label")
"""What `rounds` repeats of each run."""
_MEASURED = (
    *("accuracy", "loss", "asr", "asr_others", "accuracy_without_success", "precision", "recall"),
    *("auroc", "attacker_weight", "distance", "robust_mean_norm"),
)
_NOTHING_CAME = (Verdict.FAILED, Verdict.LATE)
_PHASES = ("training", "aggregating", "measuring", "testing")
_ROUND = [
    *("run", "round", *_MEASURED, "score", "accused", "error", "warnings", "seconds"),
    *(f"seconds_{phase}" for phase in _PHASES),
]
_CLIENT = ["run", "round", *ClientResult("", Verdict.TRUSTED).to_json()]
_SAMPLES = ["run", "client", "is_attacker", "class", "samples"]


@dataclass(frozen=True)
class Results:
    """Runs as tables. Shares run from 0 to 1; what is not known is missing (NaN).

    Parameters
    ----------
    runs
        One row per run: ``run`` (its name), ``path``, ``task``, ``rule``, ``rule_label`` (with the
        parameters that tell it from others of that name), ``attack``, ``attackers``, ``clients``,
        ``seed``, ``key`` (equal for runs that differ in rule and seed alone), ``label`` (the same
        in words), ``planned`` (rounds), ``finished`` and ``knows_truth`` (who attacks).
    rounds
        One row per round: the facts of its run, and what `RoundRecord` has. ``score`` is
        ACC · (1 − ASR), or ACC if there is no ASR; ``accused`` counts the suspected and rejected.
    clients
        One row per client and round: what `ClientResult` has.
    partition
        One row per client and class: ``run``, ``client``, ``is_attacker``, ``class``, ``samples``.
    scenarios
        What was run, as it was written down, by the run's name.
    """

    runs: pd.DataFrame
    rounds: pd.DataFrame
    clients: pd.DataFrame
    partition: pd.DataFrame
    scenarios: Mapping[str, Mapping[str, Any]]

    @cached_property
    def figures(self) -> pd.DataFrame:
        """One row per run: its facts and its figures.

        ACC, ASR, loss and score are those after the last round; ``attacker_weight``, ``precision``,
        ``recall``, ``distance`` (relative to the robust mean's length) and ``accused`` are means
        over the rounds that have them. ``over_half`` counts the rounds in which attackers had more
        than half of the weight, ``failed_rounds`` those in which the model stayed as it was, and
        ``played`` all. ``honest_kept`` is the share of the honest clients that had a weight.
        ``behind_oracle`` is how much the score is below that of the oracle's run of the same key
        and seed, after the last round that both have.
        """
        rounds, clients = self.rounds, self.clients
        by_run = rounds.groupby("run", sort=False)
        heavy = rounds["attacker_weight"]
        over = (heavy > 0.5).astype(float).where(heavy.notna()).groupby(rounds["run"], sort=False)
        length = rounds["robust_mean_norm"].where(rounds["robust_mean_norm"] != 0)
        weighed = clients["weight"].notna().groupby([clients["run"], clients["round"]])
        honest = clients[weighed.transform("any") & ~clients["is_attacker"].fillna(True)]
        judged = rounds["accused"].where(rounds["error"].isna())
        of_run = pd.DataFrame(
            {
                **{name: _last(by_run[name]) for name in (*_MEASURED[:5], "score")},
                **{name: by_run[name].mean() for name in ("attacker_weight", "precision")},
                "over_half": over.sum(min_count=1),
                "honest_kept": (honest["weight"] > 0).groupby(honest["run"]).mean(),
                "recall": by_run["recall"].mean(),
                "behind_oracle": self._behind_oracle(),
                "distance": (rounds["distance"] / length).groupby(rounds["run"]).mean(),
                "accused": judged.groupby(rounds["run"]).mean(),
                "failed_rounds": by_run["error"].count(),
                "played": by_run.size(),
            }
        )
        of_run = of_run.reindex(self.runs["run"]).astype(float)
        counts = ["failed_rounds", "played"]
        of_run[counts] = of_run[counts].fillna(0)
        return self.runs.join(of_run, on="run")

    def summary(self, by: str | Sequence[str] = ("label", "rule_label")) -> pd.DataFrame:
        """Return the mean and the spread of all figures over the runs of each group.

        Parameters
        ----------
        by
            Columns of `runs` whose values make a group; by default runs that differ in their seed
            alone are one.

        Returns
        -------
        pandas.DataFrame
            One row per group: its columns, ``n`` (runs), and for each of `FIGURES` the mean and,
            as ``NAME_std``, the standard deviation, over the runs that have it.
        """
        names = [by] if isinstance(by, str) else list(by)
        groups = self.figures.groupby(names, sort=False, dropna=False)
        figures = groups[list(FIGURES)]
        spread = figures.std().add_suffix("_std")
        found = pd.concat([groups.size().rename("n"), figures.mean(), spread], axis=1)
        order = [name for figure in FIGURES for name in (figure, f"{figure}_std")]
        return found[["n", *order]].reset_index()

    def _behind_oracle(self) -> pd.Series[float]:
        place = ["key", "seed", "round"]
        limit = self.rounds[self.rounds["rule"] == ORACLE].drop_duplicates(place)
        both = self.rounds.merge(limit[[*place, "score"]], on=place, suffixes=("", "_of_oracle"))
        gap = (both["score_of_oracle"] - both["score"]).groupby(both["run"], sort=False)
        return _last(gap)


def load_runs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> Results:
    """Read runs into tables.

    If a run does not know who attacked, as in a real federation, but its ``partition.json`` has
    been told since, clients and rounds are judged by that.

    Parameters
    ----------
    paths
        Run folders, or folders of run folders, which stand for all runs in them.

    Raises
    ------
    InputError
        There is no such folder, no run in it, or a run is damaged; the message names it.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    folders: dict[Path, Path] = {}  # by where they really are: nothing is read twice
    for place in given:
        for folder in _run_folders(Path(place)):
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise InputError("a report needs a run: `fedimmune simulate` makes one")
    names = [folder.name for folder in folders.values()]
    return _tables(
        [
            _Run.read(folder, folder.name if names.count(folder.name) == 1 else str(folder))
            for folder in folders.values()
        ]
    )


# -------------------------------------------------------------------- one run


@dataclass(frozen=True)
class _Run:
    """One run: its scenario, and its rows of each table."""

    scenario: Mapping[str, Any]
    facts: dict[str, Any]
    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    samples: list[tuple[Any, ...]]

    @classmethod
    def read(cls, path: Path, name: str) -> _Run:
        if not (path / "scenario.toml").is_file():
            raise InputError(f"the run {path} is damaged: it has no scenario.toml")
        folder = RunFolder(path)
        try:
            partition = folder.partition() or ()
            scenario = folder.scenario()
            rounds, clients = _rows(name, folder.records(), partition)
            known = {row["is_attacker"] for row in clients} | {c.is_attacker for c in partition}
            facts = {
                "run": name,
                "path": str(path),
                **_facts(scenario, truth=bool(known - {None}), played=len(rounds)),
                "finished": folder.is_finished,
            }
        except InputError as error:
            raise InputError(f"the run {path} is damaged: {error}") from error
        except OSError as error:
            raise InputError(f"cannot read the run {path}: {error.strerror}") from error
        samples = [
            (name, client.client, client.is_attacker, number, count)
            for client in partition
            for number, count in enumerate(client.samples)
        ]
        return cls(scenario, facts, rounds, clients, samples)


def _facts(scenario: Mapping[str, Any], *, truth: bool, played: int) -> dict[str, Any]:
    rest = {name: value for name, value in scenario.items() if name not in {"rule", "seed"}}
    key = json.dumps([truth, rest], sort_keys=True, default=str)
    return {
        "task": component(scenario, "task")[0].rpartition(":")[2],
        "rule": component(scenario, "rule")[0] or "unnamed rule",
        "attack": component(scenario, "attack")[0],
        **{name: _count(scenario, name) for name in ("attackers", "clients", "seed")},
        "key": hashlib.sha256(key.encode()).hexdigest()[:12],
        "planned": _count(scenario, "rounds") or played,
        "knows_truth": truth,
    }


def _rows(
    run: str, records: Iterable[RoundRecord], partition: Iterable[ClientData]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of rounds and of clients, judged by the partition if it alone knows."""
    truth = {one.client: one.is_attacker for one in partition if one.is_attacker is not None}
    rounds: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for record in records:
        clients, row = record.clients, _round_row(run, record)
        if truth and all(one.is_attacker is None for one in clients):
            clients = tuple(replace(one, is_attacker=truth.get(one.client)) for one in clients)
            if record.error is None:
                row |= _judged(clients)
        row["accused"] = sum(one.verdict in ACCUSING for one in clients)
        rounds.append(row)
        rows += [{"run": run, "round": record.round, **one.to_json()} for one in clients]
    return rounds, rows


def _round_row(run: str, record: RoundRecord) -> dict[str, Any]:
    score = record.accuracy_without_success
    phases = {f"seconds_{phase}": getattr(record.seconds, phase) for phase in _PHASES}
    return {
        "run": run,
        "round": record.round,
        **{name: getattr(record, name) for name in _MEASURED},
        "score": record.accuracy if score is None else score,
        "error": record.error,
        "warnings": "; ".join(record.warnings) or None,
        "seconds": sum(phases.values()),
        **phases,
    }


def _judged(clients: Sequence[ClientResult]) -> dict[str, float | None]:
    """Return precision, recall and the attackers' weight, as a simulation's records have them."""
    there = [c for c in clients if c.is_attacker is not None and c.verdict not in _NOTHING_CAME]
    attackers = [client for client in there if client.is_attacker]
    accused = [client for client in there if client.verdict in ACCUSING]
    has_weights = any(client.weight is not None for client in there)
    if not has_weights and not accused:
        return {}  # a rule of coordinates judges nobody
    right = sum(bool(client.is_attacker) for client in accused)
    weights = sum(client.weight or 0.0 for client in attackers)
    return {
        "attacker_weight": weights if has_weights and attackers else None,
        "precision": right / len(accused) if accused else None,
        "recall": right / len(attackers) if attackers else None,
    }


def _count(scenario: Mapping[str, Any], name: str) -> int | None:
    found = scenario.get(name)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**53:
        raise InputError(f"scenario.toml: {name} is not a count, but {str(found)[:40]!r}")
    return found


def rows_of(table: pd.DataFrame) -> list[Any]:
    """Return the rows of a table, with its columns as attributes."""
    return list(table.itertuples())


def attackers_in(table: pd.DataFrame) -> set[str]:
    """Return who is known to attack, of a table of clients."""
    return set(table.loc[table["is_attacker"].fillna(False).astype(bool), "client"])


# -------------------------------------------------------------------- all runs


def _tables(read: Sequence[_Run]) -> Results:
    scenarios = {run.facts["run"]: run.scenario for run in read}
    runs = pd.DataFrame([run.facts for run in read])
    runs = runs.astype(dict.fromkeys(("attackers", "clients", "seed"), "Int64"))
    runs.insert(4, "rule_label", rule_labels([run.scenario for run in read]))
    runs.insert(10, "label", runs["key"].map(setting_labels(runs, scenarios)))
    rounds = pd.DataFrame([row for run in read for row in run.rounds], columns=_ROUND)
    words = ("run", "round", "accused", "error", "warnings")
    numbers = dict.fromkeys((name for name in _ROUND if name not in words), float)
    rounds = rounds.astype({"round": int, "accused": int, **numbers})
    clients = pd.DataFrame([row for run in read for row in run.clients], columns=_CLIENT)
    shares = ("weight", "score", "probability", "confidence", "runner_up_confidence")
    clients = clients.astype(
        {"round": int, "is_attacker": "boolean", "since": "Int64", **dict.fromkeys(shares, float)}
    )
    partition = pd.DataFrame([row for run in read for row in run.samples], columns=_SAMPLES)
    return Results(
        runs,
        runs[["run", *_FACTS]].merge(rounds, on="run"),
        clients,
        partition.astype({"is_attacker": "boolean", "class": int, "samples": int}),
        scenarios,
    )


def _last(groups: Any) -> pd.Series[float]:
    """Return each group's last value, missing or not."""
    found: pd.Series[float] = groups.agg(lambda values: values.iloc[-1])
    return found.astype(float)


# -------------------------------------------------------------------- folders


def _run_folders(place: Path) -> list[Path]:
    try:
        if not place.is_dir():
            problem = "is not a folder" if place.exists() else "does not exist"
            raise InputError(f"{place} {problem}: name a run's folder, or a folder of runs")
        if _is_run(place):
            return [place]
        found = [folder for folder in sorted(place.iterdir()) if _is_run(folder)]
    except OSError as error:
        raise InputError(f"cannot read {place}: {error.strerror}") from error
    if not found:
        raise InputError(f"there is no run in {place}: `fedimmune simulate` makes one")
    return found


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and any((folder / sign).exists() for sign in _SIGNS)
