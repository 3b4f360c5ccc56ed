"""The application that commands add themselves to, and how it ends."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fedimmune import __version__
from fedimmune.errors import FedimmuneError

__all__ = ["app", "main"]

app = typer.Typer(
    help="An immune system for federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # Rich's own would take [default: …] for a style
)

# PyTorch's threads spin while they wait for each other: quickest on idle cores, but on a busy
# machine far slower than sleeping (docs/benchmarks.md). Has to be set before PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an error is one line on standard error and exit code 1."""
    try:
        app()
    except FedimmuneError as error:
        typer.echo(f"fedimmune: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
    except OSError as error:
        typer.echo(f"fedimmune: {error.strerror or error}", err=True)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:
            typer.echo("fedimmune: interrupted", err=True)
        raise


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedimmune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """An immune system for federated learning."""
