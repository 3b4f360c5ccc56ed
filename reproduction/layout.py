"""From rows to tables: which there are, what their lines and columns are, what stands where.

A table is laid out first, and then written (`tables`) or drawn (`figures`): all show the same. Only
seeds are averaged silently: rows that differ in task, clients, attack or the varied parameter are
in tables of their own, and those of a method that rehearsed other attacks in lines of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pandas as pd

from reproduction.methods import METHODS, ORACLE, place_of

__all__ = ["CLIENTS", "Cell", "Column", "Layout", "Line", "Table", "lay_out", "printed"]

Column = int | None
"""A number of attackers, or a value of what is varied; None is the average over all except 0."""

CLIENTS = 10
"""The number of clients wherever the paper prints figures."""
_NONE = "none"
_WITHOUT_PATTERN = (_NONE, "omniscient", "label-flip")
_LEARNED = {key for key, method in METHODS.items() if method.training is not None}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the tables and figures of an experiment look like.

    What it names is shown even if nothing is finished; what rows have in addition is shown too.

    Parameters
    ----------
    methods
        Whose lines there are.
    attacks
        One table each.
    columns
        Numbers of attackers.
    measures
        Columns of rows, side by side. The success of an attack without a pattern is left out.
    average
        Whether the last column is the mean of the others, except 0 attackers.
    trainings
        What learned methods rehearsed, with + between: one line each. If empty, one line per
        method.
    varied
        Parameters of the attack. Each has a table of averages over its values, and one by value
        for each number of attackers.
    with_none
        Attacks whose tables have the runs without any attack, as 0 attackers.
    bars
        Draw bars in groups with the paper's figures marked, not lines over the columns.
    """

    methods: tuple[str, ...]
    attacks: tuple[str, ...] = ("backdoor",)
    columns: tuple[int, ...] = (1, 2, 3, 4)
    measures: tuple[str, ...] = ("accuracy", "asr")
    average: bool = False
    trainings: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    with_none: tuple[str, ...] = ()
    bars: bool = False


class Line(NamedTuple):
    """A line of a table or plot: a method's key, and what it rehearsed if lines differ in that."""

    rule: str
    trained: str = ""


class Cell(NamedTuple):
    """A figure over several seeds, in percent.

    Parameters
    ----------
    mean
        None if runs are missing.
    spread
        Their standard deviation (of a sample, n − 1); None with fewer than two seeds.
    seeds
        How many there are; if several settings are averaged, of the one that has fewest.
    """

    mean: float | None = None
    spread: float | None = None
    seeds: int = 0


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table, laid out.

    Parameters
    ----------
    task, clients, attack, varied
        What all its rows share; `task` is empty if there are neither rows nor printed figures.
    attackers
        Likewise, in a table by values of what is varied; None if they are the columns.
    values
        What was averaged over, in a table of averages.
    lines, measures, columns
        What there is.
    cells
        By line, measure and column.
    paper
        The paper's figures in percent, by the same.
    paper_task
        The task that these are of.
    best
        Lines and columns of the best method, if there is no doubt.
    rounds
        That rows have.
    rehearsed
        What learned methods rehearsed, unless the lines say it.
    """

    task: str
    clients: int
    attack: str
    varied: str = ""
    attackers: int | None = None
    values: tuple[int, ...] = ()
    lines: tuple[Line, ...]
    measures: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[Line, str, Column], Cell]
    paper: Mapping[tuple[Line, str, Column], float] = field(default_factory=dict)
    paper_task: str = ""
    best: frozenset[tuple[Line, Column]] = frozenset()
    rounds: tuple[int, ...] = ()
    rehearsed: Mapping[str, str] = field(default_factory=dict)

    def cell(self, line: Line, measure: str, column: Column) -> Cell:
        """Return what stands there."""
        return self.cells.get((line, measure, column), Cell())

    def has_paper(self, measure: str, column: Column) -> bool:
        """Whether the paper has a figure in a column."""
        return any((line, measure, column) in self.paper for line in self.lines)


_PRINTED_ELSEWHERE = {
    "mnist-attackers": "mnist-backdoor",
    "cifar10-attackers": "cifar10-backdoor",
    "tiny-imagenet-attackers": "tiny-imagenet-backdoor",
}
"""The paper plots these, and prints the backdoor's part of the plot in a table of its appendix."""


