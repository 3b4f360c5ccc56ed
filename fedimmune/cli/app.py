"""The application that commands add themselves to, and how it ends."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from fedimmune import __version__
from fedimmune.cli._signals import heeding_signals, is_stop, say_stopped
from fedimmune.cli.help import ENDING, Command, Group, examples, panel_of
from fedimmune.errors import FedimmuneError, ParameterError
from fedimmune.untrusted import printable

__all__ = ["app", "command", "main"]

app = typer.Typer(
    cls=Group,
    epilog=ENDING,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Panels and colors are for people. Rich's own markup would take [default: …] for a style.
    rich_markup_mode="markdown" if Console().is_terminal else None,
)

# PyTorch's threads spin while they wait for each other: quickest on idle cores, but on a busy
# machine far slower than sleeping (docs/benchmarks.md). Set before PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def command(*shown: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of the program, with these examples in its help."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def stoppable(*arguments: Any, **options: Any) -> None:
            try:
                function(*arguments, **options)
            except BaseException as error:
                if is_stop(error):
                    raise say_stopped(error) from None
                raise

        panel = panel_of(function.__name__)
        app.command(cls=Command, epilog=examples(*shown), rich_help_panel=panel)(stoppable)
        return function

    return add


def main() -> None:
    """Run the command line; an error is one line on standard error and exit code 1 or 2."""
    try:
        with heeding_signals():
            app(prog_name="fedimmune")  # by whatever name it was started
    except FedimmuneError as error:
        typer.echo(f"fedimmune: {printable(' '.join(str(error).split()))}", err=True)
        sys.exit(2 if isinstance(error, ParameterError) else 1)
    except OSError as error:
        typer.echo(f"fedimmune: {printable(error.strerror or error)}", err=True)
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedimmune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """An immune system for federated learning.

    Robust rules that aggregate clients' updates and name the clients they distrust, a rule that
    learns attacks from rehearsals, simulated training under attack, and reports.
    """
