"""The universal defense, from nothing; run as ``python -m reproduction immunity``.

``record`` makes the corpus: rounds of many small federations, one file per recording. ``train``
makes a defense of it; ``--leave-out`` keeps a data set, an architecture or an attack from it, so
that it can be tested on what it never saw. ``evaluate`` plays federations with it.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import altair as alt
import pandas as pd
import torch
import typer
from rich.console import Console

from fedimmune import adaptive
from fedimmune import attacks as all_attacks
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.description import Epoch
from fedimmune.adaptive.recordings import SUFFIX, Recording
from fedimmune.cli._ui import read_setting
from fedimmune.cli.help import Command, examples
from fedimmune.errors import InputError
from fedimmune.io import write_text_atomically
from fedimmune.simulation.workers import usable_cores
from fedimmune.tasks import data_folder
from fedimmune.untrusted import printable, read_json
from reproduction import benchmarks, cli, corpus
from reproduction.corpus import Draft
from reproduction.corpus_data import present
from reproduction.figures import Chart, save
from reproduction.progress import duration
from reproduction.results import check_writable
from reproduction.rows import as_csv
from reproduction.tables import markdown_table

__all__ = ["app", "evaluated", "main", "used"]

RECORDINGS = 2600
"""What takes at most an hour and a half of one core."""
_CORPUS = "corpus.json"
_EVERY = 50
"""Recordings between two lines on how far it is."""
_EXAMPLES = examples(
    "python -m reproduction immunity record",
    "python -m reproduction immunity record --recordings 40 --only family=cnn,attack=none",
)

_TRAIN_EXAMPLES = examples(
    "python -m reproduction immunity train -o fedimmune/adaptive/universal.safetensors",
    "python -m reproduction immunity train -o without-mnist.defense --leave-out dataset=mnist",
)
_EVALUATE_EXAMPLES = examples(
    "python -m reproduction immunity evaluate",
    "python -m reproduction immunity evaluate --task mnist --defense without-mnist.defense "
    "--attacks none,backdoor,sign-flip,label-flip",
)
EPOCHS = 40
_HELD_OUT = 10

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a step; an error is one line on standard error and exit code 1 or 2."""
    cli.main(app, "python -m reproduction immunity", arguments)


@app.callback()
def _immunity() -> None:
    """Make the universal defense from nothing, step by step; each step resumes."""


@app.command("record", cls=Command, epilog=_EXAMPLES)
def _record(
    recordings: Annotated[
        int, typer.Option(min=1, help="How many recordings the corpus has.")
    ] = RECORDINGS,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Make some of them: dataset=…, family=…, attack=…, separated by commas; a field "
            "named twice may have either value. Repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the corpus.")] = 1,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the recordings.")] = Path(
        "build/immunity"
    ),
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of public data sets; those that it has are used, and none is downloaded. "
            "[default: FEDIMMUNE_DATA, else a cache]",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, one thread each. [default: one per core]")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only what was used: no progress.")
    ] = False,
) -> None:
    """Record the corpus: rounds of many small federations, attacked and not.

    What the folder has already is not made again, so an interrupted command resumes. A recording
    that fails, because its model diverges, say, is left out, and one line says why.
    """
    fields, place = corpus.parse_only(only or []), data_folder(data)
    public = present(place)
    check_writable(folder)
    _check_same(folder, {"seed": seed, "version": corpus.VERSION, "public": list(public)})
    drafts = corpus.selected((corpus.draw(seed, k, public) for k in range(recordings)), fields)
    if not drafts:
        raise InputError(
            f"none of {recordings} recordings has everything that --only asks for at once"
        )
    notes = Console(stderr=True, quiet=quiet)
    watch = _Watch(sum(not (folder / each.file_name).is_file() for each in drafts), notes)
    counts = corpus.record(
        drafts, folder, place, workers=workers or usable_cores(), on_done=watch.done
    )
    files = [folder / each.file_name for each in drafts]
    typer.echo(used(file for file in files if file.is_file()))
    watch.say(
        f"{counts['made']} recordings made in {duration(watch.seconds)}, {counts['before']} there "
        f"before, {counts['failed']} left out; public data sets: {', '.join(public) or 'none'}"
    )


