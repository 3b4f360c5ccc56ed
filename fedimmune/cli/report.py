"""``fedimmune report``: a run, or a comparison of many, as one HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedimmune.cli._signals import ANEW, on_stop
from fedimmune.cli._ui import remarks, say
from fedimmune.cli.app import command
from fedimmune.cli.options import AsJson, Quiet

__all__ = ["report"]


@command(
    "fedimmune report runs",
    "fedimmune report runs/RUN-1 runs/RUN-2 -o comparison.html --title 'Two rules'",
    "fedimmune report runs --figures figures",
)
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", hidden=True)],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the report.")
    ] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="Title of the page. [default: what was run]")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write the figures as PNG, SVG and PDF."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Report on a run, or compare many, in one HTML file.

    RUN... are run folders, or folders of them.

    The file is self-contained and makes no network request. Runs that differ only in rule and seed
    are compared with each other; others have a section each.
    """
    from fedimmune.report import write_figures, write_report

    notes = remarks(quiet=quiet or as_json)
    with on_stop(ANEW):
        size = write_report(runs, output, title=title).stat().st_size
        say(notes, f"wrote {output} ({size / 1e6:.1f} MB)")
        drawn = [] if figures is None else write_figures(runs, figures)
    if figures is not None:
        say(notes, f"wrote {len(drawn)} figures to {figures}")
    if as_json:
        written = {"output": str(output), "bytes": size, "figures": [str(file) for file in drawn]}
        typer.echo(json.dumps(written, indent=2))
