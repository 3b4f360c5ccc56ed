"""What tables look like, and tables that are laid out: what stands where, not yet written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedimmune.experiments.shown.cells import EMPTY, Cell
from fedimmune.experiments.shown.naming import Line

__all__ = ["Column", "Layout", "Table"]

Column = int | None
"""A number of attackers, or a value of what is varied; None is the average over all but 0."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the tables and pictures of an artefact look like.

    What it names is shown even where nothing is finished; what rows have besides is shown too.

    Parameters
    ----------
    name
        The artefact's id.
    title
        What it shows, in a few words.
    rules
        Whose lines there are.
    attacks
        One table each.
    columns
        Numbers of attackers.
    measures
        Fields of `Row`, side by side. The success of an attack without a pattern is left out.
    average
        Whether the last column is the mean of the others, but for 0 attackers.
    lines
        ``trained``: one line for each of `trained` that a learned rule rehearsed; ``rule``: one.
    trained
        What learned rules rehearsed, with + between.
    varied
        Parameters of the attack. Each has a table of averages over its values, and one by value for
        each number of attackers.
    with_none
        Attacks whose tables have the runs without any attack, as 0 attackers.
    figure
        ``lines`` over the columns, or ``bars`` in groups, with the paper's figures marked.
    """

    name: str
    title: str
    rules: tuple[str, ...]
    attacks: tuple[str, ...] = ("backdoor",)
    columns: tuple[int, ...] = (1, 2, 3, 4)
    measures: tuple[str, ...] = ("accuracy", "asr")
    average: bool = False
    lines: Literal["rule", "trained"] = "rule"
    trained: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    with_none: tuple[str, ...] = ()
    figure: Literal["lines", "bars"] = "lines"


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table, laid out.

    Parameters
    ----------
    task, clients, attack, varied
        What all its rows share; `task` is empty where there are neither rows nor figures of the
        paper.
    attackers
        Likewise, in a table by values of what is varied; None where they are the columns.
    values
        What was averaged over, in a table of averages.
    lines, measures, columns
        What there is.
    cells
        By line, measure and column.
    paper
        The paper's figures in per cent, by the same.
    paper_task
        The task that these are of.
    best
        Lines and columns of the best rule, where there is no doubt; see `laying_out`.
    rounds
        That rows have.
    rehearsed
        What learned rules rehearsed, by rule; empty where the lines say it.
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
        """What stands there."""
        return self.cells.get((line, measure, column), EMPTY)

    def has_paper(self, measure: str, column: Column) -> bool:
        """Whether the paper has a figure in a column."""
        return any((line, measure, column) in self.paper for line in self.lines)
