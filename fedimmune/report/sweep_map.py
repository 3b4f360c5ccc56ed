"""What a search of settings came to, as a heat map: one SVG file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fedimmune.adaptive.outcomes import Outcome, best_of
from fedimmune.report.charts import Cell, Column, Grid, Row
from fedimmune.report.svg import element, number, picture
from fedimmune.report.words import percent, shortened

__all__ = ["draw_sweep", "sweep_grid"]

_CHOSEN = "chosen"
_USUAL = ("c", "eps")
_LABEL = 12
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 84, 44, 92, 64, 82, 24
_LOW, _HIGH = (236, 239, 242), (0, 114, 178)
"""The report's colours of nothing and of the most, so that maps look alike."""
_INK, _PAPER = (27, 31, 35), (255, 255, 255)
_INKS = ((0, 0, 0), _PAPER)
"""For values in cells: on any colour one of these two has the contrast that text needs."""


def sweep_grid(searched: Mapping[str, Any]) -> Grid:
    """Describe the picture: the accuracy by c and eps, or by the first two settings with a choice.

    Where other settings were searched too, a cell has the best over them.

    Parameters
    ----------
    searched
        As a defence keeps it, see `fedimmune.adaptive.outcomes.described_search`.
    """
    outcomes = [Outcome.model_validate(point) for point in searched["points"]]
    across, down = _axes(searched["grid"])
    others = [name for name in searched["grid"] if name not in (across, down)]
    chosen = best_of(outcomes)
    rows = []
    for y in searched["grid"].get(down, [None]):
        cells = []
        for x in searched["grid"][across]:
            here = [one for one in outcomes if _lies_at(one, {across: x, down: y})]
            best = best_of(here)
            verdict = _CHOSEN if any(one is chosen for one in here) else ""
            cells.append(Cell(best.accuracy, verdict, _told(best)))
        rows.append(Row("" if y is None else written(y), tuple(cells)))
    over = f", the best over {' and '.join(others)}" if others else ""
    by = f"{across} and {down}" if down else across
    return Grid(
        name="sweep",
        title=f"Accuracy on rehearsals kept apart, by {by}{over}",
        reading=f"Chosen: {_told(chosen)}.",
        rows=tuple(rows),
        columns=tuple(Column(written(x)) for x in searched["grid"][across]),
        row_word=down,
        column_word=across,
        top=chosen.accuracy,
        is_share=True,
    )


def draw_sweep(grid: Grid) -> Markup:
    """Draw a grid with its values written in the cells, as a file of its own."""
    values = [value for row in grid.rows for value in row.values if value is not None]
    low, high = min(values), max(values)
    across, down = _WIDTH * len(grid.columns), _HEIGHT * len(grid.rows)
    # As wide as its words need, about 7 units a letter.
    width = max(_LEFT + across + _RIGHT, 7 * max(len(grid.title), len(grid.reading)) + 24)
    height = _TOP + down + _BOTTOM
    parts = [
        element("rect", width=width, height=height, fill=_colour(_PAPER)),
        element("text", grid.title, x=12, y=24, font_size=15, font_weight="bold"),
        element("text", grid.row_word, x=_LEFT - 10, y=_TOP - 8, text_anchor="end"),
    ]
    chosen = []
    for j, row in enumerate(grid.rows):
        y = _TOP + j * _HEIGHT
        label = {"x": _LEFT - 10, "y": y + _HEIGHT / 2, "dy": "0.35em", "text_anchor": "end"}
        parts.append(element("text", shortened(row.label, _LABEL), **label))
        for i, cell in enumerate(row.cells):
            if cell is None or cell.value is None:
                continue
            x, share = _LEFT + i * _WIDTH, (cell.value - low) / (high - low) if high > low else 1.0
            parts.append(_drawn(cell, cell.value, x, y, share))
            if cell.verdict == _CHOSEN:
                chosen.append(_frame(x, y))
    for i, column in enumerate(grid.columns):
        label = {"x": _LEFT + (i + 0.5) * _WIDTH, "y": _TOP + down + 18, "text_anchor": "middle"}
        parts.append(element("text", shortened(column.label, _LABEL), **label))
    middle = {"x": _LEFT + across / 2, "y": _TOP + down + 38, "text_anchor": "middle"}
    parts += [
        *chosen,  # over its neighbours
        element("text", grid.column_word, **middle),
        element("text", grid.reading, x=12, y=height - 14),
    ]
    return picture(
        grid.title,
        grid.reading,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        font_family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif",
        font_size=13,
        fill=_colour(_INK),
    )


def written(value: object) -> str:
    """Write a setting's value as one gives it."""
    return value if isinstance(value, str) else json.dumps(value)


def _axes(grid: Mapping[str, Sequence[Any]]) -> tuple[str, str]:
    """Say what goes across and what down; the latter may be nothing."""
    if all(name in grid for name in _USUAL):
        return _USUAL
    varied = sorted(grid, key=lambda name: len(grid[name]) < 2)  # those with a choice first
    return (varied[0], varied[1]) if len(varied) > 1 else (varied[0], "")


def _lies_at(one: Outcome, place: Mapping[str, Any]) -> bool:
    # As text: True is not 1 here.
    return all(
        written(one.settings[name]) == written(value) for name, value in place.items() if name
    )


def _told(one: Outcome) -> str:
    settings = ", ".join(f"{name} = {written(value)}" for name, value in one.settings.items())
    weight = one.attacker_weight
    on_attackers = "" if weight is None else f", weight on attackers {percent(weight)}"
    return (
        f"{settings}: accuracy {percent(one.accuracy)}, just the honest {percent(one.exact)}"
        f"{on_attackers}"
    )


def _drawn(cell: Cell, value: float, x: float, y: float, share: float) -> Markup:
    fill = tuple(round(a + share * (b - a)) for a, b in zip(_LOW, _HIGH, strict=True))
    ink = max(_INKS, key=lambda ink: _contrast(ink, fill))
    place = {"x": x, "y": y, "width": _WIDTH, "height": _HEIGHT}
    return element(
        "g",
        element("title", cell.reason),
        element("rect", **place, fill=_colour(fill), stroke=_colour(_PAPER), stroke_width=2),
        element(
            "text",
            percent(value),
            x=x + _WIDTH / 2,
            y=y + _HEIGHT / 2,
            dy="0.35em",
            text_anchor="middle",
            fill=_colour(ink),
            font_weight="bold" if cell.verdict else None,
        ),
    )


def _frame(x: float, y: float) -> Markup:
    inner = {"x": number(x + 1.5), "y": number(y + 1.5), "width": _WIDTH - 3, "height": _HEIGHT - 3}
    return element("rect", **inner, fill="none", stroke="#c2410c", stroke_width=3)


def _colour(rgb: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in rgb)


def _contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The ratio of luminances that WCAG asks to be 4.5 for text."""
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(rgb: tuple[int, ...]) -> float:
    parts = [part / 255 for part in rgb]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
