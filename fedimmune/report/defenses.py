"""The defenses of runs, as far as their files can be read."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedimmune.adaptive.defense import Defense, universal
from fedimmune.adaptive.rule import UNIVERSAL
from fedimmune.errors import FedimmuneError
from fedimmune.report.charts import Figure, learning_curve
from fedimmune.report.summary import Cell, Heading, Table, percent
from fedimmune.runs.labels import component
from fedimmune.runs.results import Results
from fedimmune.untrusted import MIB, read_bytes

__all__ = ["DefenseShown", "defenses_of"]

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
class DefenseShown:
    """A defense: its provenance, its results on held-out rehearsals, and what is missing."""

    name: str
    problems: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    validation: Table | None = None
    curve: Figure | None = None


def defenses_of(results: Results) -> list[DefenseShown]:
    """Look up each defense of the runs once."""
    wanted: dict[tuple[str, str], None] = {}
    for scenario in results.scenarios.values():
        _, parameters = component(scenario, "rule")
        if parameters.get("defense"):
            wanted[str(parameters["defense"]), str(parameters.get("digest", ""))] = None
    truth = bool(results.runs["knows_truth"].any())
    return [_shown(Path(file), digest, truth=truth) for file, digest in wanted]


def _shown(file: Path, digest: str, *, truth: bool) -> DefenseShown:
    facts = [("file", str(file))] + ([("digest", digest)] if digest else [])
    try:
        loaded = universal() if str(file) == UNIVERSAL else Defense.load(file)
    except (FedimmuneError, OSError) as error:
        problem = f"It cannot be shown: {error}. It was there when the run was made."
        return DefenseShown(file.name, [problem], facts)
    if digest and loaded.digest != digest:
        problem = f"It cannot be shown: {file} is now another defense ({loaded.digest})."
        return DefenseShown(file.name, [problem], facts)
    facts += loaded.describe()
    # What ships with the package ships without its curve.
    curve, problems = (None, []) if str(file) == UNIVERSAL else _curve(file)
    return DefenseShown(
        file.name, problems, facts, _validation(loaded.about.validation, truth=truth), curve
    )


def _validation(found: Sequence[dict[str, Any]], *, truth: bool) -> Table | None:
    # Rehearsals know who attacks; if the run does not, the page calls nobody an attacker.
    who = "attackers" if truth else "malicious"
    names = [name if truth else name.replace("attackers", who) for _, name, _ in _COLUMNS]
    rows = [
        (
            str(row.get("attack", "–")),
            [
                Cell(f"{row.get('attackers', '–')} of {row.get('clients', '–')}"),
                Cell(str(row.get("rounds", "–"))),
                *(_figure(row.get(name), kind) for name, _, kind in _COLUMNS),
            ],
        )
        for row in found
    ]
    headings = [Heading(name) for name in ("attack", who, "rounds", *names)]
    return Table("Validation of the defense", headings, rows) if rows else None


def _figure(value: Any, kind: str) -> Cell:
    if not isinstance(value, int | float):
        return Cell("–")
    return Cell(percent(value) if kind == "share" else f"{value:.3f}", value)


def _curve(file: Path) -> tuple[Figure | None, list[str]]:
    place = file.with_name(f"{file.name}.curve.csv")
    if not place.exists():
        return None, [f"Its learning curve is missing: there is no {place.name} next to it."]
    try:
        found = pd.read_csv(io.BytesIO(read_bytes(place, 16 * MIB)))
        losses = found[["training", "validation"]].astype(float)
    except (KeyError, ValueError, FedimmuneError):
        return None, [f"Its learning curve cannot be read: {place.name} is damaged."]
    losses = losses.where(losses.abs() < float("inf"))
    if losses["validation"].isna().all():
        return None, [f"Its learning curve is empty: {place.name}."]
    losses.insert(0, "epoch", range(1, len(losses) + 1))
    return learning_curve(losses), []