@app.command("train", cls=Command, epilog=_TRAIN_EXAMPLES)
def _train(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the defense.")
    ],
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Learn from no recording of this dataset=…, family=… or attack=…. Repeatable.",
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A universal defense to start from."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Number of training epochs.")] = EPOCHS,
    seed: Annotated[int, typer.Option(min=0, help="Of the training.")] = 1,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the corpus.")] = Path(
        "build/immunity"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> None:
    """Train a universal defense on the corpus; one recording in ten is held out.

    What it was trained on is printed, and is in the defense's file.
    """
    torch.set_num_threads(1)
    check_writable(output.parent)
    fields = corpus.parse_only(leave_out or [])
    notes = Console(stderr=True, quiet=quiet)
    recordings = _learnable(folder, fields)
    started = time.monotonic()

    def tell(epoch: Epoch) -> None:
        notes.print(
            f"epoch {epoch.number} of {epochs}: {epoch.training:.4f}, held out "
            f"{epoch.validation:.4f}, {duration(time.monotonic() - started)}",
            highlight=False,
        )

    parent = None if start is None else Defense.load(start)
    defense = adaptive.train(
        recordings, form="universal", start=parent, epochs=epochs, seed=seed, on_epoch=tell
    )
    # A replay of so many models would be larger than everything else in the package.
    light = Defense(defense.form, defense.about, kinds=defense.kinds, curve=defense.curve)
    light.save(output)
    rounds = sum(len(each) for each in recordings)
    typer.echo(f"{output}: {len(recordings)} recordings, {rounds:,} rounds")


def _learnable(folder: Path, left_out: dict[str, set[str]]) -> list[Recording]:
    """Read the recordings that are not left out; every tenth is a run of its own, to hold out."""
    found = []
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        one = Recording.load(file)
        dataset, _, family = one.about.task.partition("/")
        about = {"dataset": dataset, "family": family, "attack": one.about.attack}
        if any(about[name] in values for name, values in left_out.items()):
            continue
        number = int(file.name.split("-", 1)[0])
        one.about = one.about.model_copy(update={"run": int(number % _HELD_OUT == 0)})
        found.append(one)
    if not found:
        raise InputError(f"{folder} has no recordings to learn from: `immunity record` makes them")
    return found


@app.command("evaluate", cls=Command, epilog=_EVALUATE_EXAMPLES)
def _evaluate(
    defense: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The defense. [default: the one that ships]"),
    ] = None,
    task: Annotated[str, typer.Option(help="What it is evaluated on.")] = "digits",
    attacks: Annotated[
        str | None,
        typer.Option(help="Names, separated by commas. [default: all that fit the task]"),
    ] = None,
    rules: Annotated[
        str, typer.Option(help="What it is compared with, separated by commas.")
    ] = "mean",
    seeds: Annotated[str, typer.Option(help="Separated by commas.")] = "1,2,3",
    clients: Annotated[int, typer.Option(min=2, help="How many.")] = 10,
    attackers: Annotated[int, typer.Option(min=1, help="How many of them attack.")] = 4,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Another field of the scenarios, such as participation=0.3; values may be JSON. "
            "Repeatable.",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs.")] = Path(
        "build/immunity-runs"
    ),
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of data sets.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all rows.")] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw what each attack costs.")
    ] = None,
) -> None:
    """Play real federations with a universal defense: four of ten attack, and nobody does.

    Compared with the oracle, which is told who attacks, and with other rules.
    """
    known = list(all_attacks.available()) if attacks is None else attacks.split(",")
    names = ["adaptive", *filter(None, rules.split(","))]
    numbers = [int(seed) for seed in seeds.split(",")]
    entries = list(
        benchmarks.grid(
            *(task, names, known, numbers, {"adaptive": defense}, data),
            clients=clients,
            attackers=attackers,
            **dict(read_setting(text) for text in fields or []),
        )
    )
    benchmarks.play(entries, folder, data, workers or usable_cores())
    frame = benchmarks.figures(entries, folder, own="" if defense is None else defense.stem)
    typer.echo(evaluated(frame), nl=False)
    if csv is not None:
        write_text_atomically(as_csv(frame), csv)
    if figure is not None:
        save(harm_chart(frame), figure.with_suffix(""))


def harm_chart(frame: pd.DataFrame) -> Chart:
    """Describe what attacks cost: points worse than the oracle by attack, a dot per seed."""
    shown = frame[(frame["rule"] != "oracle") & frame["harm"].notna()]
    shown = shown.assign(points=100 * shown["harm"])
    own = shown[shown["rule"] == "adaptive"]
    order = own.groupby("attack")["points"].mean().sort_values().index.tolist()
    base = alt.Chart(shown).encode(
        y=alt.Y("attack:N", sort=order, title=None),
        color=alt.Color("rule:N", title=None, legend=alt.Legend(orient="top")),
    )
    axis = alt.X("points:Q", title="points worse than the oracle (ACC below or ASR above)")
    dots = base.mark_circle(size=28, opacity=0.5).encode(x=axis)
    means = base.mark_tick(thickness=3, size=12).encode(x=axis.aggregate("mean"))
    return (dots + means).properties(width=420, height=alt.Step(15))


