"""``fedimmune inspect``: what a defense looks at, and why a client was suspected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedimmune.cli.app import command
from fedimmune.cli.options import AsJson
from fedimmune.errors import InputError, ParameterError

__all__ = ["inspect"]


@command(
    "fedimmune inspect digits.defense",
    "fedimmune inspect runs/RUN",
    "fedimmune inspect runs/RUN --round 7",
    "fedimmune inspect runs/RUN --round 7 --client 3",
)
def inspect(
    what: Annotated[Path, typer.Argument(metavar="DEFENSE|RUN", hidden=True)],
    round_number: Annotated[
        int | None, typer.Option("--round", min=1, help="A round of the run, from 1.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="A client of the run, by its id.")] = None,
    defense: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the run's defense is now. [default: where it was]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a defense looks at, or whom a run accused and why.

    DEFENSE is a file that `fedimmune train` wrote: where it is from, how good it is, which layers
    matter to it. RUN is a run's folder: who was accused, in a round, of a client, or, with both,
    which layers of its update made the client suspect. That last needs the rule `adaptive`.
    """
    from fedimmune.cli._inspection import look_at_defense, look_at_run

    if not what.exists():
        raise InputError(f"{what} does not exist: name a defense's file or a run's folder")
    if not what.is_dir():
        if round_number is not None or client is not None or defense is not None:
            raise ParameterError(f"{what} is no run: it has no rounds and no clients to ask about")
        shown = look_at_defense(what)
    else:
        shown = look_at_run(what, round_number, client, defense)
    if as_json:
        typer.echo(json.dumps(shown.facts, indent=2))
    else:
        shown.show()
