"""``fedimmune demo``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedimmune.cli.app import app
from fedimmune.cli.terminal import console, remarks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fedimmune.demo import Demo, Outcome
    from fedimmune.runs import RoundRecord

__all__ = ["demo"]


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where everything is kept.")
    ] = Path("build/demo"),
    seed: Annotated[
        int, typer.Option(min=0, help="Other clients, other attackers, another first model.")
    ] = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Do anew what an earlier call has done.")
    ] = False,
) -> None:
    """The whole story on bundled data, in minutes: rehearse, learn, be attacked, compare.

    Ten clients learn handwritten digits; four of them plant a backdoor. A defence is trained on
    rehearsals on the server's own data, and the same federation is played under five rules.

    Example: fedimmune demo --seed 2
    """
    from fedimmune.demo import RULES, Demo, in_words, outcome_of

    began = time.perf_counter()
    played = Demo(output, seed)
    if force:
        played.forget()
    reused = []
    with _Steps() as steps:
        if not played.rehearse(steps.begin("rehearsing attacks on the server's data")):
            reused.append("the rehearsals")
        if not played.learn(steps.begin("training the defence on them")):
            reused.append("the defence")
        known = [rule for rule in RULES if played.is_played(rule)]
        outcomes = {rule: outcome_of(rule, _play(played, rule, steps)) for rule in RULES}
        if known:
            reused.append(f"the runs of {', '.join(known)}")
    played.write_report()
    console().print(_table(outcomes.values()))
    for sentence in in_words(outcomes):
        console().print(sentence, highlight=False, soft_wrap=True)
    typer.echo(f"\nThe whole story, to look at: {played.report}")
    if reused:
        typer.echo(f"From an earlier call: {'; '.join(reused)}. --force does everything anew.")
    typer.echo(f"{time.perf_counter() - began:.0f} seconds")


def _play(played: Demo, rule: str, steps: _Steps) -> list[RoundRecord]:
    tell = steps.begin(f"training under attack, by {rule}")
    total = played.scenario(rule).rounds
    records = []
    for record in played.play(rule):
        records.append(record)
        tell(record.round, total)
    return records


class _Steps:
    """Shows one bar a step on a terminal, one line a step elsewhere."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<44}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=remarks(),
            disable=not remarks().is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, what: str) -> Callable[[int, int], None]:
        """Begin a step; the answer is told how far it is."""
        bar = self._bars.add_task(what, total=None)
        if self._bars.disable:
            remarks().print(what, highlight=False)

        def tell(done: int, total: int) -> None:
            self._bars.update(bar, completed=done, total=total)

        return tell


def _table(outcomes: Iterable[Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("rule", no_wrap=True)
    table.add_column("right on clean\nimages (ACC)", justify="right")
    table.add_column("does what attackers\nwant (ASR)", justify="right")
    table.add_column("weight on\nattackers", justify="right")
    for each in outcomes:
        weight = each.attacker_weight
        table.add_row(
            Text(each.rule, "cyan"),
            f"{each.accuracy:.1%}",
            Text(f"{each.success:.1%}", "bold red" if each.is_taken_over else "green"),
            "–" if weight is None else f"{weight:.1%}",
        )
    return table
