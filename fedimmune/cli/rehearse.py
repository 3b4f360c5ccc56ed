"""``fedimmune rehearse``: attacks on the server's own data, recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from fedimmune.cli._signals import on_stop
from fedimmune.cli._ui import console, counter, read_setting, remarks, say
from fedimmune.cli.app import command
from fedimmune.cli.completion import ATTACKS, RULES, TASKS, listed, one_of
from fedimmune.cli.options import AsJson, DataFolder, Quiet, Seed
from fedimmune.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fedimmune.simulation.rehearsal import Rehearsal

__all__ = ["rehearse"]


@command(
    "fedimmune rehearse -o recordings",
    "fedimmune rehearse --task mnist --attacks backdoor --data DIR -o recordings",
    "fedimmune rehearse --attackers 0,4 --runs 2 --rounds 10 -o recordings",
    "fedimmune rehearse --randomize --range shift=0-8 -o recordings",
    "fedimmune rehearse --task mnist --on clients --preset paper -o recordings",
)
def rehearse(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the recordings.")
    ],
    task: Annotated[
        str,
        typer.Option(help="A task that `fedimmune tasks` lists.", autocompletion=one_of(TASKS)),
    ] = "digits",
    attacks: Annotated[
        str | None,
        typer.Option(
            help="Attacks to rehearse, separated by commas. [default: sign-flip, and backdoor, or "
            "label-flip if the task has no images]",
            autocompletion=listed(ATTACKS),
        ),
    ] = None,
    attackers: Annotated[
        str, typer.Option(help="Numbers of attackers, such as 0-4 or 0,2,4.")
    ] = "0-4",
    runs: Annotated[
        int, typer.Option(min=1, help="Number of repetitions; `train` holds the last one out.")
    ] = 3,
    trajectory: Annotated[
        str | None,
        typer.Option(
            help="Rules that make the next global model, separated by commas. [default: oracle]",
            autocompletion=listed(RULES),
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Number of rounds. [default: the task's]")
    ] = None,
    local_epochs: Annotated[
        str | None,
        typer.Option(
            help="Local epochs per round, such as 1,6: each is rehearsed, with fewer rounds by "
            "that factor. [default: 1, and a number up to 6 that makes up for real clients having "
            "more samples]"
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="Whose data is used: the `server`'s test samples, as in the paper's text, or, for "
            "research, the `clients`' own, which no real server has.",
            autocompletion=one_of(("server", "clients")),
        ),
    ] = "server",
    preset: Annotated[
        str | None,
        typer.Option(
            help="`paper`: three runs, four trajectories and all rounds, as in the paper. "
            "`authors`: also attacks and clients as in their program.",
            autocompletion=one_of(("paper", "authors")),
        ),
    ] = None,
    randomize: Annotated[
        bool,
        typer.Option("--randomize", help="Draw attack parameters at random in each rehearsal."),
    ] = False,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="NAME=LOW-HIGH",
            help="What --randomize draws from, such as shift=0-8 or scale=0.5-2. Repeatable.",
        ),
    ] = None,
    seed: Seed = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any other scenario field. Repeatable."),
    ] = None,
    save_updates: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="NUMBER",
            help="Also keep this many values of each update's last layer, for `train --form "
            "spectral`. [default: none]",
            show_default=False,
        ),
    ] = 0,
    data: DataFolder = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Rehearsals at a time. [default: one per core]")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rehearse attacks on the server's own data, and record what a defense learns from.

    Of each round, only the inner products of the updates are kept, layer by layer, and who
    attacked; with --save-updates, also some values of each update. What has been recorded is not
    rehearsed again, so an interrupted command resumes.
    """
    from fedimmune import adaptive
    from fedimmune.tasks.archives import unwatched

    watched = _Watched(output, remarks(quiet=quiet))
    with on_stop(watched.kept), watched, unwatched(quiet):
        adaptive.rehearse(
            task,
            None if attacks is None else _list(attacks),
            output=output,
            attackers=_numbers("--attackers", attackers),
            runs=runs,
            trajectory=_list(trajectory) if trajectory else None,
            rounds=rounds,
            local_epochs=_numbers("--local-epochs", local_epochs) if local_epochs else None,
            on=on,  # type: ignore[arg-type]
            preset=preset,  # type: ignore[arg-type]
            randomize=_ranges(ranges) if randomize or ranges else None,
            seed=seed,
            settings=dict(read_setting(text) for text in settings or []),
            save_updates=save_updates,
            data=data,
            workers=workers,
            on_start=watched.start,
            on_done=watched.done,
        )
    size = sum(file.stat().st_size for file in output.glob("*.recording"))
    if as_json:
        facts = {"output": str(output), "rehearsals": watched.total, "recorded": watched.new}
        typer.echo(json.dumps({**facts, "bytes": size}, indent=2))
    else:
        say(console(), f"{output}: {watched.total} rehearsals, {size / 1e6:.1f} MB")


class _Watched:
    """Shows rehearsals as they are done: a bar on a terminal, one line each elsewhere."""

    def __init__(self, folder: Path, notes: Console) -> None:
        self._rehearsals: Sequence[Rehearsal] = ()
        self._folder, self._notes, self._before = folder, notes, 0
        self._bars = counter(notes, "rehearsals")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, rehearsals: Sequence[Rehearsal]) -> None:
        """Show how many rehearsals there are in all, and how many are recorded already."""
        self._rehearsals = rehearsals
        self._before = self._there()
        if self._before:
            say(self._notes, f"{self._before} of {self.total} are recorded already")
        self._bars.start()
        self._bar = self._bars.add_task("", total=self.total, completed=self._before)

    def done(self, rehearsal: Rehearsal) -> None:
        """Count one more."""
        self._bars.update(self._bar, advance=1, description=rehearsal.scenario.title)
        if self._bars.disable:
            say(self._notes, f"recorded {rehearsal.file_name}")

    def kept(self) -> str:
        """Describe what is kept if it ends now."""
        if not self.total:
            return "the same command resumes"
        done = f"{self._there()} of {self.total} rehearsals are recorded"
        return f"{done}, and the same command resumes with the others"

    @property
    def total(self) -> int:
        """Number of rehearsals in all."""
        return len(self._rehearsals)

    @property
    def new(self) -> int:
        """Number recorded by this call."""
        return self._there() - self._before

    def _there(self) -> int:
        return sum((self._folder / each.file_name).is_file() for each in self._rehearsals)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(option: str, text: str) -> list[int]:
    """Read ``0-4`` or ``0,2,4``."""
    found: list[int] = []
    for part in _list(text):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if span is None:
            raise ParameterError(f"{option} takes numbers such as 0-4 or 0,2,4, not {text!r}")
        found += range(int(span[1]), int(span[2] or span[1]) + 1)
    return sorted(set(found))


def _ranges(ranges: list[str] | None) -> dict[str, tuple[float, float]]:
    spans: dict[str, tuple[float, float]] = {}
    for text in ranges or []:
        found = re.fullmatch(r"(\w+)=(\d+\.?\d*)-(\d+\.?\d*)", text)
        if found is None:
            raise ParameterError(f"--range takes NAME=LOW-HIGH, such as shift=0-8, not {text!r}")
        spans[found[1]] = (float(found[2]), float(found[3]))
    return spans
