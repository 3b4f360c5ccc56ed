"""What is known of the defence that a run was defended with."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedimmune.adaptive.defence import Defence
from fedimmune.errors import FedimmuneError
from fedimmune.report.charts import LineChart, Series
from fedimmune.report.reading import Run
from fedimmune.report.words import percent
from fedimmune.untrusted import MIB, read_bytes

__all__ = ["DefenceShown", "defences_of"]

_COLUMNS = (
    ("attacker_weight", "weight on attackers", "share"),
    ("benign_kept", "honest kept", "share"),
    ("exact", "just the honest", "share"),
    ("auroc", "AUROC", "number"),
    ("distance", "distance", "number"),
    ("distance_of_mean", "of the mean", "number"),
    ("distance_of_median", "of the median", "number"),
)


@dataclass(frozen=True)
class DefenceShown:
    """A defence, as far as its file can be read.

    Parameters
    ----------
    name
        Of its file.
    problems
        What is missing, in words.
    facts
        Its provenance: names and values.
    headings, rows
        Its validation table.
    curve
        Its learning curve.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    curve: LineChart | None = None


def defences_of(runs: Sequence[Run]) -> list[DefenceShown]:
    """Look up each defence that runs were defended with, once."""
    wanted: dict[tuple[str, str], None] = {}
    for run in runs:
        _, parameters = run.choice("rule")
        if parameters.get("defence"):
            wanted[str(parameters["defence"]), str(parameters.get("digest", ""))] = None
    return [_shown(Path(file), digest, truth=_any_truth(runs)) for file, digest in wanted]


def _any_truth(runs: Sequence[Run]) -> bool:
    return any(run.knows_truth for run in runs)


def _shown(file: Path, digest: str, *, truth: bool) -> DefenceShown:
    facts = [("file", str(file))] + ([("digest", digest)] if digest else [])
    try:
        defence = Defence.load(file)
    except (FedimmuneError, OSError) as error:
        problem = f"It cannot be shown: {error}. It was there when the run was made."
        return DefenceShown(file.name, [problem], facts)
    if digest and defence.digest != digest:
        problem = f"It cannot be shown: {file} is now another defence ({defence.digest})."
        return DefenceShown(file.name, [problem], facts)
    facts += defence.describe()
    curve, problems = _curve(file)
    headings, rows = _validation(defence.about.validation, truth=truth)
    return DefenceShown(file.name, problems, facts, headings, rows, curve)


# -------------------------------------------------------------------- validation


def _validation(
    found: Sequence[dict[str, Any]], *, truth: bool
) -> tuple[list[str], list[list[str]]]:
    # Of its rehearsals the truth is known; where the run's is not, its word is kept all the same.
    who = "attackers" if truth else "malicious"
    headings = ["attack", who, "rounds"]
    headings += [name if truth else name.replace("attackers", who) for _, name, _ in _COLUMNS]
    rows = [
        [
            str(row.get("attack", "–")),
            f"{row.get('attackers', '–')} of {row.get('clients', '–')}",
            str(row.get("rounds", "–")),
            *(_figure(row.get(name), kind) for name, _, kind in _COLUMNS),
        ]
        for row in found
    ]
    return (headings, rows) if rows else ([], [])


def _figure(value: Any, kind: str) -> str:
    if not isinstance(value, int | float):
        return "–"
    return percent(value) if kind == "share" else f"{value:.3f}"


# -------------------------------------------------------------------- learning curve


def _curve(file: Path) -> tuple[LineChart | None, list[str]]:
    place = file.with_name(f"{file.name}.curve.csv")
    if not place.exists():
        return None, [f"Its learning curve is not beside it: there is no {place.name}."]
    try:
        lines = read_bytes(place, 16 * MIB).decode().splitlines()
        rows = [(_loss(row["training"]), _loss(row["validation"])) for row in csv.DictReader(lines)]
    except (KeyError, ValueError, TypeError, csv.Error):
        return None, [f"Its learning curve cannot be read: {place.name} is damaged."]
    validation = [row[1] for row in rows]
    ranked = sorted((v, i) for i, v in enumerate(validation, start=1) if v is not None)
    if not ranked:
        return None, [f"Its learning curve is empty: {place.name}."]
    best = ranked[0][1]
    reading = (
        f"Loss over {len(rows)} epochs; it was least on rehearsals kept apart in epoch {best}, "
        f"which is the one that is used."
    )
    series = (
        Series("training", 0, tuple(row[0] for row in rows)),
        Series("validation", 1, tuple(validation)),
    )
    top = max(value for row in rows for value in row if value is not None)
    return LineChart(
        "curve", "Learning curve", reading, series, top=top, is_share=False, along="epoch"
    ), []


def _loss(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
