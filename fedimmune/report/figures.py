"""The same pictures as PNG and PDF, for a paper."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedimmune.report.charts import BarChart, Bubbles, Chart, Grid, LineChart, Series
from fedimmune.report.contents import Contents, contents_of
from fedimmune.report.drawing import folder_for_figures, require_matplotlib, save_figure
from fedimmune.report.reading import read_runs
from fedimmune.report.svg_lines import ticks
from fedimmune.report.traits import Traits
from fedimmune.report.traits_drawn import draw_traits_in, figure_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_figures"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0588a", "#b97f00", "#2f8fc4")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1, 2)))
_MARKERS = "os^DvP"
_MARK, _DISC = "#c2410c", "#0072b2"
_SIGNS = {"reduced": "1", "suspected": "$/$", "rejected": "x", "failed": "|", "late": "_"}
_SLUG = re.compile(r"[^a-z0-9]+")


def write_figures(
    runs: Iterable[str | os.PathLike[str]], folder: str | os.PathLike[str]
) -> list[Path]:
    """Write every picture of a report as PNG and as PDF.

    Parameters
    ----------
    runs
        Run folders, or folders of run folders.
    folder
        Where they go; it is made where there is none.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    InputError
        Matplotlib is missing, a run does not exist or is damaged, or nothing can be written there.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415

    contents = contents_of(read_runs(runs))
    place = folder_for_figures(folder)
    written = []
    for name, chart in _named(contents):
        figure = Figure(figsize=_size(chart), layout="constrained")
        _draw(chart, figure.subplots())
        written.append(save_figure(figure, place / f"{name}.png", "png"))
        figure.set_layout_engine("none")  # it is laid out now: no need to do that again
        written.append(save_figure(figure, place / f"{name}.pdf", "pdf"))
    return written


def _named(contents: Contents) -> Iterator[tuple[str, Chart]]:
    """Give every picture a file's name of its own."""
    taken: set[str] = set()
    for name, chart in _all(contents):
        number, unique = 1, name
        while unique in taken:
            number += 1
            unique = f"{name}-{number}"
        taken.add(unique)
        yield unique, chart


def _all(contents: Contents) -> Iterator[tuple[str, Chart]]:
    for shown in contents.settings:
        for group in shown.groups:
            for chart in group.charts:
                what = chart.title if isinstance(chart, Grid | Traits) else chart.name
                yield _slug(f"{shown.setting.title} {what}"), chart
    for chart in contents.partitions.charts:
        yield "partition", chart
    for defence in contents.defences:
        if defence.curve is not None:
            yield _slug(f"{defence.name} curve"), defence.curve


def _slug(text: str) -> str:
    return _SLUG.sub("-", text.lower()).strip("-")[:80] or "figure"


def _size(chart: Chart) -> tuple[float, float]:
    match chart:
        case Grid():
            return 6.5, min(8.0, 1.2 + 0.16 * len(chart.rows))
        case Bubbles():
            side = min(0.3, 5.5 / max(len(chart.columns), 1))
            return 0.9 + side * len(chart.columns), 0.9 + side * len(chart.counts)
        case Traits():
            return figure_size(chart)
        case BarChart():
            return 4.5, 1.2 + 0.35 * len(chart.rows)
    return 4.5, 3.2


def _draw(chart: Chart, axes: Axes) -> None:
    match chart:
        case LineChart():
            _lines(chart, axes)
        case Grid():
            _grid(chart, axes)
        case Bubbles():
            _bubbles(chart, axes)
        case BarChart():
            _bars(chart, axes)
        case Traits():
            draw_traits_in(chart, axes)
    axes.set_title(_plain(chart.title), fontsize=9)
    axes.tick_params(labelsize=8)


