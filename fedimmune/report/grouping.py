"""Which runs belong together: a setting is everything but the rule and the seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from fedimmune.report.reading import Run

__all__ = ["ORACLE", "Line", "Setting", "flat", "settings_of"]

ORACLE = -1
"""The style of the line that is a limit and no competitor."""


@dataclass(frozen=True)
class Line:
    """One rule in one setting: a line in each plot, a row of the table.

    Parameters
    ----------
    label
        The rule's name, with what tells it from others of that name.
    style
        Which colour, dash and marker; the same in all settings.
    runs
        One a seed.
    """

    label: str
    style: int
    runs: tuple[Run, ...]

    @property
    def is_oracle(self) -> bool:
        """Whether it is told who attacks."""
        return self.style == ORACLE


@dataclass(frozen=True)
class Setting:
    """Runs that differ in rule and seed alone.

    Parameters
    ----------
    title
        What they have in common, in a few words.
    lines
        One a rule.
    """

    title: str
    lines: tuple[Line, ...]

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for line in self.lines for run in line.runs]

    @property
    def knows_truth(self) -> bool:
        """Whether it is known of any run who attacks."""
        return any(run.knows_truth for run in self.runs)

    def oracle_of(self, run: Run) -> Run | None:
        """The oracle's run with the same seed."""
        oracles = (r for line in self.lines if line.is_oracle for r in line.runs)
        return next((oracle for oracle in oracles if oracle.seed == run.seed), None)


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """Group runs by setting and, within it, by rule."""
    labels = _rule_labels(runs)
    styles = _styles(runs)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_setting_key(run), []).append(run)
    titles = _titles([group[0] for group in groups.values()])
    return [
        Setting(title, _lines(group, labels, styles))
        for title, group in zip(titles, groups.values(), strict=True)
    ]


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give nested fields by their path, such as ``attack.shift_x``."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _setting_key(run: Run) -> str:
    rest = {name: value for name, value in run.scenario.items() if name not in {"rule", "seed"}}
    return json.dumps([run.knows_truth, rest], sort_keys=True, default=str)


def _lines(
    runs: Sequence[Run], labels: Mapping[str, str], styles: Mapping[str, int]
) -> tuple[Line, ...]:
    by_rule: dict[str, list[Run]] = {}
    for run in runs:
        by_rule.setdefault(run.rule_key, []).append(run)
    lines = [
        Line(labels[key], styles[key], tuple(sorted(group, key=lambda run: run.seed)))
        for key, group in by_rule.items()
    ]
    return tuple(sorted(lines, key=lambda line: (line.is_oracle, line.style)))


def _rule_labels(runs: Sequence[Run]) -> dict[str, str]:
    """Name each rule, and say what tells apart those that share a name."""
    variants: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        name, parameters = run.choice("rule")
        variants.setdefault(name, {})[run.rule_key] = parameters
    labels = {}
    for name, by_key in variants.items():
        differing = _differing(list(by_key.values()))
        if "defence" in differing:
            differing.discard("digest")  # the file's name says more
        for key, parameters in by_key.items():
            said = [_said(field, parameters.get(field)) for field in sorted(differing)]
            shown = name or "unnamed rule"
            labels[key] = f"{shown} ({', '.join(said)})" if said else shown
    return labels


def _styles(runs: Sequence[Run]) -> dict[str, int]:
    styles: dict[str, int] = {}
    competitors = 0
    for run in runs:
        if run.rule_key in styles:
            continue
        if run.rule == "oracle":
            styles[run.rule_key] = ORACLE
        else:
            styles[run.rule_key] = competitors
            competitors += 1
    return styles


def _titles(examples: Sequence[Run]) -> list[str]:
    """Name settings; where names would be the same, say what differs."""
    plain = [_title(run) for run in examples]
    titles = []
    for run, title in zip(examples, plain, strict=True):
        namesakes = [r for r, t in zip(examples, plain, strict=True) if t == title]
        fields = [
            flat({k: v for k, v in r.scenario.items() if k not in {"rule", "seed"}})
            for r in namesakes
        ]
        differing = sorted(_differing(fields))
        own = flat(run.scenario)
        said = [f"{field} = {own.get(field, '–')}" for field in differing[:4]]
        titles.append(" · ".join([title, *said]))
    return titles


def _title(run: Run) -> str:
    task = run.choice("task")[0].rpartition(":")[2] or "federation"
    if not run.knows_truth:
        return task
    attack, clients = run.choice("attack")[0], run.whole("clients")
    count = run.whole("attackers") or 0
    by = f"{attack} by {count} of {clients} clients" if count else "no attack"
    return f"{task} · {by}"


def _differing(tables: Sequence[Mapping[str, Any]]) -> set[str]:
    fields = {field for table in tables for field in table}
    return {f for f in fields if len({repr(table.get(f)) for table in tables}) > 1}


def _said(field: str, value: Any) -> str:
    if value is None:
        return f"no {field}"
    if field == "defence":
        return PurePath(str(value)).name
    if field == "digest":
        return str(value)[:6]
    return f"{field}={value}"
