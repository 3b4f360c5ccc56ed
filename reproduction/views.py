"""Tables of pages that people write, made of the rows that are published.

A view makes a table of a page, or fills in its figures; `UNCHECKED` lists the tables that have no
rows in the repository, with the reason. `reproduction.check` compares pages with both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from fedimmune.adaptive.defense import UNIVERSAL_FILE, universal
from reproduction import benchmarks
from reproduction.experiments import RunTable
from reproduction.immunity import evaluated
from reproduction.layout import printed
from reproduction.methods import ORACLE, PAPER_FORMS, RULES, remark_of
from reproduction.rows import read_rows, read_table, with_method
from reproduction.studies import EXPERIMENTS
from reproduction.tables import markdown_table

__all__ = ["UNCHECKED", "VIEWS", "Place", "Rows", "View", "cells_of"]

_MISSING = "–"


@dataclass(frozen=True)
class Place:
    """Where a table is: a page, a heading on it, and the how-manieth there."""

    page: str
    heading: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.page}, {self.heading!r}, table {self.number}"


class Rows:
    """Published rows, by the name of their file; each file is read once."""

    def __init__(self, folder: Path) -> None:
        @cache
        def read(name: str) -> pd.DataFrame:
            file = folder / f"{name}.csv"
            if isinstance(EXPERIMENTS.get(name), RunTable):
                return read_rows(file)
            frame = read_table(file)
            return with_method(frame) if name in EXPERIMENTS else frame

        self.read = read

    def shares(self, name: str, measure: str, **wanted: Any) -> list[float]:
        """Return a measure of the rows that have these values, in order."""
        frame = self.read(name)
        for field, value in wanted.items():
            frame = frame[frame[field] == value]
        found: list[float] = frame[measure].dropna().tolist()
        return found

    def percent(self, name: str, measure: str, **wanted: Any) -> str | None:
        """Return the mean of these rows in percent; None if there are none."""
        found = self.shares(name, measure, **wanted)
        return f"{100 * math.fsum(found) / len(found):.2f}" if found else None

    def both(self, name: str, **wanted: Any) -> str | None:
        """Return ACC / ASR, in percent."""
        found = [self.percent(name, measure, **wanted) for measure in ("accuracy", "asr")]
        return None if None in found else " / ".join(map(str, found))


Cells = list[list[str]]
"""A table's lines of cells, the head first, without the line of dashes."""


@dataclass(frozen=True)
class View:
    """What makes a table anew.

    Parameters
    ----------
    make
        Called with the rows and the table as it is published.
    gaps
        How many of its cells have no rows, and stay as they are published.
    """

    make: Callable[[Rows, Cells], Cells]
    gaps: int = 0


VIEWS: dict[Place, View] = {}
"""Tables that can be made from published rows."""


def cells_of(lines: Sequence[str]) -> Cells:
    """Read a table in Markdown."""
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
    return [[cell.strip() for cell in row] for k, row in enumerate(rows) if k != 1]


def _made(
    page: str, heading: str, number: int = 1
) -> Callable[[Callable[[Rows], str]], Callable[[Rows], str]]:
    """Register what writes a whole table, in Markdown."""

    def register(make: Callable[[Rows], str]) -> Callable[[Rows], str]:
        VIEWS[Place(page, heading, number)] = View(
            lambda rows, _: cells_of(make(rows).splitlines())
        )
        return make

    return register


_Figure = Callable[[Rows, str, str], str | None]
"""Called with what a line and a column are called; None if there are no rows."""


def _filled(
    page: str, heading: str, number: int = 1, gaps: int = 0
) -> Callable[[_Figure], _Figure]:
    """Register what returns single figures of a table whose words somebody wrote."""

    def register(figure: _Figure) -> _Figure:
        def fill(rows: Rows, published: Cells) -> Cells:
            head, *lines = published
            made = [head]
            empty = 0
            for line in lines:
                again = [line[0]]
                for column, cell in zip(head[1:], line[1:], strict=True):
                    found = figure(rows, _plain(line[0]), _plain(column))
                    empty += found is None
                    bold = "**" if cell.startswith("**") and cell.endswith("**") else ""
                    again.append(cell if found is None else f"{bold}{found}{bold}")
                made.append(again)
            if empty != gaps:
                raise LookupError(f"there are no rows for {empty} cells, expected for {gaps}")
            return made

        VIEWS[Place(page, heading, number)] = View(fill, gaps)
        return figure

    return register


