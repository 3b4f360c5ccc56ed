"""``fedimmune demo``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedimmune.cli._signals import on_stop
from fedimmune.cli._ui import console, make_table, progress, remarks, say, share, shown_here
from fedimmune.cli.app import command
from fedimmune.cli.options import AsJson, Quiet, Seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console
    from rich.table import Table

    from fedimmune.demo import Demo, Outcome
    from fedimmune.runs.records import RoundRecord

__all__ = ["demo"]


@command(
    "fedimmune demo",
    "fedimmune demo --seed 2",
    "fedimmune demo -o DIR --json --quiet",
)
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for everything.")
    ] = Path("build/demo"),
    seed: Seed = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Repeat what an earlier call has done.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole story on bundled data, in minutes: attack, rehearse, train, compare.

    Ten clients learn handwritten digits; four of them plant a backdoor. First the universal defense
    that ships with fedimmune stands alone. Then one is trained on rehearsals with the server's own
    data, and the same federation is run under other rules.
    """
    from fedimmune.demo import RULES, SHIPPED, Demo, in_words, label_of, outcome_of

    began = time.perf_counter()
    played = Demo(output, seed)
    if force:
        played.forget()
    reused = []
    again = "the same command without --force" if force else "the same command"
    notes = remarks(quiet=quiet)
    stopped = f"{again} resumes from there ({output})"
    # Odd rounds are in the report.
    with shown_here(), on_stop(stopped), _Steps(notes) as steps:
        known = [SHIPPED] if played.is_played(SHIPPED) else []
        outcomes = {SHIPPED: outcome_of(SHIPPED, _play(played, SHIPPED, steps))}
        if not played.rehearse(steps.begin("rehearsing attacks on the server's data")):
            reused.append("the rehearsals")
        if not played.learn(steps.begin("training the defense on them")):
            reused.append("the defense")
        others = [rule for rule in RULES if rule != SHIPPED]
        known += [rule for rule in others if played.is_played(rule)]
        outcomes |= {rule: outcome_of(rule, _play(played, rule, steps)) for rule in others}
        if known:
            reused.append(f"the runs of {', '.join(map(label_of, known))}")
        played.write_report()
    if as_json:
        rows = [asdict(each) for each in outcomes.values()]
        facts = {"output": str(output), "seed": seed, "report": str(played.report), "rules": rows}
        typer.echo(json.dumps(facts, indent=2))
        return
    out = console()
    out.print(_table(outcomes.values()))
    for sentence in in_words(outcomes):
        say(out, sentence)
    out.print()
    say(out, f"The whole story: {played.report}")
    if reused:
        say(notes, f"From an earlier call: {'; '.join(reused)}. --force repeats everything.")
    say(notes, f"{time.perf_counter() - began:.0f} seconds")


def _play(played: Demo, rule: str, steps: _Steps) -> list[RoundRecord]:
    from fedimmune.demo import label_of

    tell = steps.begin(f"training under attack, by {label_of(rule)}")
    total = played.scenario(rule).rounds
    records = []
    for record in played.play(rule):
        records.append(record)
        tell(record.round, total)
    return records


class _Steps:
    """Shows each step: a bar on a terminal, a line elsewhere."""

    def __init__(self, notes: Console) -> None:
        self._notes = notes
        self._bars = progress(
            notes,
            TextColumn("{task.description:<44}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            transient=False,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, what: str) -> Callable[[int, int], None]:
        """Begin a step; returns the function to call with its progress."""
        bar = self._bars.add_task(what, total=None)
        if self._bars.disable:
            say(self._notes, what)

        def tell(done: int, total: int) -> None:
            self._bars.update(bar, completed=done, total=total)

        return tell


def _table(outcomes: Iterable[Outcome]) -> Table:
    headings = (
        "right on clean\nimages (ACC)",
        "does what attackers\nwant (ASR)",
        "weight on\nattackers",
    )
    table = make_table(None, ("rule",), headings, box=box.SIMPLE_HEAD)
    for each in outcomes:
        table.add_row(
            Text(each.label, "cyan"),
            f"{each.accuracy:.1%}",
            Text(f"{each.success:.1%}", "bold red" if each.is_taken_over else "green"),
            share(each.attacker_weight),
        )
    return table
