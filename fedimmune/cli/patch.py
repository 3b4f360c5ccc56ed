"""``fedimmune patch``: a defense learns a new attack, and keeps the old ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedimmune.cli._signals import ANEW, on_stop
from fedimmune.cli._ui import console, make_table, remarks, say, showing_epochs
from fedimmune.cli.app import command
from fedimmune.cli.options import AsJson, Quiet, Seed
from fedimmune.errors import InputError, ParameterError

if TYPE_CHECKING:
    from rich.table import Table

    from fedimmune.adaptive.patching import Compared, Patched

__all__ = ["patch"]


@command(
    "fedimmune patch digits.defense --with new-recordings -o digits-2.defense",
    "fedimmune patch digits.defense --with new -o digits-2.defense --margin 5",
    "fedimmune patch old.defense --old-recordings old --with new -o new.defense",
)
def patch(
    defense: Annotated[Path, typer.Argument(hidden=True)],
    recordings: Annotated[
        list[Path],
        typer.Option("--with", metavar="DIR", help="Recordings of the new attack. Repeatable."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the new defense.")
    ],
    old_recordings: Annotated[
        list[Path] | None,
        typer.Option(
            "--old-recordings",
            metavar="DIR",
            help="Recordings that DEFENSE was made from. Repeatable. [default: the sample in its "
            "file]",
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            min=0, max=100, help="Percentage points by which an old attack may get worse."
        ),
    ] = 2.0,
    force: Annotated[
        bool, typer.Option("--force", help="Write the new defense even if an old attack got worse.")
    ] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Number of training epochs.")] = 200,
    seed: Seed = 1,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Teach a defense a new attack without forgetting the old ones.

    DEFENSE is a file that `fedimmune train` or `patch` wrote; it does not change. Old attacks are
    replayed from a sample in that file. If attackers of an old one get more weight than before, or
    fewer honest clients are kept, nothing is written. FILE.curve.csv has the learning curve.
    """
    from fedimmune.adaptive.defense import Defense
    from fedimmune.adaptive.patching import patch as carry_out
    from fedimmune.adaptive.recordings import read_recordings
    from fedimmune.io import writable

    if writable(output) == defense.resolve():
        raise ParameterError(f"{output} is the defense to be patched: choose another name")
    notes = remarks(quiet=quiet)
    with on_stop(ANEW), showing_epochs(notes, epochs) as tell:
        parent = Defense.load(defense)
        found = read_recordings(recordings)
        old = None if old_recordings is None else read_recordings(old_recordings)
        patched = carry_out(
            parent,
            found,
            old_recordings=old,
            margin=margin / 100,
            epochs=epochs,
            seed=seed,
            on_epoch=tell,
        )
        is_written = force or not patched.worse
        if is_written:
            patched.defense.save(output)
    if as_json:
        facts = {"output": str(output), "written": is_written, **_facts(patched)}
        typer.echo(json.dumps(facts, indent=2))
    else:
        console().print(_table(patched))
    if not is_written:
        raise InputError(_refusal(patched, output))
    best = min(patched.defense.curve, key=lambda epoch: epoch.validation)
    forced = f"; {_worst(patched)}" if patched.worse else ""
    wrote = f"wrote {output} (epoch {best.number} of {epochs}), which knows {_known(patched)}"
    say(notes, wrote + forced)


def _known(patched: Patched) -> str:
    return ", ".join(patched.defense.about.attacks) or "no attack"


def _refusal(patched: Patched, output: Path) -> str:
    return (
        f"{output} is not written: {_worst(patched)}, and {100 * patched.margin:g} are "
        f"allowed (--margin). Another --seed, more --epochs or all --old-recordings may help; "
        "--force writes it anyway"
    )


def _worst(patched: Patched) -> str:
    worst, *others = patched.worse
    also = f" (and {len(others)} more)" if others else ""
    return f"{_title(worst)}{also} got worse by {100 * worst.lost:.1f} percentage points"


def _title(row: Compared) -> str:
    attack = row.before["attack"]
    who = f"{row.before['attackers']} of {row.before['clients']}"
    return "rounds without attack" if attack == "none" else f"{attack} by {who}"


def _facts(patched: Patched) -> dict[str, Any]:
    worse = patched.worse
    rows = [
        {"old": row.is_old, "worse": row in worse, "before": row.before, "after": row.after}
        for row in patched.rows
    ]
    about = patched.defense.about.model_dump(mode="json")
    return {"margin": patched.margin, "attacks": rows, "defense": about}


def _table(patched: Patched) -> Table:
    table = make_table(
        "On held-out rehearsals, before → after",
        ("", "attack", "by", "rounds"),
        ("weight on\nattackers", "honest\nkept"),
    )
    worse = patched.worse
    for number, row in enumerate(patched.rows):
        if number and row.is_old != patched.rows[number - 1].is_old:
            table.add_section()
        table.add_row(
            "worse" if row in worse else "old" if row.is_old else "new",
            row.before["attack"],
            f"{row.before['attackers']} of {row.before['clients']}",
            str(row.before["rounds"]),
            _change(row, "attacker_weight"),
            _change(row, "benign_kept"),
            style="red" if row in worse else None,
        )
    return table


def _change(row: Compared, name: str) -> str:
    if row.before[name] is None:
        return "–"
    return f"{row.before[name]:6.1%} → {row.after[name]:6.1%}"
