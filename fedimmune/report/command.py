"""The command that runs a scenario again."""

from __future__ import annotations

import json
import shlex
from typing import Any

from fedimmune.report.grouping import flat
from fedimmune.report.reading import Run

__all__ = ["command_of"]

_OPTIONS = {
    "task": ("task", "task.name"),
    "rule": ("rule", "rule.name"),
    "defence": ("rule.defence",),
    "attack": ("attack", "attack.name"),
    "attackers": ("attackers",),
    "clients": ("clients",),
    "rounds": ("rounds",),
    "seed": ("seed",),
}
"""Fields that have an option of their own."""


def command_of(run: Run) -> list[str] | None:
    """Give the command in lines, quoted for a shell; None where the run is no simulation.

    Every field is given, those at their defaults included: defaults may change.
    """
    is_real = run.records and not run.knows_truth  # a simulation knows who attacks
    is_another_engines = "engine" in run.scenario
    if is_real or is_another_engines or not {"task", "rule"} <= run.scenario.keys():
        return None
    fields = flat(run.scenario)
    options = ["fedimmune simulate"]
    for option, names in _OPTIONS.items():
        name = next((name for name in names if name in fields), None)
        if name is not None:
            options.append(f"--{option} {shlex.quote(str(fields.pop(name)))}")
    lines: dict[str, list[str]] = {}
    for name, value in fields.items():
        table = name.partition(".")[0] if "." in name else ""
        lines.setdefault(table, []).append(_setting(name, value))
    return [" ".join(line) for line in [options, *lines.values()]]


def _setting(field: str, value: Any) -> str:
    return f"--set {shlex.quote(f'{field}={_written(value)}')}"


def _written(value: Any) -> str:
    """Write a value so that ``--set`` reads it back: text as it is, unless it looks like JSON."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return value
    return json.dumps(value)
