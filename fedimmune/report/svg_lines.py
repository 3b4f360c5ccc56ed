"""Line charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from fedimmune.report.charts import LineChart, Series, Values
from fedimmune.report.svg import element, joined, number, packed, picture, rounded

__all__ = ["COLOURS", "DASHES", "draw_lines", "ticks", "value_ticks"]

_WIDTH, _HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 10, 38
COLOURS = 6
"""So many colours, as `style.css` has them; then dashes tell lines apart."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")
_MARKERS = (
    "M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0z",
    "M-3,-3h6v6h-6z",
    "M0,-4l3.8,6.6h-7.6z",
    "M0,-4.2l4.2,4.2l-4.2,4.2l-4.2,-4.2z",
    "M0,4l3.8,-6.6h-7.6z",
    "M-1.2,-3.8h2.4v2.6h2.6v2.4h-2.6v2.6h-2.4v-2.6h-2.6v-2.4h2.6z",
)
_MARKED_POINTS = 8


def draw_lines(chart: LineChart) -> Markup:
    """Draw a line chart and its legend."""
    place = _Place(chart)
    drawn = picture(
        chart.title,
        chart.reading,
        _axes(chart, place),
        *(_band(series, place) for series in chart.series),
        *(_line(series, place) for series in chart.series),
        element("line", class_="cursor", y1=_TOP, y2=_HEIGHT - _BOTTOM, visibility="hidden"),
        class_="lines",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        data_lines=packed(_hover_data(chart, place)),
    )
    return joined(drawn, _legend(chart))


def ticks(length: int, most: int = 7) -> list[int]:
    """Choose rounds to be named: the first, the last, and round numbers between."""
    if length <= most:
        return list(range(1, length + 1))
    step = next(s for e in range(9) for s in (10**e, 2 * 10**e, 5 * 10**e) if length / s <= most)
    inner = [n for n in range(step, length, step) if length - n > step / 2 < n - 1]
    return [1, *inner, length]


def value_ticks(top: float) -> list[float]:
    """Choose values to be named, from 0 to the top or just below."""
    if top == 1.0:
        return [0.0, 0.25, 0.5, 0.75, 1.0]
    if not 0 < top < math.inf:
        return [0.0]
    unit = 10.0 ** math.floor(math.log10(top))
    step = next(s * unit for s in (0.2, 0.25, 0.5, 1.0, 2.0) if top / (s * unit) <= 5)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


class _Place:
    """Where rounds and values are."""

    def __init__(self, chart: LineChart) -> None:
        self.length, self.top = max(chart.length, 1), chart.top or 1.0

    def x(self, index: int) -> float:
        share = index / (self.length - 1) if self.length > 1 else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = min(max(value / self.top, 0.0), 1.0)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _axes(chart: LineChart, place: _Place) -> Markup:
    parts = []
    right = _WIDTH - _RIGHT
    for value in value_ticks(place.top):
        y, shown = number(place.y(value)), f"{value:.0%}" if chart.is_share else f"{value:.4g}"
        parts += [
            element("line", class_="rule", x1=_LEFT, x2=right, y1=y, y2=y),
            element("text", shown, x=_LEFT - 6, y=y, dy="0.35em", text_anchor="end"),
        ]
    bottom = _HEIGHT - _BOTTOM
    for n in ticks(chart.length):
        x = number(place.x(n - 1))
        parts.append(element("text", str(n), x=x, y=bottom + 16, text_anchor="middle"))
    middle = (_LEFT + right) / 2
    parts.append(element("text", chart.along, x=middle, y=_HEIGHT - 5, text_anchor="middle"))
    if chart.level is not None:
        y = number(place.y(chart.level[0]))
        parts.append(element("line", class_="level", x1=_LEFT, x2=right, y1=y, y2=y))
    return element("g", *parts, class_="axes")


def _band(series: Series, place: _Place) -> Markup:
    if series.low is None or series.high is None:
        return Markup("")
    pieces = []
    for piece in _pieces(series.high):
        above = [(place.x(i), place.y(series.high[i] or 0)) for i in piece]
        below = [(place.x(i), place.y(series.low[i] or 0)) for i in reversed(piece)]
        pieces.append(_path([*above, *below]) + "z")
    return element("path", class_=f"band {_class(series.style)}", d="".join(pieces))


def _line(series: Series, place: _Place) -> Markup:
    pieces = _pieces(series.values)
    points = {
        i: (place.x(i), place.y(value))
        for i, value in enumerate(series.values)
        if value is not None
    }
    lines = "".join(_path([points[i] for i in piece]) for piece in pieces if len(piece) > 1)
    every = max(1, math.ceil(len(series.values) / _MARKED_POINTS))
    start = series.style % every  # so that lines on top of each other stay apart
    alone = {piece[0] for piece in pieces if len(piece) == 1}
    marked = [i for i in points if i % every == start or i in alone]
    return element(
        "g",
        element("path", d=lines, stroke_dasharray=_dash(series.style)),
        *(_marker(series.style, *points[i]) for i in marked),
        class_=f"line {_class(series.style)}",
    )


def _pieces(values: Values) -> list[list[int]]:
    """Part the places of values where there is a gap."""
    pieces: list[list[int]] = [[]]
    for i, value in enumerate(values):
        if value is not None:
            pieces[-1].append(i)
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)},{number(y)}" for x, y in points)


def _marker(style: int, x: float, y: float) -> Markup:
    if style < 0:
        return Markup("")  # the limit is a line without points
    shape = _MARKERS[style % len(_MARKERS)]
    return element("path", class_="point", d=shape, transform=f"translate({number(x)},{number(y)})")


def _legend(chart: LineChart) -> Markup:
    """Name lines beside a piece of each."""
    entries = [(series.label, _sample(series.style)) for series in chart.series]
    if chart.level is not None:
        entries.append((chart.level[1], element("path", class_="level", d="M0,7H28")))
    return element(
        "ul",
        *(
            element(
                "li",
                element("svg", piece, class_="sample", viewBox="0 0 28 14", aria_hidden="true"),
                element("span", label),
            )
            for label, piece in entries
        ),
        class_="legend",
    )


def _sample(style: int) -> Markup:
    line = element("path", d="M0,7H28", stroke_dasharray=_dash(style))
    return element("g", line, _marker(style, 14, 7), class_=f"line {_class(style)}")


def _class(style: int) -> str:
    return "limit" if style < 0 else f"c{style % COLOURS}"


def _dash(style: int) -> str | None:
    if style < 0:
        return "5 4"
    # A dash for each of the first lines too: colours alone do not do on a grey printer.
    return DASHES[(style + style // COLOURS) % len(DASHES)] or None


def _hover_data(chart: LineChart, place: _Place) -> dict[str, object]:
    return {
        "from": place.x(0),
        "to": place.x(place.length - 1),
        "width": _WIDTH,
        "length": chart.length,
        "share": chart.is_share,
        "along": chart.along,
        "series": [
            [series.label, [rounded(value) for value in series.values]] for series in chart.series
        ],
    }
