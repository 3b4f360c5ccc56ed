"""``fedimmune train``: recordings into a defence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedimmune.cli.app import command
from fedimmune.cli.completion import ATTACKS, FORMS, listed, one_of
from fedimmune.cli.options import AsJson, Quiet
from fedimmune.cli.stopping import ANEW, on_stop
from fedimmune.cli.terminal import console, progress, read_setting, remarks, say

if TYPE_CHECKING:
    from fedimmune.adaptive.training import Epoch

__all__ = ["train"]


@command(
    "fedimmune train recordings -o digits.defence",
    "fedimmune train recordings -o digits.defence --attacks backdoor --epochs 200",
    "fedimmune train recordings -o paper.defence --form paper --preset authors",
)
def train(
    recordings: Annotated[list[Path], typer.Argument(hidden=True)],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the defence goes.")
    ],
    form: Annotated[
        str,
        typer.Option(
            help="`relational`, the form we ship, or `paper`.", autocompletion=one_of(FORMS)
        ),
    ] = "relational",
    preset: Annotated[
        str | None,
        typer.Option(
            help="Of the paper's form: `paper` or `authors`. [default: paper]",
            autocompletion=one_of(("paper", "authors")),
        ),
    ] = None,
    attacks: Annotated[
        str | None,
        typer.Option(
            help="Learn these kinds alone, with commas between.", autocompletion=listed(ATTACKS)
        ),
    ] = None,
    anchor: Annotated[
        bool | None,
        typer.Option(
            "--anchor/--no-anchor",
            help="Compare clients with the server's own update. [default: if it was recorded]",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How many.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Where all chance is from.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the form, such as c=5. Repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a defence on recordings: run after run but the last, which validates it.

    RECORDINGS are folders or files that `fedimmune record` wrote. The best validation epoch is
    kept. Beside FILE, FILE.curve.csv has the learning curve.
    """
    from fedimmune.adaptive.making import make_defence
    from fedimmune.adaptive.recordings import read_recordings
    from fedimmune.adaptive.training import write_curve
    from fedimmune.files import writable

    writable(output)
    notes = remarks(quiet=quiet)
    bar = progress(
        notes,
        TextColumn("epochs"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with on_stop(ANEW), bar:
        found = read_recordings(recordings)
        task = bar.add_task("", total=epochs)

        def tell(epoch: Epoch) -> None:
            losses = f"loss {epoch.training:.4f}, validation {epoch.validation:.4f}"
            bar.update(task, completed=epoch.number, description=losses)

        defence, curve = make_defence(
            found,
            form=form,
            preset=preset,
            attacks=None if attacks is None else [a.strip() for a in attacks.split(",")],
            anchor=anchor,
            epochs=epochs,
            seed=seed,
            settings=dict(read_setting(text) for text in settings or []),
            on_epoch=tell,
        )
        defence.save(output)
        write_curve(curve, output)
    if as_json:
        typer.echo(defence.about.model_dump_json(indent=2))
        return
    console().print(_table(defence.about.validation))
    best = min(curve, key=lambda epoch: epoch.validation)
    say(notes, f"wrote {output} (epoch {best.number} of {len(curve)})")


def _table(rows: Any) -> Table:
    table = Table(title="On rehearsals kept apart", title_justify="left")
    for heading in ("attack", "attackers", "rounds"):
        table.add_column(heading, overflow="fold")
    for heading in (
        "weight on\nattackers",
        "honest\nkept",
        "just the\nhonest",
        "AUROC",
        "distance",
        "of the\nmean",
        "of the\nmedian",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row["attack"],
            f"{row['attackers']} of {row['clients']}",
            str(row["rounds"]),
            _share(row["attacker_weight"]),
            _share(row["benign_kept"]),
            _share(row["exact"]),
            "–" if row["auroc"] is None else f"{row['auroc']:.3f}",
            *(
                "–" if row[name] is None else f"{row[name]:.3f}"
                for name in ("distance", "distance_of_mean", "distance_of_median")
            ),
        )
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
