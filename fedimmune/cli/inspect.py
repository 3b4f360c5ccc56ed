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
    "fedimmune inspect universal",
    "fedimmune inspect runs/RUN",
    "fedimmune inspect runs/RUN --round 7",
    "fedimmune inspect runs/RUN --round 7 --client 3",
)
def inspect(
    what: Annotated[Path, typer.Argument(metavar="DEFENSE|RUN", hidden=True)],
    round_number: Annotated[
        int | None, typer.Option("--round", min=1, help="A round of the run, from 1.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="A client of the run, by id.")] = None,
    defense: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The run's defense, if it has been moved."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a defense looks at, or whom a run accused and why.

    DEFENSE is a file that `fedimmune train` wrote, or `universal` for the one that ships with
    fedimmune: what it was trained on, how good it is, what matters to it. RUN is a run's folder:
    whom it accused, in all rounds or in one; what became of a client; or, with --round and --client
    and for the rule `adaptive`, which layers of its update made the client suspect.
    """
    from fedimmune.adaptive.defense import UNIVERSAL_FILE
    from fedimmune.adaptive.rule import UNIVERSAL
    from fedimmune.cli._inspection import look_at_defense, look_at_run

    if str(what) == UNIVERSAL and not what.exists():
        what = UNIVERSAL_FILE
    if not what.exists():
        raise InputError(f"{what} does not exist: name a defense's file or a run's folder")
    if not what.is_dir():
        if round_number is not None or client is not None or defense is not None:
            raise ParameterError(
                f"{what} is not a run: it has no rounds and no clients to ask about"
            )
        shown = look_at_defense(what)
    else:
        shown = look_at_run(what, round_number, client, defense)
    if as_json:
        typer.echo(json.dumps(shown.facts, indent=2))
    else:
        shown.show()
