"""The report as one HTML file that needs nothing besides itself."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from fedimmune import __version__
from fedimmune.errors import InputError
from fedimmune.files import writable, write_text_atomically
from fedimmune.report.charts import BarChart, Bubbles, Chart, Grid, LineChart
from fedimmune.report.contents import Contents, contents_of
from fedimmune.report.reading import read_runs
from fedimmune.report.svg_lines import draw_lines
from fedimmune.report.svg_maps import draw_bars, draw_bubbles, draw_grid
from fedimmune.report.traits import Traits
from fedimmune.report.traits_drawn import draw_traits

__all__ = ["page_of", "write_report"]


def write_report(
    runs: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str] = "report.html",
    *,
    title: str | None = None,
) -> Path:
    """Write a report of one run, or a comparison of many.

    Parameters
    ----------
    runs
        Run folders, or folders of run folders, which stand for all runs in them.
    output
        The HTML file; it is replaced whole or not at all.
    title
        Of the page; by default it says what was run.

    Returns
    -------
    Path
        Where it was written.

    Raises
    ------
    InputError
        A run does not exist or is damaged, or the file cannot be written.
    """
    place = writable(output)
    write_text_atomically(page_of(contents_of(read_runs(runs), title)), place)
    return place


def page_of(contents: Contents) -> str:
    """Write the page."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415
    except ImportError as error:
        raise InputError("a report needs Jinja2: pip install jinja2") from error
    environment = Environment(
        loader=PackageLoader("fedimmune.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["draw"] = _draw
    style, script = _read("style.css"), _read("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = environment.get_template("report.html").render(
        contents=contents,
        version=__version__,
        # Our own words, not anybody's: the only things that are not escaped.
        style=Markup(style),
        script=Markup(script),
        script_digest=digest,
    )
    # A lone surrogate, which JSON can smuggle in, cannot be written as UTF-8.
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _draw(chart: Chart) -> Markup:
    match chart:
        case LineChart():
            return draw_lines(chart)
        case Grid():
            return draw_grid(chart)
        case Bubbles():
            return draw_bubbles(chart)
        case BarChart():
            return draw_bars(chart)
        case Traits():
            return draw_traits(chart)
    raise TypeError(f"no way to draw {type(chart).__name__}")


def _read(name: str) -> str:
    return (files("fedimmune.report") / "page" / name).read_text(encoding="utf-8")