def _plain(text: str) -> str:
    """Keep dollars from being taken for formulas, and leave out what no font has."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


# -------------------------------------------------------------------- kinds of pictures


def _lines(chart: LineChart, axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415

    for series in chart.series:
        _line(series, axes)
    if chart.level is not None:
        value, name = chart.level
        axes.axhline(value, color="grey", linestyle=":", linewidth=1, label=name)
    axes.set_ylim(0, (chart.top or 1.0) * 1.02)
    axes.set_xticks(ticks(chart.length))
    if chart.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(chart.along, fontsize=8)
    axes.grid(visible=True, axis="y", linewidth=0.4)
    _legend(axes, columns=3)


def _line(series: Series, axes: Axes) -> None:
    rounds = range(1, len(series.values) + 1)
    limit = series.style < 0
    colour = "black" if limit else _COLOURS[series.style % len(_COLOURS)]
    shift = series.style + series.style // len(_COLOURS)
    axes.plot(
        rounds,
        _gaps(series.values),
        color=colour,
        linestyle="--" if limit else _DASHES[shift % len(_DASHES)],
        marker=None if limit else _MARKERS[series.style % len(_MARKERS)],
        markevery=max(1, math.ceil(len(series.values) / 8)),
        markersize=4,
        linewidth=1.4,
        label=_plain(series.label),
    )
    if series.low is not None and series.high is not None:
        axes.fill_between(
            rounds, _gaps(series.low), _gaps(series.high), color=colour, alpha=0.15, linewidth=0
        )


def _gaps(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _grid(chart: Grid, axes: Axes) -> None:
    shades = [
        [math.nan if cell is None else cell.value or 0.0 for cell in row.cells]
        for row in chart.rows
    ]
    edge = 0.4 if len(chart.rows) * len(chart.columns) < 2000 else 0.0
    across, down = range(len(chart.columns)), range(len(chart.rows))
    image = axes.pcolormesh(
        *(across, down, shades),
        cmap="Blues",
        vmin=0,
        vmax=chart.top,
        edgecolors="white",
        linewidth=edge,
    )
    axes.invert_yaxis()
    axes.set_facecolor("0.88")  # who took no part
    axes.figure.colorbar(image, ax=axes, label="weight" if chart.is_share else "samples")
    _signs(chart, axes)
    shown_rows = chart.rows[:: max(1, len(chart.rows) // 25)]
    labels = [f"{'▲ ' if row.marked else ''}{_plain(row.label)}" for row in shown_rows]
    axes.set_yticks(list(down)[:: max(1, len(chart.rows) // 25)], labels)
    for row, label in zip(shown_rows, axes.get_yticklabels(), strict=True):
        if row.marked:
            label.set_color(_MARK)
    shown = [n - 1 for n in ticks(len(chart.columns))]
    axes.set_xticks(shown, [_plain(chart.columns[i].label) for i in shown])
    axes.set_xlabel(chart.column_word, fontsize=8)
    axes.set_ylabel(chart.row_word, fontsize=8)


def _signs(chart: Grid, axes: Axes) -> None:
    for verdict, marker in _SIGNS.items():
        places = [
            (i, j)
            for j, row in enumerate(chart.rows)
            for i, cell in enumerate(row.cells)
            if cell is not None and cell.verdict == verdict
        ]
        if places:
            x, y = zip(*places, strict=True)
            axes.scatter(x, y, marker=marker, s=10, color="black", linewidths=0.5)


def _bubbles(chart: Bubbles, axes: Axes) -> None:
    from matplotlib.patches import Circle  # noqa: PLC0415

    most = max((max(row) for row in chart.counts if row), default=0) or 1
    for k, row in enumerate(chart.counts):
        for i, (count, column) in enumerate(zip(row, chart.columns, strict=True)):
            radius = 0.5 * math.sqrt(count / most)
            axes.add_patch(Circle((i, k), radius, color=_MARK if column.marked else _DISC))
    axes.set_xlim(-0.6, len(chart.columns) - 0.4)
    axes.set_ylim(-0.6, len(chart.counts) - 0.4)
    axes.set_aspect("equal")
    labels = [f"{column.label}{'▲' if column.marked else ''}" for column in chart.columns]
    every = max(1, len(labels) // 15)
    axes.set_xticks(range(0, len(labels), every), [_plain(label) for label in labels[::every]])
    axes.set_yticks(range(0, len(chart.counts), max(1, len(chart.counts) // 15)))
    axes.set_xlabel("client", fontsize=8)
    axes.set_ylabel("class", fontsize=8)


def _bars(chart: BarChart, axes: Axes) -> None:
    labels = [_plain(label) for label, _ in chart.rows]
    colours = (_COLOURS[0], _COLOURS[4], _COLOURS[3], _COLOURS[2])
    left = [0.0] * len(labels)
    for k, part in enumerate(chart.parts):
        widths = [values[k] for _, values in chart.rows]
        axes.barh(range(len(labels)), widths, left=left, label=part, color=colours[k % 4])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(f"{chart.unit} a round", fontsize=8)
    _legend(axes, columns=4)


def _legend(axes: Axes, columns: int) -> None:
    """Name lines below the picture, where none can be hidden."""
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.legend(loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