def _plain(text: str) -> str:
    return text.replace("*", "").replace("`", "")


# -------------------------------------------------------------------- the results page


_TASKS = {"MNIST": ("mnist-attackers", "mnist"), "CIFAR-10": ("cifar10-attackers", "cifar10")}


@_made("docs/results.md", "The paper, reproduced")
def _headline(rows: Rows) -> str:
    head = ["rule, 4 of 10 attack"]
    for title, (name, _) in _TASKS.items():
        frame = rows.read(name)
        attacked = frame[frame["attackers"] == 4]
        seeds = sorted({*attacked.groupby(["rule", "attack"])["seed"].nunique()})
        said = f"{seeds[0]} to {seeds[-1]} seeds" if seeds[1:] else f"{seeds[0]} seeds"
        said = "1 seed" if seeds == [1] else said
        head += [f"{title} ({said}): ACC", "ASR", "*printed*", "sign-flip: ACC"]
    lines = []
    for rule in RULES:
        cells: list[str] = []
        for name, task in _TASKS.values():
            backdoor = {"attackers": 4, "rule": rule, "attack": "backdoor"}
            paper = printed(f"{task}-backdoor")
            told = paper[(paper["rule"] == rule) & (paper["attackers"] == "4")]["asr"]
            cells += [
                rows.percent(name, "accuracy", **backdoor) or _MISSING,
                rows.percent(name, "asr", **backdoor) or _MISSING,
                f"*{told.iloc[0]:.2f}*" if len(told) else "",
                rows.percent(name, "accuracy", **{**backdoor, "attack": "omniscient"}) or _MISSING,
            ]
        if any(cell not in (_MISSING, "") for cell in cells):
            remark = remark_of(rule)
            bold = "**" if rule.startswith("adaptive") and rule not in PAPER_FORMS else ""
            lines.append([f"{bold}`{rule}`{bold}" + (f" ({remark})" if remark else ""), *cells])
    return markdown_table(head, lines, "l" + "r" * (len(head) - 1))


_SHOWN = 8
"""Lines of a headline table."""


@_made("docs/results.md", "Worst case over attacks")
def _worst(rows: Rows) -> str:
    frame = benchmarks.worst(rows.read("grid"))
    four = frame[frame["attackers"] == 4].sort_values("mean harm", kind="stable").head(_SHOWN)
    head = ["rule", "no attack: ACC", "worst attack", "points worse", "in the mean"]
    lines = [
        [
            f"`{one['rule']}`",
            f"{100 * one['no attack']:.1f}",
            f"`{one['worst attack']}`" if one["rule"] != ORACLE else _MISSING,
            *(f"{100 * one[name]:.1f}" for name in ("harm", "mean harm")),
        ]
        for one in four.to_dict("records")
    ]
    return markdown_table(head, lines, "lrlrr")


@_made("docs/results.md", "Leave-one-out immunity")
def _immune(rows: Rows) -> str:
    frame = rows.read("immunity")
    head, *lines = cells_of(evaluated(frame).splitlines())
    harm = frame[frame["rule"] == "adaptive"].groupby("attack")["harm"].mean()
    attacked = harm[harm.index != "none"]
    near = attacked[attacked < _NEAR]
    cost = "points worse than the oracle"
    made = [
        [
            f"{len(near)} of {len(attacked)} attacks",
            *[_MISSING] * 2,
            f"{100 * near.max():.1f} or less",
        ]
    ]
    made += [
        [
            "nobody attacks" if line[0] == "none" else f"`{line[0]}`",
            *line[1:3],
            f"{100 * harm[line[0]]:.1f}",
        ]
        for line in lines
        if line[0] not in near.index
    ]
    return markdown_table([head[0], *head[1:3], cost], made, "lrrr")