@cache
def printed(experiment: str) -> pd.DataFrame:
    """Return the figures of the paper's tables, as printed, in percent; none if it prints none.

    Of the paper's plots no numbers are known, and none are made up here. ``rule`` has our names:
    the paper's FedAvg is ``mean``, its RFA ``geometric-median``, its Krum ``multi-krum`` and its
    own rule ``adaptive-paper``. ``attackers`` is ``average`` for the mean over 1 to 4.
    """
    name = f"{_PRINTED_ELSEWHERE.get(experiment, experiment)}.csv"
    # By the folder's own list: an id is never taken for a path.
    files = {file.name: file for file in (Path(__file__).parent / "paper").iterdir()}
    text = dict.fromkeys(("experiment", "task", "attack", "attackers", "rule", "trained"), str)
    if name not in files:
        return pd.DataFrame(columns=[*text, "accuracy", "asr"])
    found = pd.read_csv(files[name], dtype=text)
    return found.fillna({"trained": ""})


def lay_out(layout: Layout, rows: pd.DataFrame, paper: pd.DataFrame | None = None) -> list[Table]:
    """Lay out an experiment's tables: by number of attackers, then details of what is varied.

    Of two rows of one cell and seed the later counts. `paper` comes from `printed`.
    """
    paper = printed("") if paper is None else paper
    rows = rows.assign(trained=rows["trained"].map(_in_order))
    tables: list[Table] = []
    details: list[Table] = []
    for about, own in _groups(layout, rows, paper):
        tables.append(_with_paper(layout, _by_attackers(layout, about, own), paper))
        if about["varied"]:
            details += _by_value(layout, about, own)
    return tables + details


def _in_order(trained: str) -> str:
    return "+".join(sorted({part.strip() for part in trained.split("+")}))


# -------------------------------------------------------------------- which tables there are


