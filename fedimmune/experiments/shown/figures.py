"""An artefact's pictures, in the layout of the paper's: PNG to look at, PDF to print."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from fedimmune.experiments.rows import Row
from fedimmune.experiments.shown.captions import counted
from fedimmune.experiments.shown.defence_figures import (
    draw_sweep,
    draw_synthetic_sheet,
    draw_traits_of,
)
from fedimmune.experiments.shown.laid_out import Layout, Table
from fedimmune.experiments.shown.laying_out import lay_out
from fedimmune.experiments.shown.naming import attack_name, measure_name, sorted_lines, task_name
from fedimmune.experiments.shown.panels import Legend, PanelDrawing
from fedimmune.experiments.shown.partition_figure import draw_partition
from fedimmune.experiments.shown.published import Published
from fedimmune.experiments.shown.saving import save_both
from fedimmune.experiments.shown.styles import printable
from fedimmune.report.drawing import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "draw_partition", "draw_sweep", "draw_synthetic_sheet", "draw_traits_of"]

_ABREAST = 3
"""So many panels are side by side at most, where they are no grid."""
_WIDTH, _HEIGHT, _LEAST_WIDTH = 2.7, 2.3, 5.0
_BARS_WIDTH, _BARS_HEIGHT = 7.2, 1.75
"""Inches: of a panel, and of a picture's width."""
_LETTERS, _SPACE = 7, 1.4
"""Of the legend: their size in points, and between columns in such sizes."""

_Panel = tuple[Table, str]
"""A table and a measure."""


def draw(
    layout: Layout,
    rows: Sequence[Row],
    published: Sequence[Published],
    stem: Path,
) -> list[Path]:
    """Draw an artefact's pictures.

    Parameters
    ----------
    layout
        What they look like.
    rows
        What is finished; what is not is left out of the picture.
    published
        The paper's figures, which bars have beside them.
    stem
        Where they go, but for the ending. What an attack's parameter does in detail has a picture
        of its own, with the parameter's name added.

    Returns
    -------
    list of Path
        PNG and PDF of each picture, ``stem.png`` and ``stem.pdf`` first.

    Raises
    ------
    InputError
        Matplotlib is missing, or nothing can be written there.
    """
    require_matplotlib()
    tables = lay_out(layout, rows, published)
    by_attackers = [table for table in tables if table.attackers is None]
    if any(table.varied for table in by_attackers):
        grid = _compared(layout, by_attackers)
    else:
        grid = _wrapped([(table, m) for table in by_attackers for m in table.measures])
    written = save_both(_drawn(layout, grid), stem)
    for varied in dict.fromkeys(table.varied for table in tables if table.attackers is not None):
        details = [t for t in tables if t.varied == varied and t.attackers is not None]
        figure = _drawn(layout, _compared(layout, details))
        written += save_both(figure, stem.with_name(f"{stem.name}-{quote(varied, safe='')}"))
    return written


def _compared(layout: Layout, tables: Sequence[Table]) -> list[list[_Panel]]:
    """Put a task's tables side by side, a measure below the other, one task after the other."""
    tasks = dict.fromkeys(table.task for table in tables)
    return [
        [(table, m) for table in tables if table.task == task]
        for task in tasks
        for m in layout.measures
    ]


def _wrapped(panels: Sequence[_Panel]) -> list[list[_Panel]]:
    rows = math.ceil(len(panels) / _ABREAST)
    each = math.ceil(len(panels) / rows) if rows else 0
    return [list(panels[i : i + each]) for i in range(0, len(panels), each or 1)]


def _drawn(layout: Layout, grid: Sequence[Sequence[_Panel]]) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    as_bars = layout.figure == "bars"
    if as_bars:  # groups of many bars need the whole width
        grid = [[panel] for row in grid for panel in row]
    across, down = max((len(row) for row in grid), default=1), max(len(grid), 1)
    lines = sorted_lines({line for row in grid for table, _ in row for line in table.lines})
    width = _BARS_WIDTH if as_bars else max(_LEAST_WIDTH, 0.4 + _WIDTH * across)
    elsewhere = {t.paper_task for row in grid for t, _ in row if t.task and t.paper} - {
        t.task for row in grid for t, _ in row
    }
    drawn = Legend(tuple(lines), ", ".join(task_name(task) for task in sorted(elsewhere)))
    columns = _legend_columns(drawn.labels, width)
    legend = 0.2 * math.ceil(len(drawn.labels) / columns) + 0.2
    height = (_BARS_HEIGHT if as_bars else _HEIGHT) * down + legend
    figure = Figure(figsize=(width, height), layout="constrained")
    # What stands side by side in a grid is to be compared.
    shared = any(table.varied for row in grid for table, _ in row)
    tasks = {table.task for row in grid for table, _ in row}
    axes = figure.subplots(down, across, squeeze=False, sharey="row" if shared else False)
    for i, j in itertools.product(range(down), range(across)):
        if i < len(grid) and j < len(grid[i]):
            table, measure = grid[i][j]
            low, high = PanelDrawing(axes[i][j], table, measure, drawn).draw(as_bars=as_bars)
            if shared and j:  # these axes are those of all in the row
                before = axes[i][0].get_ylim()
                low, high = min(low, before[0]), max(high, before[1])
            axes[i][j].set_ylim(low, high)
            _entitle(axes[i][j], table, measure, of_task=shared and len(tasks) > 1)
            if shared or as_bars:
                axes[i][j].label_outer()
            if shared and i and table.task == grid[i - 1][0][0].task:
                axes[i][j].set_title("")
        else:
            axes[i][j].set_visible(False)
    if drawn.handles:
        figure.legend(
            *drawn.entries(),
            loc="outside lower center",
            ncols=columns,
            columnspacing=_SPACE,
            fontsize=_LETTERS,
            frameon=False,
        )
    return figure


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Say how many columns of names, as matplotlib parts them, go abreast within some inches."""
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415
    from matplotlib.textpath import text_to_path  # noqa: PLC0415

    font = FontProperties(size=_LETTERS)
    widths = [text_to_path.get_text_width_height_descent(text, font, False)[0] for text in labels]
    for columns in range(min(5, len(labels)), 1, -1):
        each, longer = divmod(len(labels), columns)
        ends = list(itertools.accumulate([each + 1] * longer + [each] * (columns - longer)))
        parts = [widths[start:end] for start, end in itertools.pairwise([0, *ends])]
        # In letters' sizes: the handle is 2 wide and 0.8 from its name.
        total = sum(max(part) for part in parts) + _LETTERS * (2.8 + _SPACE) * columns
        if total <= 72 * width:
            return columns
    return 1


def _entitle(axes: Axes, table: Table, measure: str, *, of_task: bool) -> None:
    if table.attackers is not None:
        title = f"{table.varied} varied, {counted(table.attackers, 'attacker')}"
    elif table.varied:
        title = f"average over {table.varied}"
    else:
        title = ", ".join(filter(None, (task_name(table.task), attack_name(table.attack))))
    if of_task:
        title = f"{task_name(table.task)}, {title}"
    of_all = f"attackers of {counted(table.clients, 'client')}"
    axes.set_title(printable(title), fontsize=8)
    axes.set_xlabel(printable(table.varied) if table.attackers is not None else of_all, fontsize=8)
    axes.set_ylabel(f"{printable(measure_name(measure))} (%)", fontsize=8)
    axes.tick_params(labelsize=7)