_NEAR = 0.01
"""Who is within a point of the oracle is said to stand at it."""


# -------------------------------------------------------------------- findings of experiments


_METHODS = {
    "FedAvg": "mean",
    "median": "median",
    "multi-Krum": "multi-krum",
    "geometric median": "geometric-median",
    "geometric-median": "geometric-median",
    "foolsgold": "foolsgold",
    "paper's form, literal": "adaptive-paper-literal",
    "paper's form, axes as they come": "adaptive-paper-literal",
    "signs settled": "adaptive-paper-clients",
    "adaptive": "adaptive",
    "oracle": ORACLE,
    "mean": "mean",
}
_ATTACKS = {"backdoor": "backdoor", "sign-flip": "omniscient", "sign flip": "omniscient"}
"""The paper's word for a sign flip is in its tables."""


@_filled("README.md", "Results", gaps=12)
def _readme(rows: Rows, line: str, column: str) -> str | None:
    found = re.fullmatch(r"(\S+), (.+), (ACC|ASR)", line)
    if found is None or column not in _METHODS or found[2] not in _ATTACKS:
        return None
    measure = {"ACC": "accuracy", "ASR": "asr"}[found[3]]
    wanted = {"attackers": 4, "attack": _ATTACKS[found[2]], "rule": _METHODS[column]}
    return rows.percent(_TASKS[found[1]][0], measure, **wanted)


_MNIST_ATTACKERS = EXPERIMENTS["mnist-attackers"].title


@_filled("docs/results/mnist-attackers.md", _MNIST_ATTACKERS)
def _fewer(rows: Rows, line: str, column: str) -> str | None:
    found = re.fullmatch(r"backdoor by (\d) of 10: ASR", line)
    if found is None:
        raise LookupError(line)
    wanted = {"attackers": int(found[1]), "attack": "backdoor", "rule": _METHODS[column]}
    return rows.percent("mnist-attackers", "asr", **wanted, seed=1)


@_filled("docs/results/training-attacks.md", EXPERIMENTS["training-attacks"].title)
def _trainings(rows: Rows, line: str, column: str) -> str | None:
    rule, _, seeds = column.rpartition(", ")
    methods = {"ours": "adaptive", "paper's form, signs settled": "adaptive-paper-clients"}
    wanted = {"rule": methods.get(rule, "adaptive-paper-literal"), "attackers": 4}
    wanted |= {"trained": {"both": "backdoor+omniscient"}.get(line) or _ATTACKS[line]}
    if seeds == "seed 1":
        wanted["seed"] = 1
    success = rows.percent("training-attacks", "asr", attack="backdoor", **wanted)
    accuracy = rows.percent("training-attacks", "accuracy", attack="omniscient", **wanted)
    return f"{success} · {accuracy}"


@_filled("docs/results/transfer-patterns.md", EXPERIMENTS["transfer-patterns"].title)
def _patterns(rows: Rows, line: str, column: str) -> str | None:
    found = re.fullmatch(r"(\S+), (\w+) = (\d+)", line)
    if found is None:
        raise LookupError(line)
    wanted = {"task": _TASKS[found[1]][1], "varied": found[2], "value": int(found[3])}
    return (
        rows.percent("transfer-patterns", "asr", rule=_METHODS[column], attackers=4, **wanted)
        or _MISSING
    )


# -------------------------------------------------------------------- the paper's form


_FORM = "docs/results/paper-form.md"
_LAST = 30
_FORMS = {"axes as they come": "-literal", "signs settled": ""}


def _run(line: str) -> dict[str, Any]:
    found = re.fullmatch(r"(\d) of 10, (\d)", line)
    if found is None:
        raise LookupError(line)
    return {"attackers": int(found[1]), "seed": int(found[2])}


