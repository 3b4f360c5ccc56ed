"""``fedimmune train``: recordings into a defense."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedimmune.cli._signals import ANEW, on_stop
from fedimmune.cli._ui import (
    console,
    in_ascii,
    promises_table,
    read_setting,
    remarks,
    say,
    showing_epochs,
    validation_table,
)
from fedimmune.cli.app import command
from fedimmune.cli.completion import ATTACKS, FORMS, listed, one_of
from fedimmune.cli.options import AsJson, Quiet, Seed
from fedimmune.cli.sweep import Sweep, searched_table
from fedimmune.errors import ParameterError

__all__ = ["train"]


@command(
    "fedimmune train recordings -o digits.defense",
    "fedimmune train recordings -o digits.defense --attacks backdoor --epochs 200",
    "fedimmune train recordings -o digits.defense --from universal",
    "fedimmune train recordings -o paper.defense --form paper --preset authors",
    "fedimmune train recordings -o digits.detector --form spectral",
    "fedimmune train recordings -o digits.defense --sweep --epochs 100",
    "fedimmune train recordings -o best.defense --grid c=5,10 --grid eps=0,0.5",
)
def train(
    recordings: Annotated[list[Path], typer.Argument(hidden=True)],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the defense.")
    ],
    form: Annotated[
        str,
        typer.Option(
            help="`relational`, the default model, `universal` or `paper`; `spectral` makes a "
            "detector for the rule of that name, from recordings with --save-updates.",
            autocompletion=one_of(FORMS),
        ),
    ] = "relational",
    preset: Annotated[
        str | None,
        typer.Option(
            help="With --form paper: `paper`, `authors` or `authors-2020`. [default: paper]",
            autocompletion=one_of(("paper", "authors", "authors-2020")),
        ),
    ] = None,
    attacks: Annotated[
        str | None,
        typer.Option(
            help="Learn only these attacks, separated by commas.", autocompletion=listed(ATTACKS)
        ),
    ] = None,
    anchor: Annotated[
        bool | None,
        typer.Option(
            "--anchor/--no-anchor",
            help="Compare clients with the server's own update. [default: if recorded]",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Start from a universal defense; `universal` is the one that ships with the "
            "package. Fewer rehearsals and epochs will do.",
        ),
    ] = None,
    synthetic: Annotated[
        bool | None,
        typer.Option(
            "--synthetic/--no-synthetic",
            help="Also learn attacks made up on the recorded inner products. [default: except with "
            "--form paper]",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Number of training epochs. [default: 500; with --from 100]"),
    ] = None,
    seed: Seed = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the model, such as c=5. Repeatable."
        ),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="Search settings (c and eps, unless --grid names others), and write the defense "
            "that is most often right about who attacks.",
        ),
    ] = False,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="NAME=VALUES",
            help="Settings that --sweep tries, such as c=5,10,20. Repeatable.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Defenses that --sweep trains at a time. [default: one per core]"),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a defense on recordings; the last run is held out for validation.

    RECORDINGS are folders or files that `fedimmune rehearse` wrote. The epoch that validates best
    is kept. FILE.curve.csv has the learning curve. A search also writes FILE.sweep.svg, a heat map,
    and FILE.sweep.jsonl, the results by point, which are not computed again.
    """
    from fedimmune.adaptive.defense import Defense, universal
    from fedimmune.adaptive.recordings import read_recordings
    from fedimmune.adaptive.sweep import TrainOptions
    from fedimmune.attacks import resolve
    from fedimmune.io import writable

    writable(output)
    notes = remarks(quiet=quiet)
    epochs = epochs or (500 if start is None else 100)
    parent = None
    if start is not None:
        parent = universal() if start == "universal" else Defense.load(start)
    options = TrainOptions(
        form=form,
        preset=preset,
        attacks=None if attacks is None else tuple(resolve(a.strip()) for a in attacks.split(",")),
        anchor=anchor,
        synthetic=synthetic,
        start=parent,
        epochs=epochs,
        seed=seed,
        settings=dict(read_setting(text) for text in settings or []),
    )
    if form == "spectral" and (sweep or grid):
        raise ParameterError("the spectral form has no search: leave --sweep and --grid out")
    searching = Sweep(grid or [], output, recordings, workers, notes) if sweep or grid else None
    with on_stop(ANEW if searching is None else searching.kept):
        found = read_recordings(recordings)
        if searching is not None:
            defense = searching.train(found, options)
        else:
            with showing_epochs(notes, epochs) as tell:
                defense = options.train(found, {}, tell)
        defense.save(output)
    if as_json:
        typer.echo(in_ascii(defense.about.model_dump_json(indent=2)))
        return
    if searching is not None:
        console().print(searched_table(defense.about.searched))
    console().print(validation_table(defense.about.validation))
    if form in ("relational", "paper") and parent is None:
        console().print(promises_table(defense.about.validation))
    best = min(defense.curve, key=lambda epoch: epoch.validation)
    say(notes, f"wrote {output} (epoch {best.number} of {len(defense.curve)})")
    if searching is not None:
        say(notes, f"wrote {searching.picture}")