def evaluated(frame: pd.DataFrame) -> str:
    """Tabulate figures of `benchmarks.figures`, in Markdown: one line per attack, in percent."""
    mean = frame.groupby(["attack", "rule"])[
        ["accuracy", "asr", "harm", "weight", "accused", "reduced"]
    ].mean()
    others = [rule for rule in mean.index.unique("rule") if rule not in ("adaptive", "oracle")]
    order = mean.xs("adaptive", level="rule")["harm"].sort_values(na_position="first").index
    lines = []
    for attack in order:
        cells = []
        for rule in ("adaptive", "oracle", *others):
            there = (attack, rule) in mean.index
            found = mean.loc[(attack, rule)] if there else None
            cells.append("–" if found is None else _both(found["accuracy"], found["asr"]))
        own = mean.loc[(attack, "adaptive")]
        lines.append(
            [attack, *cells, *(_percent(own[name]) for name in ("weight", "accused", "reduced"))]
        )
    head = ["attack", "`adaptive`: ACC / ASR", "oracle", *(f"`{rule}`" for rule in others)]
    head += ["weight on attackers", "honest suspected", "honest reduced"]
    return markdown_table(head, lines, "l" + "r" * (len(head) - 1))


def _both(accuracy: float, success: float) -> str:
    shown = _percent(accuracy)
    return shown if math.isnan(success) else f"{shown} / {_percent(success)}"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def _check_same(folder: Path, about: dict[str, Any]) -> None:
    """Refuse a folder of another corpus: numbers would mean other recordings there."""
    file = folder / _CORPUS
    if not file.is_file():
        if any(folder.glob(f"*{SUFFIX}")):
            raise InputError(f"{folder} holds recordings of something else: choose another folder")
        write_text_atomically(json.dumps(about) + "\n", file)
        return
    found = read_json(file.read_text(encoding="utf-8"))
    if found != about:
        differing = [
            f"{name} {found.get(name) if isinstance(found, dict) else None}, not {value}"
            for name, value in about.items()
            if not isinstance(found, dict) or found.get(name) != value
        ]
        raise InputError(
            f"{folder} holds another corpus ({'; '.join(differing)}): choose another folder"
        )


def used(files: Iterable[Path]) -> str:
    """Tabulate recordings, in Markdown: data sets by family, and attacks."""
    cells: Counter[tuple[str, str]] = Counter()
    numbers: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for file in files:
        one = Recording.load(file)
        dataset, _, family = one.about.task.partition("/")
        cells[dataset, family] += 1
        rounds, clients = one.attackers.shape
        numbers[one.about.attack].append((rounds, rounds * clients, int(one.attackers.sum())))
    families = sorted({family for _, family in cells})
    sets = [
        [dataset, *(str(cells[dataset, family] or "") for family in families)]
        for dataset in sorted({dataset for dataset, _ in cells})
    ]
    every = [each for attack in numbers.values() for each in attack]
    kinds = [
        [name, str(len(found)), *(f"{sum(column):,}" for column in zip(*found, strict=True))]
        for name, found in [*sorted(numbers.items()), ("all", every)]
    ]
    head = ["attack", "recordings", "rounds", "clients' rounds", "attackers' rounds"]
    return "\n".join(
        (
            markdown_table(["data set", *families], sets, "l" + "r" * len(families)),
            markdown_table(head, kinds, "lrrrr"),
        )
    )


class _Watch:
    """Says what is done, and how long the rest will take."""

    def __init__(self, count: int, notes: Console) -> None:
        self._count, self._done, self._notes, self._started = count, 0, notes, time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    def done(self, draft: Draft, problem: str | None) -> None:
        """Count one more recording."""
        self._done += 1
        if problem is not None:
            self.say(f"left out: {draft.file_name}: {problem}")
        if self._done % _EVERY == 0:
            left = self.seconds / self._done * (self._count - self._done)
            self.say(f"{self._done} of {self._count}, about {duration(left)} left")

    def say(self, line: str) -> None:
        """Print a remark."""
        self._notes.print(printable(line), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
