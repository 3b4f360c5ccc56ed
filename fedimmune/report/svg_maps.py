"""Grids, bubbles and bars as HTML and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from fedimmune.report.charts import BarChart, Bubbles, Cell, Column, Grid, Row
from fedimmune.report.svg import element, joined, number, packed, picture, rounded
from fedimmune.report.svg_lines import ticks
from fedimmune.report.words import shortened

__all__ = ["draw_bars", "draw_bubbles", "draw_grid"]

_LEVELS = 20
"""So many shades: cells of one shade are one path, which keeps large maps small."""
_MANY_NOTES = 400
_BLANK = -1
_SHORT_NAME, _LONG_NAME = 3, 40
_MARK = "▲"
_SIGNS = {
    "reduced": "M{x},{y}m.3,.4l.2,.2l.2,-.2",
    "suspected": "M{x},{y}m.2,.8l.6,-.6",
    "rejected": "M{x},{y}m.2,.2l.6,.6m0,-.6l-.6,.6",
    "failed": "M{x},{y}m.5,.2v.6",
    "late": "M{x},{y}m.2,.5h.6",
}
_KEY = {"reduced": "⌄", "suspected": "╱", "rejected": "╳", "failed": "│", "late": "─"}
_WIDTH = 400


def draw_grid(grid: Grid) -> Markup:
    """Draw a grid. Labels are text beside a picture that stretches, so that they stay readable."""
    height = _row_height(len(grid.rows))
    drawn = picture(
        grid.title,
        grid.reading,
        *_shades(grid),
        *_signs(grid.rows),
        class_="cells",
        viewBox=f"0 0 {len(grid.columns)} {len(grid.rows)}",
        preserveAspectRatio="none",
        style=f"height:{height * len(grid.rows)}px",
        data_grid=packed(_hover_data(grid)),
    )
    labels = element(
        "div", *_row_labels(grid.rows, height), class_="row-labels", aria_hidden="true"
    )
    return joined(
        element("div", labels, drawn, _column_labels(grid.columns, grid.column_word), class_="map"),
        _key(grid),
    )


def draw_bubbles(bubbles: Bubbles) -> Markup:
    """Draw a disc for each class and client, as large as the number of samples."""
    columns, classes = len(bubbles.columns), len(bubbles.counts)
    # Long names are written upwards.
    left, named = 46, max((len(c.label) for c in bubbles.columns), default=0) > _SHORT_NAME
    longest = min(_LONG_NAME, max((len(c.label) for c in bubbles.columns), default=0))
    bottom = 40 + 7 * longest if named else 44
    cell = min(34.0, (_WIDTH - left - 6) / max(columns, 1))
    height = cell * classes
    most = max((max(row) for row in bubbles.counts if row), default=0) or 1
    parts = []
    for k, row in enumerate(bubbles.counts):
        y = height - (k + 0.5) * cell
        if classes <= 12 or k % math.ceil(classes / 12) == 0:
            parts.append(
                element("text", str(k), x=left - 8, y=number(y), dy="0.35em", text_anchor="end")
            )
        for i, (count, column) in enumerate(zip(row, bubbles.columns, strict=True)):
            x, radius = left + (i + 0.5) * cell, 0.5 * cell * math.sqrt(count / most)
            tip = f"{_name(column, 'client', bubbles.mark_word)}, class {k}: {count}"
            parts.append(_disc(x, y, radius, cell, tip, column.marked))
    parts += _client_labels(bubbles.columns, left, cell, height, upwards=named)
    middle = number(left + cell * columns / 2)
    parts += [
        element("text", "client", x=middle, y=number(height + bottom - 6), text_anchor="middle"),
        element(
            "text",
            "class",
            transform=f"translate(12,{number(height / 2)}) rotate(-90)",
            text_anchor="middle",
        ),
    ]
    drawn = picture(
        bubbles.title,
        bubbles.reading,
        *parts,
        class_="bubbles axes",
        viewBox=f"0 0 {_WIDTH} {number(height + bottom)}",
    )
    key = [(f"largest: {most} samples", "round")]
    if any(column.marked for column in bubbles.columns):
        key = [(f"{_MARK} {bubbles.mark_word}", "marked"), ("honest", "plain"), *key]
    return joined(drawn, _swatches(key))


def draw_bars(chart: BarChart) -> Markup:
    """Draw bars of several parts."""
    top = max((sum(values) for _, values in chart.rows), default=0) or 1
    parts, row_height = [], 40
    for i, (label, values) in enumerate(chart.rows):
        y, x = i * row_height, 0.0
        total = f"{sum(values):.3g} {chart.unit}"
        parts.append(element("text", label, x=0, y=y + 14))
        parts.append(element("text", total, x=_WIDTH, y=y + 14, text_anchor="end"))
        for k, (part, value) in enumerate(zip(chart.parts, values, strict=True)):
            width = value / top * _WIDTH
            tip = f"{label}, {part}: {value:.3g} {chart.unit}"
            bar = {"x": number(x), "y": y + 20, "width": number(width), "height": 14}
            parts.append(element("rect", class_=f"bar p{k}", data_tip=tip, **bar))
            x += width
    drawn = picture(
        chart.title,
        chart.reading,
        *parts,
        class_="bars axes",
        viewBox=f"0 0 {_WIDTH} {row_height * len(chart.rows)}",
    )
    return joined(drawn, _swatches([(part, f"p{k}") for k, part in enumerate(chart.parts)]))


# -------------------------------------------------------------------- grids


def _row_height(rows: int) -> int:
    return 22 if rows <= 16 else max(2, min(16, 640 // rows))


def _shades(grid: Grid) -> list[Markup]:
    """Draw cells shade by shade, over one another as opacity of one colour."""
    by_shade: dict[int, list[str]] = {}
    present = []
    for j, row in enumerate(grid.rows):
        for i, cell in enumerate(row.cells):
            if cell is None:
                continue
            square = f"M{i},{j}h1v1h-1z"
            present.append(square)
            share = min(max((cell.value or 0) / grid.top, 0.0), 1.0)
            shade = math.ceil(share * _LEVELS)  # what has any weight shows some colour
            if shade:
                by_shade.setdefault(shade, []).append(square)
    shades = [element("path", class_="present", d="".join(present))]
    for shade, cells in sorted(by_shade.items()):
        shades.append(
            element("path", class_="shade", opacity=number(shade / _LEVELS), d="".join(cells))
        )
    marked = "".join(
        f"M{i},{len(grid.rows)}v-.3h1v.3z" for i, c in enumerate(grid.columns) if c.marked
    )
    return [*shades, element("path", class_="marked", d=marked)] if marked else shades


def _signs(rows: Sequence[Row]) -> list[Markup]:
    """Draw what is held against a client: by shape, not by colour."""
    found: dict[str, list[str]] = {}
    for j, row in enumerate(rows):
        for i, cell in enumerate(row.cells):
            if cell is not None and cell.verdict in _SIGNS:
                found.setdefault(cell.verdict, []).append(_SIGNS[cell.verdict].format(x=i, y=j))
    return [
        element("path", class_=f"sign {verdict}", d="".join(shapes))
        for verdict, shapes in sorted(found.items())
    ]


def _row_labels(rows: Sequence[Row], height: int) -> list[Markup]:
    every = max(1, math.ceil(13 / height))
    labels = []
    for j, row in enumerate(rows):
        mark = element("b", _MARK, class_="mark") if row.marked and height >= 8 else Markup("")
        text = row.label if j % every == 0 else ""
        style = f"height:{height}px;line-height:{height}px"
        labels.append(element("span", mark, text, style=style, title=row.label))
    return labels


def _column_labels(columns: Sequence[Column], word: str) -> Markup:
    count = len(columns)
    shown = [
        element("span", columns[n - 1].label, style=f"left:{number(100 * (n - 0.5) / count)}%")
        for n in ticks(count)
    ]
    return element("div", *shown, element("i", word), class_="column-labels", aria_hidden="true")


def _key(grid: Grid) -> Markup:
    top = f"{grid.top:.1%}" if grid.is_share else f"{grid.top:.0f} samples"
    scale = element("li", "0", element("i", class_="ramp"), top)
    verdicts = {cell.verdict for row in grid.rows for cell in row.cells if cell is not None}
    signs = [
        element("li", element("i", sign, class_="glyph"), verdict)
        for verdict, sign in _KEY.items()
        if verdict in verdicts
    ]
    marked = any(row.marked for row in grid.rows) or any(c.marked for c in grid.columns)
    if grid.mark_word and marked:
        signs.append(element("li", element("b", _MARK, class_="mark"), grid.mark_word))
    return element("ul", scale, *signs, class_="legend")


def _hover_data(grid: Grid) -> dict[str, object]:
    """Pack what hovering tells; equal notes once."""
    notes: dict[str, int] = {}

    def place_of(cell: Cell | None) -> int:
        if cell is None:
            return _BLANK
        # Reasons are anybody's words: they must not make the page large.
        note = cell.note if cell.note in notes or len(notes) < _MANY_NOTES else cell.verdict
        return notes.setdefault(note, len(notes))

    cells = [[place_of(cell) for cell in row.cells] for row in grid.rows]
    return {
        "rows": [_name(row, grid.row_word, grid.mark_word) for row in grid.rows],
        "columns": [_name(column, grid.column_word, grid.mark_word) for column in grid.columns],
        "warnings": {i: column.note for i, column in enumerate(grid.columns) if column.note},
        "share": grid.is_share,
        "values": [
            [rounded(cell.value if cell else None) for cell in row.cells] for row in grid.rows
        ],
        "notes": list(notes),
        "cells": cells,
    }


def _name(one: Row | Column, word: str, mark_word: str) -> str:
    return f"{word} {one.label}" + (_said(one, mark_word) if word == "client" else "")


def _said(one: Row | Column, mark_word: str) -> str:
    if not mark_word:
        return ""
    return f" ({mark_word})" if one.marked else " (honest)"


# -------------------------------------------------------------------- bubbles


def _disc(x: float, y: float, radius: float, cell: float, tip: str, marked: bool) -> Markup:
    half = cell / 2
    where = {"x": number(x - half), "y": number(y - half), "width": number(cell)}
    return element(
        "g",
        element("rect", class_="target", height=number(cell), **where),
        element("circle", cx=number(x), cy=number(y), r=number(radius)),
        class_="disc marked" if marked else "disc",
        data_tip=tip,
    )


def _client_labels(
    columns: Sequence[Column], left: float, cell: float, height: float, *, upwards: bool
) -> list[Markup]:
    labels = []
    every = max(1, math.ceil((12 if upwards else 18) / cell))
    for i, column in enumerate(columns):
        x = number(left + (i + 0.5) * cell)
        if i % every == 0 and upwards:
            turn = f"translate({x},{number(height + 18)}) rotate(-90)"
            aim = {"transform": turn, "dy": "0.35em", "text_anchor": "end"}
            labels.append(element("text", shortened(column.label, _LONG_NAME), **aim))
        elif i % every == 0:
            below = {"x": x, "y": number(height + 14), "text_anchor": "middle"}
            labels.append(element("text", column.label, **below))
        if column.marked:
            y = number(height + (14 if upwards else 26))
            mark = {"x": x, "y": y, "text_anchor": "middle"}
            labels.append(element("text", _MARK, class_="mark", **mark))
    return labels


def _swatches(entries: Sequence[tuple[str, str]]) -> Markup:
    return element(
        "ul",
        *(element("li", element("i", class_=f"swatch {kind}"), text) for text, kind in entries),
        class_="legend",
    )
