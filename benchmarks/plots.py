"""Draw how time grows with clients and columns; run as ``python -m benchmarks.plots``.

Reads ``build/bench-growth.json``, which ``python -m benchmarks.growth`` writes, and draws
``docs/images/growth.png``. The dashed line is a plain read of the same files, measured in the same
run: memory gives no more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from benchmarks.growth import PLAIN_READ
from fedimmune.report import charts

__all__ = ["draw_growth", "main"]

_ROOT = Path(__file__).resolve().parents[1]
_COLORS = ("#1f7dc0", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#6a51a3", "#56b4e9", "#7f3b08")
_LIMIT = "#333333"
_QUIET = "#5f6b73"
_GAP = 0.055
"""Least distance between two labels at the ends of lines, as a share of the axis."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--input", type=Path, default=_ROOT / "build" / "bench-growth.json")
    parser.add_argument(
        "--output", type=Path, default=_ROOT / "docs" / "images" / "growth.png", help="PNG or SVG"
    )
    options = parser.parse_args(arguments)
    if not options.input.is_file():
        parser.error(f"there is no {options.input}: run python -m benchmarks.growth first")
    draw_growth(pd.DataFrame(json.loads(options.input.read_text())), options.output)
    print(f"Written to {options.output}")


def draw_growth(rows: pd.DataFrame, output: Path) -> None:
    """Draw seconds against clients and against columns, on logarithmic axes.

    Parameters
    ----------
    rows
        What the benchmark wrote: rule, n, columns, seconds, threads.
    output
        Where the picture goes.
    """
    columns, n = int(rows["columns"].iloc[0]), int(rows["n"].min())
    panels = (
        (rows[rows["columns"] == columns], "n", "clients", f"{columns:,} values each"),
        (rows[rows["n"] == n], "columns", "values per client", f"{n} clients"),
    )
    drawn = [_panel(part, *words) for part, *words in panels if part[words[0]].nunique() > 1]
    threads = int(rows["threads"].iloc[0])
    counted = "one thread" if threads == 1 else f"{threads} threads"
    title = alt.Title(
        "Seconds to aggregate a round from files",
        subtitle=f"{counted}; dashed: a plain read of the same files, the limit that memory sets",
        fontSize=18,
        subtitleFontSize=13,
        subtitleColor=_QUIET,
        offset=14,
    )
    chart = alt.hconcat(*drawn, spacing=30).properties(title=title)
    look = charts.theme()
    look["title"] |= {"subtitleColor": _QUIET, "subtitlePadding": 4, "fontSize": 14, "offset": 8}
    look["title"]["frame"] = "group"
    output.parent.mkdir(parents=True, exist_ok=True)
    charts.draw({**chart.to_dict(), "config": look}, output)


def _panel(rows: pd.DataFrame, along: str, title: str, subtitle: str) -> Any:
    """Draw one line per rule with its name at the end."""
    names = [name for name in rows["rule"].unique() if name != PLAIN_READ]
    shades = [*_COLORS[: len(names)], _LIMIT]
    color = alt.Color("rule:N", legend=None).scale(domain=[*names, PLAIN_READ], range=shades)
    dash = alt.when(alt.datum["rule"] == PLAIN_READ).then(alt.value([6, 4]))
    low, high = float(rows["seconds"].min()), float(rows["seconds"].max())
    x = alt.X(f"{along}:Q", title=title).scale(type="log", nice=False)
    x = x.axis(values=sorted(map(int, rows[along].unique())), format="~s", grid=False)
    y = alt.Y("seconds:Q", title="seconds")
    y = y.scale(type="log", domain=[low / 1.3, high * 1.3], nice=False)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    y = y.axis(values=[10.0**power for power in decades], format="~r")
    lines = alt.Chart(rows).mark_line(strokeWidth=2)
    lines = lines.encode(
        x=x, y=y, color=color, detail="rule:N", strokeDash=dash.otherwise(alt.value([1, 0]))
    )
    dots = alt.Chart(rows[rows["rule"] != PLAIN_READ]).mark_point(filled=True, size=28, opacity=1)
    ends = _apart(rows[rows[along] == rows[along].max()].copy(), low / 1.3, high * 1.3)
    words = alt.Chart(ends).mark_text(align="left", dx=7, fontSize=11)
    words = words.encode(x=x, y=alt.Y("at:Q"), text="rule:N", color=color)
    heading = alt.Title(f"Time against {title}", subtitle=subtitle)
    layers = alt.layer(lines, dots.encode(x=x, y=y, color=color), words)
    return layers.properties(title=heading, width=330, height=320)


def _apart(ends: pd.DataFrame, low: float, high: float) -> pd.DataFrame:
    """Move labels that would lie on each other apart: heights on the logarithmic axis."""
    ends = ends.sort_values("seconds")
    ratio, floor, ceiling = high / low, 0.0, high
    step = ratio**_GAP
    placed: list[float] = []
    for seconds in ends["seconds"]:
        floor = max(float(seconds), floor * step)
        placed.append(floor)
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], ceiling)
        ceiling = placed[place] / step
    return ends.assign(at=placed)


if __name__ == "__main__":
    main()