def _groups(
    layout: Layout, rows: pd.DataFrame, paper: pd.DataFrame
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """List tables: what all rows of each share, and its rows."""
    places = list(dict.fromkeys(zip(rows["task"], rows["clients"], strict=True)))
    places = places or [(task, CLIENTS) for task in paper["task"].unique()] or [("", CLIENTS)]
    for task, clients in places:
        here = rows[(rows["task"] == task) & (rows["clients"] == clients)]
        quiet = here["attack"] == _NONE
        joined = False
        for attack in dict.fromkeys((*layout.attacks, *here["attack"][~quiet])):
            own = here[here["attack"] == attack]
            if attack in layout.with_none:
                own, joined = pd.concat([own, here[quiet]]), True
            for varied in dict.fromkeys((*layout.varied, *own["varied"])) or ("",):
                about = {"task": task, "clients": clients, "attack": attack, "varied": varied}
                yield about, own[own["varied"] == varied]
        if quiet.any() and not joined:
            about = {"task": task, "clients": clients, "attack": _NONE, "varied": ""}
            yield about, here[quiet]


def _by_attackers(layout: Layout, about: dict[str, Any], rows: pd.DataFrame) -> Table:
    columns = {*layout.columns} if about["attack"] != _NONE else set()
    if about["attack"] in layout.with_none and not about["varied"]:
        columns.add(0)
    values = tuple(sorted(rows["value"].unique().tolist())) if about["varied"] else ()
    rows = rows.assign(
        column=rows["attackers"].where(rows["attack"] != _NONE, 0),
        setting=rows["value"] if about["varied"] else 0,
    )
    lines = _lines(layout, rows)
    table = _table(layout, about, rows, lines, columns, values=values or (0,))
    return replace(table, values=values)


def _by_value(layout: Layout, about: dict[str, Any], rows: pd.DataFrame) -> Iterator[Table]:
    values, lines = {*rows["value"].tolist()}, _lines(layout, rows)
    rows = rows.assign(column=rows["value"], setting=0)
    for attackers in sorted({*rows["attackers"].tolist()}):
        own = rows[rows["attackers"] == attackers]
        table = _table(replace(layout, average=False), about, own, lines, values, values=(0,))
        yield replace(table, attackers=attackers)


# -------------------------------------------------------------------- one table


def _table(
    layout: Layout,
    about: dict[str, Any],
    rows: pd.DataFrame,
    lines: tuple[Line, ...],
    expected: set[int],
    *,
    values: tuple[int, ...],
) -> Table:
    columns: list[Column] = [*sorted(expected | {*rows["column"].tolist()})]
    averaged = [column for column in columns if column]
    if layout.average and len(averaged) > 1:
        columns.append(None)
    measures = tuple(
        m
        for m in layout.measures
        if m != "asr" or rows[m].notna().any() or about["attack"] not in _WITHOUT_PATTERN
    )
    rows = rows.assign(score=rows["accuracy"] * (1 - rows["asr"].fillna(0)))
    split = {line.rule for line in lines if line.trained}
    found: dict[tuple[Line, str, int, int], dict[int, float]] = {}
    for row in rows.to_dict("records"):
        line = Line(row["rule"], row["trained"] if row["rule"] in split else "")
        for measure in (*measures, "score"):
            if pd.notna(row[measure]):  # a model that was not tested is not finished
                place = (line, measure, row["column"], row["setting"])
                found.setdefault(place, {})[row["seed"]] = row[measure]

    def summary(line: Line, measure: str, column: Column) -> Cell:
        within = averaged if column is None else [column]
        return _summary([found.get((line, measure, c, v), {}) for c in within for v in values])

    scores = {(line, c): summary(line, "score", c) for line in lines for c in columns}
    trained = dict(zip(rows["rule"], rows["trained"], strict=True))
    return Table(
        **about,
        lines=lines,
        measures=measures,
        columns=tuple(columns),
        cells={(n, m, c): summary(n, m, c) for n in lines for m in measures for c in columns},
        best=frozenset((line, c) for c in columns for line in _best(lines, c, scores)),
        rounds=tuple(sorted({*rows["rounds"].tolist()} - {0})),
        rehearsed={
            line.rule: trained[line.rule]
            for line in lines
            if not line.trained and trained.get(line.rule)
        },
    )


def _summary(settings: Sequence[Mapping[int, float]]) -> Cell:
    """Average settings, each given as shares by seed; more seeds do not count more.

    The spread is that of the averages by seed, and is left out unless all have the same seeds.
    """
    if not settings or not all(settings):
        return Cell()
    mean = fmean(fmean(each.values()) for each in settings)
    seeds, spread = settings[0].keys(), None
    if len(seeds) > 1 and all(each.keys() == seeds for each in settings):
        spread = 100 * stdev(fmean(each[seed] for each in settings) for seed in seeds)
    return Cell(100 * mean, spread, min(map(len, settings)))


def _lines(layout: Layout, rows: pd.DataFrame) -> tuple[Line, ...]:
    """List the lines; those of a method that rehearsed differently are split."""
    kinds = rows.groupby("rule")["trained"].nunique()
    split = {*kinds.index} if layout.trainings else {*kinds.index[kinds > 1]}
    found = {
        Line(rule, trained if rule in split else "")
        for rule, trained in zip(rows["rule"], rows["trained"], strict=True)
    }
    for rule in layout.methods:
        if layout.trainings and rule in _LEARNED:
            found |= {Line(rule, trained) for trained in layout.trainings}
        elif layout.trainings or rule not in split:
            found.add(Line(rule))
    return tuple(
        sorted(found, key=lambda one: (place_of(one.rule), one.rule, one.trained.count("+"), one))
    )


def _best(
    lines: Sequence[Line], column: Column, scores: Mapping[tuple[Line, Column], Cell]
) -> list[Line]:
    """Return the best method of a column, if there is no doubt: one line, or none.

    It is the one with the highest ACC · (1 − ASR), or ACC if there is no ASR, the oracle aside. All
    must be finished, and its lead must exceed the standard deviations of the first two: one seed
    does not show that.
    """
    found = {line: scores[line, column] for line in lines if line.rule != ORACLE}
    if len(found) < 2 or any(score.mean is None for score in found.values()):
        return []
    first, second = sorted(found, key=lambda line: found[line].mean or 0.0, reverse=True)[:2]
    lead = (found[first].mean or 0.0) - (found[second].mean or 0.0)
    spreads = (found[first].spread, found[second].spread)
    return [first] if all(spread is not None and lead > spread for spread in spreads) else []


# -------------------------------------------------------------------- the paper's figures


def _with_paper(layout: Layout, table: Table, paper: pd.DataFrame) -> Table:
    """Add the paper's figures; those of another task if it has none of this one."""
    if table.clients != CLIENTS or table.varied or paper.empty:
        return table
    tasks = paper["task"].unique().tolist()
    task = table.task if table.task in tasks else tasks[0]
    found = {}
    for each in paper[(paper["task"] == task) & (paper["attack"] == table.attack)].to_dict(
        "records"
    ):
        column = None if each["attackers"] == "average" else int(each["attackers"])
        for line in table.lines:
            if column in table.columns and _is_same_line(layout, line, each):
                for measure in table.measures:
                    if pd.notna(each.get(measure)):
                        found[line, measure, column] = float(each[measure])
    return replace(table, paper=found, paper_task=task if found else "")


def _is_same_line(layout: Layout, line: Line, figure: Mapping[Any, Any]) -> bool:
    same = line.trained == _in_order(figure["trained"])
    # The paper does not say everywhere what its rule learned from.
    unsaid = not layout.trainings and not (line.trained and figure["trained"])
    return bool(figure["rule"] == line.rule and (same or unsaid))
