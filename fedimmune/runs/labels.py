"""What runs are called in tables and figures: as much as tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd

__all__ = ["component", "flat", "rule_labels", "setting_labels"]


def component(scenario: Mapping[str, Any], field: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of a scenario's task, rule, attack or partition."""
    found = scenario.get(field)
    if isinstance(found, Mapping):
        rest = {name: value for name, value in found.items() if name != "name"}
        return str(found.get("name", "")), rest
    return str(found or ""), {}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields by their path, such as ``attack.shift_x``."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        found |= flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found


def rule_labels(scenarios: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the label of each scenario's rule: its name, and what tells it from namesakes."""
    rules = [component(scenario, "rule") for scenario in scenarios]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for name, parameters in rules:
        by_name.setdefault(name, []).append(parameters)
    differing = {name: _differing(found) for name, found in by_name.items()}
    labels = []
    for name, parameters in rules:
        # The name of a defense's file says more than its digest.
        fields = differing[name] - ({"digest"} if "defense" in differing[name] else set())
        said = [_said(field, parameters.get(field)) for field in sorted(fields)]
        shown = name or "unnamed rule"
        labels.append(f"{shown} ({', '.join(said)})" if said else shown)
    return labels


def _said(field: str, value: Any) -> str:
    if value is None:
        return f"no {field}"
    if field == "defense":
        return PurePath(str(value)).name
    return str(value)[:6] if field == "digest" else f"{field}={value}"


def setting_labels(
    runs: pd.DataFrame, scenarios: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return the label of each key: a title, and what tells it from others of that title."""
    first: list[Any] = list(runs.drop_duplicates("key").itertuples())
    plain = {row.key: _title(row) for row in first}
    fields = {
        row.key: flat({k: v for k, v in scenarios[row.run].items() if k not in {"rule", "seed"}})
        for row in first
    }
    labels: dict[str, str] = {}
    for key, title in plain.items():
        namesakes = [fields[other] for other in plain if plain[other] == title]
        differing = sorted(_differing(namesakes))[:4]
        said = [f"{field} = {fields[key].get(field, '–')}" for field in differing]
        label = " · ".join([title, *said])
        labels[key] = label if label not in labels.values() else f"{label} · {key}"
    return labels


def _title(run: Any) -> str:
    task = run.task or "federation"
    if not run.knows_truth:
        return str(task)
    count = 0 if pd.isna(run.attackers) else run.attackers
    of = "" if pd.isna(run.clients) else f" of {run.clients} clients"
    return f"{task} · {f'{run.attack} by {count}{of}' if count else 'no attack'}"


def _differing(tables: Sequence[Mapping[str, Any]]) -> set[str]:
    fields = {field for table in tables for field in table}
    return {f for f in fields if len({repr(table.get(f)) for table in tables}) > 1}
