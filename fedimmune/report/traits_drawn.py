"""The traits of an attack, drawn: as SVG for the page, and by matplotlib for a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedimmune.report.charts import Column
from fedimmune.report.svg import element, joined, number, packed, picture
from fedimmune.report.traits import Panel, Traits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_traits", "draw_traits_in", "figure_size"]

_LEVELS = 8
"""Shades a sign: cells of one shade are one path, and neighbours of one shade one stroke."""
_GAP = 0.12
"""Between tiles, in tiles."""
_MARK = "▲"
_NEGATIVE, _POSITIVE, _MARKED = "#d55e00", "#0072b2", "#c2410c"


def draw_traits(chart: Traits) -> Markup:
    """Draw the panels side by side, labels as text around them."""
    panels = [_panel(chart, panel) for panel in chart.panels]
    return joined(element("div", *panels, class_="panels"), _key(chart))


def _panel(chart: Traits, panel: Panel) -> Markup:
    rounds, clients, height, width = panel.values.shape
    pitch = (height * (1 + _GAP), width * (1 + _GAP))
    drawn = picture(
        f"{chart.title}, {panel.label}",
        chart.reading,
        *_tiles(panel.values, chart.top, pitch),
        class_="tiles",
        viewBox=f"0 0 {number(clients * pitch[1])} {number(rounds * pitch[0])}",
        preserveAspectRatio="none",
        style=f"aspect-ratio:{clients}/{rounds}",
        data_grid=packed(_hover_data(chart, panel)),
    )
    names = element("div", *(element("span", str(n)) for n in panel.rounds), class_="tile-rows")
    below = element("div", *(_client(column) for column in panel.clients), class_="tile-columns")
    return element("div", element("h5", panel.label), names, drawn, below, class_="panel")


def _client(column: Column) -> Markup:
    mark = element("b", _MARK, class_="mark") if column.marked else Markup("")
    return element("span", column.label, mark)


def _tiles(values: NDArray[np.float64], top: float, pitch: tuple[float, float]) -> list[Markup]:
    """Draw grounds, then strokes of one cell's width, shade by shade."""
    rounds, clients, height, width = values.shape
    shades = np.clip(np.nan_to_num(np.round(_LEVELS * values / top)), -_LEVELS, _LEVELS).astype(int)
    grounds: list[str] = []
    strokes: dict[int, list[str]] = {}
    for r in range(rounds):
        for c in range(clients):
            if not np.isfinite(values[r, c]).any():
                continue
            x, y = c * pitch[1], r * pitch[0]
            grounds.append(f"M{number(x)},{number(y)}h{width}v{height}h-{width}z")
            for row in range(height):
                _strokes(shades[r, c, row], x, y + row + 0.5, strokes)
    return [
        element("path", class_="ground", d="".join(grounds)),
        *(
            element(
                "path",
                class_="more" if shade > 0 else "less",
                opacity=number(abs(shade) / _LEVELS),
                d="".join(parts),
            )
            for shade, parts in sorted(strokes.items())
        ),
    ]


def _strokes(shades: NDArray[np.int_], x: float, y: float, strokes: dict[int, list[str]]) -> None:
    """Add a row's cells, equal neighbours as one stroke."""
    ends = np.flatnonzero(np.diff(shades, append=shades[-1:] + 1))
    start = 0
    for end in ends.tolist():
        shade = int(shades[start])
        if shade:
            where = f"M{number(x + start)},{number(y)}h{end + 1 - start}"
            strokes.setdefault(shade, []).append(where)
        start = end + 1


def _hover_data(chart: Traits, panel: Panel) -> dict[str, object]:
    def named(column: Column) -> str:
        if not chart.mark_word:
            return f"client {column.label}"
        return f"client {column.label} ({chart.mark_word if column.marked else 'honest'})"

    sent = np.isfinite(panel.values).any((2, 3))
    return {
        "rows": [f"round {n}" for n in panel.rounds],
        "columns": [named(column) for column in panel.clients],
        "share": False,
        "values": [[None] * len(panel.clients) for _ in panel.rounds],
        "notes": [panel.label],
        "cells": np.where(sent, 0, -1).tolist(),
    }


def _key(chart: Traits) -> Markup:
    ramp = element("i", class_="ramp both")
    entries = [element("li", f"−{chart.top:.2g}", ramp, f"+{chart.top:.2g}")]
    if chart.mark_word and any(c.marked for panel in chart.panels for c in panel.clients):
        entries.append(element("li", element("b", _MARK, class_="mark"), chart.mark_word))
    return element("ul", *entries, class_="legend")


# -------------------------------------------------------------------- for a paper


def figure_size(chart: Traits) -> tuple[float, float]:
    """Inches, (width, height)."""
    tiles = sum(len(panel.clients) + 1 for panel in chart.panels)
    side = min(0.45, 7.0 / tiles)
    return 1.6 + side * tiles, 1.5 + side * max(len(panel.rounds) for panel in chart.panels)


def draw_traits_in(chart: Traits, axes: Axes) -> None:
    """Draw all panels beside each other into one pair of axes, in units of tiles."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize  # noqa: PLC0415

    colours = LinearSegmentedColormap.from_list("traits", [_NEGATIVE, "white", _POSITIVE])
    scale = Normalize(-chart.top, chart.top)
    left, image = 0.0, None
    places: list[float] = []
    labels: list[Column] = []
    for panel in chart.panels:
        rounds, clients = panel.values.shape[:2]
        for r in range(rounds):
            for c in range(clients):
                box = (left + c, left + c + 1 - _GAP, r + 1 - _GAP, r)
                image = axes.imshow(
                    panel.values[r, c],
                    extent=box,
                    cmap=colours,
                    norm=scale,
                    interpolation="nearest",
                    aspect="auto",
                )
        places += [left + c + (1 - _GAP) / 2 for c in range(clients)]
        labels += panel.clients
        title = _printable(panel.label)
        middle = left + (clients - _GAP) / 2
        axes.text(*(middle, -0.15, title), ha="center", va="bottom", fontsize=8, parse_math=False)
        left += clients + 1
    rounds = chart.panels[0].rounds
    axes.set_xlim(-_GAP, left - 1)
    axes.set_ylim(len(rounds), -0.6)
    axes.set_aspect("equal")
    axes.set_xticks(places, [_named(one) for one in labels])
    for one, label in zip(labels, axes.get_xticklabels(), strict=True):
        label.set_parse_math(False)
        if one.marked:
            label.set_color(_MARKED)
    axes.set_yticks([r + (1 - _GAP) / 2 for r in range(len(rounds))], [str(n) for n in rounds])
    axes.set_xlabel("client", fontsize=8)
    axes.set_ylabel("round", fontsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if image is not None:
        axes.figure.colorbar(image, ax=axes, shrink=0.6).ax.tick_params(labelsize=8)


def _named(column: Column) -> str:
    return f"{_printable(column.label)}\n{_MARK if column.marked else ''}"


def _printable(text: str) -> str:
    """Leave out what no font has: names are anybody's words."""
    return "".join(c if c.isprintable() else "?" for c in text)
