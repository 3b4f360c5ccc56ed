"""From rows to tables: which there are, what their lines and columns are, what stands where.

A table is laid out first, and then written (`tables`) or drawn (`figures`): all show the same.
Nothing but seeds is ever averaged unsaid: rows that differ in task, clients, attack or the varied
parameter are in tables of their own, and those of a rule that rehearsed other attacks in lines of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fedimmune.experiments.rows import Row
from fedimmune.experiments.shown.cells import Seeds, cell_of, scores_of
from fedimmune.experiments.shown.laid_out import Column, Layout, Table
from fedimmune.experiments.shown.naming import LEARNED_RULES, ORACLE, Line, sorted_lines
from fedimmune.experiments.shown.published import CLIENTS, Published

__all__ = ["lay_out", "sorted_training"]

_NONE = "none"
_WITHOUT_PATTERN = (_NONE, "omniscient", "label-flip")


def lay_out(
    layout: Layout, rows: Sequence[Row], published: Sequence[Published] = ()
) -> list[Table]:
    """Lay out an artefact's tables.

    Parameters
    ----------
    layout
        What they look like.
    rows
        What is finished: all, some or none. Of two of one setting and seed the later counts.
    published
        The paper's figures.

    Returns
    -------
    list of Table
        Those by numbers of attackers first, then the details of what is varied.
    """
    tables: list[Table] = []
    details: list[Table] = []
    for part in _parts(layout, rows, published):
        by_attackers = _by_attackers(layout, part)
        tables.append(_with_paper(layout, by_attackers, published))
        if part.varied:
            details += _by_value(layout, part)
    return tables + details


def sorted_training(trained: str) -> str:
    """Write what was rehearsed in one order."""
    return "+".join(sorted({part.strip() for part in trained.split("+")}))


# -------------------------------------------------------------------- which tables there are


@dataclass(frozen=True)
class _Part:
    task: str
    clients: int
    attack: str
    varied: str
    rows: tuple[Row, ...]


def _parts(layout: Layout, rows: Sequence[Row], published: Sequence[Published]) -> Iterator[_Part]:
    places = dict.fromkeys((row.task, row.clients) for row in rows)
    for task, clients in places or {(p.task, CLIENTS): None for p in published} or {("", CLIENTS)}:
        here = [row for row in rows if (row.task, row.clients) == (task, clients)]
        without = [row for row in here if row.attack == _NONE]
        found = dict.fromkeys(row.attack for row in here if row.attack != _NONE)
        joined = False
        for attack in dict.fromkeys((*layout.attacks, *found)):
            own = [row for row in here if row.attack == attack]
            if attack in layout.with_none:
                own, joined = [*own, *without], True
            varied = dict.fromkeys((*layout.varied, *(row.varied for row in own)))
            for name in varied or ("",):
                of_it = tuple(row for row in own if row.varied == name)
                yield _Part(task, clients, attack, name, of_it)
        if without and not joined:
            yield _Part(task, clients, _NONE, "", tuple(without))


def _by_attackers(layout: Layout, part: _Part) -> Table:
    columns = {*layout.columns} if part.attack != _NONE else set()
    if part.attack in layout.with_none and not part.varied:
        columns.add(0)
    return _table(
        *(layout, part, part.rows, columns),
        column_of=lambda row: 0 if row.attack == _NONE else row.attackers,
        average=layout.average,
        values=tuple(sorted({row.value for row in part.rows})) if part.varied else (),
    )


def _by_value(layout: Layout, part: _Part) -> Iterator[Table]:
    values = {row.value for row in part.rows}
    for attackers in sorted({row.attackers for row in part.rows}):
        rows = tuple(row for row in part.rows if row.attackers == attackers)
        table = _table(layout, part, rows, values, column_of=lambda row: row.value)
        yield replace(table, attackers=attackers)


# -------------------------------------------------------------------- one table


def _table(
    layout: Layout,
    part: _Part,
    rows: Sequence[Row],
    expected: set[int],
    *,
    column_of: Callable[[Row], int],
    average: bool = False,
    values: tuple[int, ...] = (),
) -> Table:
    line_of, lines = _lines(layout, part.rows)
    runs: dict[tuple[Line, str, int, int], dict[int, float]] = {}
    for row in rows:
        for measure in layout.measures:
            share: float | None = getattr(row, measure)
            if share is not None and math.isfinite(share):  # a model that was not tested is not
                place = (line_of(row), measure, column_of(row), row.value if values else 0)
                runs.setdefault(place, {})[row.seed] = share
    columns: list[Column] = [*sorted(expected | {column_of(row) for row in rows})]
    averaged = [column for column in columns if column]
    if average and len(averaged) > 1:
        columns.append(None)
    found = {measure for _, measure, _, _ in runs}
    measures = tuple(
        m
        for m in layout.measures
        if m in found or m != "asr" or part.attack not in _WITHOUT_PATTERN
    )

    def settings(line: Line, measure: str, column: Column) -> list[Seeds]:
        within = averaged if column is None else [column]
        return [runs.get((line, measure, c, v), {}) for c in within for v in values or (0,)]

    return Table(
        task=part.task,
        clients=part.clients,
        attack=part.attack,
        varied=part.varied,
        values=values,
        lines=lines,
        measures=measures,
        columns=tuple(columns),
        cells={
            (line, measure, column): cell_of(settings(line, measure, column))
            for line in lines
            for measure in measures
            for column in columns
        },
        best=frozenset((line, c) for c in columns for line in _best(lines, c, settings)),
        rounds=tuple(sorted({row.rounds for row in rows} - {0})),
        rehearsed=_rehearsed(lines, rows),
    )


def _lines(layout: Layout, rows: Sequence[Row]) -> tuple[Callable[[Row], Line], tuple[Line, ...]]:
    """Say which line a row is in, and which lines there are."""
    rehearsed: dict[str, set[str]] = {}
    for row in rows:
        rehearsed.setdefault(row.rule, set()).add(sorted_training(row.trained))
    by_training = layout.lines == "trained"
    split = {rule for rule, kinds in rehearsed.items() if by_training or len(kinds) > 1}

    def line_of(row: Row) -> Line:
        return Line(row.rule, sorted_training(row.trained) if row.rule in split else "")

    expected = {
        Line(rule, trained)
        for rule in layout.rules
        if by_training or rule not in split
        for trained in (layout.trained if by_training and rule in LEARNED_RULES else ("",))
    }
    return line_of, tuple(sorted_lines(expected | {line_of(row) for row in rows}))


def _best(
    lines: Sequence[Line],
    column: Column,
    settings: Callable[[Line, str, Column], Sequence[Seeds]],
) -> list[Line]:
    """Name the best rule of a column, where there is no doubt: one line, or none.

    It is the one with the highest ACC · (1 − ASR), or ACC where there is no ASR, the oracle aside.
    All must be finished, and its lead must be more than the standard deviations of the two first:
    one seed does not show that.
    """
    scores = {
        line: cell_of(scores_of(settings(line, "accuracy", column), settings(line, "asr", column)))
        for line in lines
        if line.rule != ORACLE
    }
    if len(scores) < 2 or any(score.mean is None for score in scores.values()):
        return []
    first, second = sorted(scores, key=lambda line: scores[line].mean or 0.0, reverse=True)[:2]
    lead = (scores[first].mean or 0.0) - (scores[second].mean or 0.0)
    spreads = (scores[first].spread, scores[second].spread)
    return [first] if all(spread is not None and lead > spread for spread in spreads) else []


def _rehearsed(lines: Sequence[Line], rows: Sequence[Row]) -> dict[str, str]:
    """Say what rules rehearsed whose lines do not."""
    trained = {row.rule: sorted_training(row.trained) for row in rows}
    return {
        line.rule: trained[line.rule]
        for line in lines
        if not line.trained and trained.get(line.rule)
    }


# -------------------------------------------------------------------- the paper's figures


def _with_paper(layout: Layout, table: Table, published: Sequence[Published]) -> Table:
    """Add the paper's figures; those of another task where it has none of this one."""
    if table.clients != CLIENTS or table.varied:
        return table
    tasks = dict.fromkeys(each.task for each in published)
    task = table.task if table.task in tasks else next(iter(tasks), "")
    found = {}
    for each in published:
        if (each.task, each.attack) != (task, table.attack) or each.attackers not in table.columns:
            continue
        for line in table.lines:
            if each.rule == line.rule and _is_trained_alike(layout, line, each):
                for measure in table.measures:
                    figure: float | None = getattr(each, measure, None)
                    if figure is not None:
                        found[line, measure, each.attackers] = figure
    return replace(table, paper=found, paper_task=task if found else "")


def _is_trained_alike(layout: Layout, line: Line, figure: Published) -> bool:
    if layout.lines == "trained":
        return line.trained == sorted_training(figure.trained)
    # What the paper's rule learned from is not said everywhere.
    return not (line.trained and figure.trained) or line.trained == sorted_training(figure.trained)