@_filled(_FORM, "The text's protocol")
def _text(rows: Rows, line: str, column: str) -> str | None:
    run = _run(line)
    if column == "printed":
        paper = printed("mnist-backdoor")
        own = paper[
            (paper["rule"] == "adaptive-paper") & (paper["attackers"] == str(run["attackers"]))
        ]
        return f"{own['asr'].iloc[0]:.2f}"
    last = {**run, "protocol": "paper", "round": _LAST}
    if column in _FORMS:
        return rows.both("paper-form", rule="adaptive", defense=f"both{_FORMS[column]}", **last)
    rule = _METHODS[column]
    table = {**run, "rule": rule, "attack": "backdoor"}
    if rule == ORACLE:
        return rows.both("mnist-attackers", **table) or rows.both("paper-form", rule=rule, **last)
    return rows.percent("mnist-attackers", "asr", **table) or rows.percent(
        "paper-form", "asr", rule=rule, **last
    )


@_filled(_FORM, "The program's protocol")
def _program(rows: Rows, line: str, column: str) -> str | None:
    last = {**_run(line), "protocol": "authors", "round": _LAST}
    if column in _FORMS:
        return rows.both("paper-form", defense=f"both-gray{_FORMS[column]}", **last)
    return rows.both("paper-form", rule=_METHODS[column], **last)


_NUMBERS = ("one", "two", "three", "four")


@_filled(_FORM, "FedAvg: what is explained, and what is not", gaps=16)
def _fedavg(rows: Rows, line: str, column: str) -> str | None:
    found = re.fullmatch(r"the program(?: \(--protocol authors\))?, (\w+) of ten", line)
    if found is None or column not in ("ACC", "ASR"):
        return None
    attackers = 1 + _NUMBERS.index(found[1])
    last = {"rule": "mean", "protocol": "authors", "attackers": attackers, "seed": 1}
    if column == "ACC":
        return rows.percent("paper-form", "accuracy", round=_LAST, **last)
    paper = printed("mnist-backdoor")
    own = paper[(paper["rule"] == "mean") & (paper["attackers"] == str(attackers))]
    bold = "**" if attackers < 3 else ""
    success = rows.percent("paper-form", "asr", round=_LAST, **last)
    return f"{bold}{success}{bold} (printed {own['asr'].iloc[0]:.2f})"


_PARTS = {
    "all of it": ("adaptive-paper-clients", "adaptive-paper"),
    "without attention": ("mlp", "mlp"),
    "without the scale": ("without-c", "without-c"),
    "without truncation": ("without-eps", "without-eps"),
}


def _by_seed(rows: Rows, name: str, measure: str, **wanted: Any) -> str:
    return ", ".join(f"{100 * share:.2f}" for share in rows.shares(name, measure, **wanted))


@_filled(_FORM, "Parts and trainings")
def _parts(rows: Rows, line: str, column: str) -> str | None:
    ours, theirs = _PARTS[line.partition(" (")[0]]
    if column == "mean":
        return rows.both("ablation", rule=ours, attackers=4)
    if column.startswith("seeds"):
        return _by_seed(rows, "ablation", "asr", rule=ours, attackers=4)
    paper = printed("ablation")
    return f"{paper[(paper['rule'] == theirs) & (paper['attackers'] == '4')]['asr'].iloc[0]:.2f}"


@_filled(_FORM, "Parts and trainings", 2)
def _rehearsed(rows: Rows, line: str, column: str) -> str | None:
    trained = {"both": "backdoor+omniscient"}.get(line) or _ATTACKS[line]
    wanted = {"rule": "adaptive-paper-clients", "trained": trained, "attackers": 4}
    if column.startswith("backdoor"):
        return rows.both("training-attacks", attack="backdoor", **wanted)
    if column.startswith("sign-flip"):
        return rows.percent("training-attacks", "accuracy", attack="omniscient", **wanted)
    return _by_seed(rows, "training-attacks", "accuracy", attack="omniscient", **wanted)


# -------------------------------------------------------------------- other pages


@_filled("docs/results/learned-mnist.md", "The learned rule on MNIST", gaps=44)
def _learned(rows: Rows, line: str, column: str) -> str | None:
    if line not in ("mean", "median", ORACLE) or column not in _ATTACKS:
        return None
    wanted = {"rule": _METHODS[line], "attackers": 4, "attack": _ATTACKS[column]}
    seeds = len(rows.shares("mnist-attackers", "accuracy", **wanted))
    if column == "backdoor":
        return f"{rows.both('mnist-attackers', **wanted)} ({seeds})"
    return f"{rows.percent('mnist-attackers', 'accuracy', **wanted)} ({seeds})"


