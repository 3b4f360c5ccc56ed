"""``fedimmune report``: a run, or a comparison of many, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedimmune.cli.app import app

__all__ = ["report"]


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, or folders of runs: all runs in them."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the report goes.")
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Of the page. [default: what was run]")] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the pictures as PNG and PDF for a paper too (an extra)."
        ),
    ] = None,
) -> None:
    """Report on a run, or compare many, in one HTML file.

    The file needs nothing besides itself: it makes no network request. Runs that differ in rule and
    seed alone are compared with each other; others have a section each.

    Example: fedimmune report runs -o report.html
    """
    from fedimmune.report import write_figures, write_report

    place = write_report(runs, output, title=title)
    typer.echo(f"wrote {output} ({place.stat().st_size / 1e6:.1f} MB)", err=True)
    if figures is not None:
        written = write_figures(runs, figures)
        typer.echo(f"wrote {len(written)} figures to {figures}", err=True)
