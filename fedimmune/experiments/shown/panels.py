"""One panel of a picture: lines over the columns of a table, or bars in groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedimmune.experiments.shown.cells import Cell
from fedimmune.experiments.shown.laid_out import Column, Table
from fedimmune.experiments.shown.naming import ORACLE, Line
from fedimmune.experiments.shown.styles import label_of, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Legend", "PanelDrawing"]

_DODGE = 0.28
"""Lines are moved apart by so much of a column in all: equal figures would hide each other."""
_GROUP = 0.84
"""So much of a column do bars take."""
_PALE, _QUIET = "#dde2e6", "#5f6b73"


@dataclass
class Legend:
    """Whom a picture shows, and what stands for them in its legend.

    Parameters
    ----------
    lines
        All of them, so that a rule has one look in every panel.
    papers
        Where the paper's figures are from; empty for the task that is shown.
    handles
        By label, of what is drawn.
    """

    lines: tuple[Line, ...]
    papers: str = ""
    handles: dict[str, Any] = field(default_factory=dict)

    @property
    def trainings(self) -> tuple[str, ...]:
        """All that they were trained on, where they differ in that."""
        return tuple(dict.fromkeys(line.trained for line in self.lines if line.trained))

    @property
    def paper(self) -> str:
        """What the paper's figures are called."""
        return f"the paper's figure{f', on {self.papers}' if self.papers else ''}"

    @property
    def labels(self) -> list[str]:
        """All that there may be."""
        return [*(label_of(line) for line in self.lines), self.paper]

    def entries(self) -> tuple[list[Any], list[str]]:
        """Give handles and labels, in the order of the lines."""
        shown = [label for label in self.labels if label in self.handles]
        return [self.handles[label] for label in shown], shown


class PanelDrawing:
    """Draws one panel.

    Parameters
    ----------
    axes
        Where it goes.
    table, measure
        What it shows.
    legend
        To which what is drawn is added.
    """

    def __init__(self, axes: Axes, table: Table, measure: str, legend: Legend) -> None:
        self._axes, self._table, self._measure, self._legend = axes, table, measure, legend
        self._lines = [line for line in legend.lines if line in table.lines]
        # An accuracy is far from 0, and bars begin there: points show more. But only bars can be
        # hatched.
        self._has_points = measure != "asr" and not legend.trainings

    def draw(self, *, as_bars: bool) -> tuple[float, float]:
        """Draw it, and say which range it needs; where there is no figure, say so."""
        columns = self._run([c for c in self._table.columns if as_bars or c is not None])
        as_bars = as_bars or len(columns) == 1  # there is nothing to draw a line to
        self._axes.grid(visible=True, axis="y", linewidth=0.4, color=_PALE)
        self._axes.set_axisbelow(True)
        if as_bars:
            self._draw_bars(columns)
        else:
            self._draw_lines([column for column in columns if column is not None])
        shown = self._ends(columns)
        if not shown:
            self._axes.text(
                *(0.5, 0.5, "not run yet"),
                ha="center",
                va="center",
                fontsize=8,
                color=_QUIET,
                transform=self._axes.transAxes,
            )
        is_whole = self._measure == "asr" or (as_bars and not self._has_points)
        if is_whole or not shown:
            return 0.0, 102.0
        if as_bars:
            paper = self._table.paper.items()
            shown += [f for (_, m, c), f in paper if m == self._measure and c in columns]
        low, high = max(0.0, min(shown)), min(100.0, max(shown))
        margin = max(0.5, 0.06 * (high - low))
        return low - margin, min(high + margin, 101.0)

    def _run(self, columns: Sequence[Column]) -> Sequence[Column]:
        """Leave out columns that have no figure, unless none has."""
        return [column for column in columns if self._ends([column])] or columns

    def _cell(self, line: Line, column: Column) -> Cell:
        return self._table.cell(line, self._measure, column)

    def _ends(self, columns: Sequence[Column]) -> list[float]:
        """Give both ends of all error bars."""
        cells = [self._cell(line, column) for line in self._lines for column in columns]
        known = [(cell.mean, cell.spread or 0.0) for cell in cells if cell.mean is not None]
        return [end for mean, spread in known for end in (mean - spread, mean + spread)]

    def _shift(self, place: int) -> float:
        """Give a line's place in a column, from −½ to ½."""
        return (place + 0.5) / len(self._lines) - 0.5

    # ---------------------------------------------------------------- lines

    def _draw_lines(self, columns: Sequence[int]) -> None:
        step = min((b - a for a, b in itertools.pairwise(columns)), default=1)
        for place, line in enumerate(self._lines):
            cells = [self._cell(line, column) for column in columns]
            if all(cell.mean is None for cell in cells):
                continue
            style = style_of(line, self._legend.trainings)
            shift = self._shift(place) * _DODGE * step
            drawn = self._axes.errorbar(
                [column + shift for column in columns],
                [math.nan if cell.mean is None else cell.mean for cell in cells],
                [cell.spread or 0 for cell in cells],
                color=style.colour,
                marker=style.marker,
                linestyle=style.dash,
                linewidth=style.width,
                markersize=7 if style.marker == "*" else 4.5,
                markeredgecolor="white",
                markeredgewidth=0.4,
                elinewidth=0.8,
                zorder=2 + style.width,
            )
            self._legend.handles.setdefault(label_of(line), drawn)
        self._axes.set_xticks(columns)

    # ---------------------------------------------------------------- bars

    def _draw_bars(self, columns: Sequence[Column]) -> None:
        width = _GROUP / max(len(self._lines), 1)
        for place, line in enumerate(self._lines):
            for number, column in enumerate(columns):
                x = number + _GROUP * self._shift(place)
                cell = self._cell(line, column)
                if cell.mean is not None:
                    self._draw_bar(line, x, cell.mean, cell.spread, width)
                paper = self._table.paper.get((line, self._measure, column))
                if paper is not None:
                    self._mark(x, paper, 0.46 * width)
        names = ["average" if column is None else str(column) for column in columns]
        self._axes.set_xticks(range(len(columns)), names)
        self._axes.set_xlim(-0.5, len(columns) - 0.5)

    def _draw_bar(
        self, line: Line, x: float, mean: float, spread: float | None, width: float
    ) -> None:
        style, label = style_of(line, self._legend.trainings), label_of(line)
        is_limit = line.rule == ORACLE  # hollow: it is no rule for real life
        if self._has_points:
            (point,) = self._axes.plot(
                *(x, mean),
                color=style.colour,
                marker=style.marker or "o",
                markerfacecolor="white" if is_limit else style.colour,
                markersize=5.5,
                linestyle="",
            )
            self._legend.handles.setdefault(label, point)
        else:
            bar = self._axes.bar(
                *(x, mean, width),
                color="white" if is_limit else style.colour,
                edgecolor="black" if is_limit else "white",
                linewidth=0.7 if is_limit else 0.4,
                hatch=style.hatch,
                zorder=2,
            )
            self._legend.handles[label] = bar  # says more than a point
        if spread is not None:
            self._axes.errorbar(
                *(x, mean, spread), ecolor="black", elinewidth=0.7, fmt="none", zorder=3
            )

    def _mark(self, x: float, value: float, half: float) -> None:
        """Mark the paper's figure: black with a white edge, to be seen on every colour."""
        ends, heights = [x - half, x + half], [value, value]
        self._axes.plot(ends, heights, color="white", linewidth=2.6, zorder=4)
        (mark,) = self._axes.plot(ends, heights, color="black", linewidth=1.3, zorder=5)
        self._legend.handles.setdefault(self._legend.paper, mark)