@_made("docs/results/immunity.md", "The universal defense on what it never saw")
def _immunity(rows: Rows) -> str:
    return evaluated(rows.read("immunity"))


@_made("docs/results/grid.md", "Every rule under every attack")
def _grid(rows: Rows) -> str:
    return benchmarks.TABLES["grid"](rows.read("grid"))


@_made("docs/results/grid.md", "On MNIST")
def _grid_of_mnist(rows: Rows) -> str:
    return benchmarks.TABLES["grid"](rows.read("grid-mnist"))


@_made("docs/results/byzfl.md", "ByzFL's benchmark")
def _byzfl(rows: Rows) -> str:
    return benchmarks.TABLES["byzfl"](rows.read("byzfl"))


@_made("docs/results/thesis.md", "A thesis' table of Flower's strategies")
def _thesis(rows: Rows) -> str:
    return benchmarks.TABLES["thesis"](rows.read("thesis"))


# -------------------------------------------------------------------- the model card


_CARD = "docs/model-card.md"


@_made(_CARD, "The file")
def _file(_: Rows) -> str:
    defense = universal()
    facts = {
        "file": f"`fedimmune/adaptive/{UNIVERSAL_FILE.name}`, in the wheel",
        "digest": f"`{defense.digest}`",
        "size": f"{UNIVERSAL_FILE.stat().st_size:,} bytes",
        "parameters": f"{sum(p.numel() for p in defense.form.parameters()):,}",
        "made with": f"fedimmune {defense.about.version}",
    }
    return markdown_table(["", ""], [[name, fact] for name, fact in facts.items()], "--")


@_filled(_CARD, "Figures")
def _card(rows: Rows, line: str, _: str) -> str | None:
    frame = rows.read("immunity")
    own = frame[frame["rule"] == "adaptive"]
    harm = 100 * own.groupby("attack")["harm"].mean()
    attacked = harm[harm.index != "none"]
    quiet = own[own["attack"] == "none"]
    loud = own[own["attack"] != "none"]
    found: Mapping[str, str] = {
        "attacks within a point of the oracle": f"{(attacked < 1).sum()} of {len(attacked)}",
        "worst attack": f"`{attacked.idxmax()}`, {attacked.max():.1f} points worse",
        "mean over attacks": f"{attacked.mean():.1f} points worse",
        "nobody attacks": f"{harm['none']:.1f} points worse",
        "honest rounds suspected, nobody attacks": f"{100 * quiet['accused'].mean():.1f} %",
        "honest rounds suspected, under attack": f"{100 * loud['accused'].mean():.1f} %",
    }
    return found[line]


# -------------------------------------------------------------------- what has no rows


_FOLDERS = "read from run folders, which are too large to publish: the command is on the page"
_WORDS = "words"
UNCHECKED: dict[Place, str] = {
    Place("README.md", "What it does"): _WORDS,
    Place("docs/results.md", "Every artifact"): _WORDS,
    Place(_FORM, "The paper's form"): _WORDS,
    Place(_FORM, "CIFAR-10"): _FOLDERS,
    Place(_FORM, "Factor by factor"): _FOLDERS,
    Place("docs/results/immunity.md", "MNIST"): _FOLDERS,
    Place("docs/results/learned-mnist.md", "The learned rule on MNIST", 2): _FOLDERS,
    Place("docs/results/kinds.md", "Suspected of what"): _FOLDERS,
    Place("docs/results/patch.md", "A patch"): _FOLDERS,
    Place("docs/results/scores.md", "Where a defense falls short, and why"): _FOLDERS,
    Place("docs/results/steps.md", "What each step brings"): "written by its own command to build/",
    Place("docs/reproducibility.md", "Pages, commands and times"): "times are not rows",
    Place("docs/reproducibility.md", "Inputs"): "compared by `python -m reproduction.inputs`",
    Place("docs/reproducibility.md", "Versions"): "compared by tests/docs/test_results.py",
}
"""Tables that cannot be made from published rows, and why."""
