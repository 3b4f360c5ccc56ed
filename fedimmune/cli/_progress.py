"""What a simulation looks like while it runs: one line per round, and a bar below them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedimmune.cli._ui import counted, progress, say, share
from fedimmune.results import UNKNOWN
from fedimmune.runs.inspect import histories_of
from fedimmune.simulation import Observer

if TYPE_CHECKING:
    from fedimmune.results import ClientResult
    from fedimmune.runs.folder import RunFolder
    from fedimmune.runs.records import RoundRecord
    from fedimmune.simulation.federation import Federation
    from fedimmune.simulation.scenario import ResolvedScenario

__all__ = ["Display"]

_LEVELS = "▁▂▃▄▅▆▇█"
_STRIP = 40
"""More clients than this are not shown one by one."""
_VERDICT_MARKS = {"rejected": "×", "failed": "!"}


class Display(Observer):
    """Shows a simulation: lines on standard output, the bar on standard error.

    Parameters
    ----------
    scenario
        What is simulated.
    out, remarks
        Consoles for lines, and for the bar and remarks.
    silent
        Show no lines; on a terminal the bar is shown anyway.
    """

    def __init__(
        self, scenario: ResolvedScenario, out: Console, remarks: Console, *, silent: bool
    ) -> None:
        self._scenario, self._out, self._remarks = scenario, out, remarks
        self._silent = silent
        self._records: list[RoundRecord] = []
        self._attackers: set[str] = set()
        self._weighs = False
        self._before = 0
        self._began = time.perf_counter()
        self._bar = progress(
            remarks,
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._rounds: TaskID | None = None
        self._within: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    # ---------------------------------------------------------------- what it is told

    def loading(self, task: str) -> None:
        self._within = self._bar.add_task(f"loading {task}", total=None)

    def starting(self, federation: Federation, finished: int) -> None:
        self._before = finished
        self._attackers = {str(client) for client in federation.attackers}
        if self._within is not None:
            self._bar.remove_task(self._within)
        self._rounds = self._bar.add_task("rounds", total=self._scenario.rounds, completed=finished)
        self._within = self._bar.add_task("training", total=None)
        if finished:
            say(self._remarks, f"resuming after round {finished}")

    def progress(self, phase: str, done: int, total: int) -> None:
        if self._within is not None:
            unit = "clients" if phase == "training" else "pieces"
            self._bar.update(
                self._within, description=f"{phase} {unit}", completed=done, total=total
            )

    def show(self, record: RoundRecord) -> None:
        """Show a finished round."""
        self._records.append(record)
        self._attackers |= {client.client for client in record.clients if client.is_attacker}
        self._weighs |= any(client.weight is not None for client in record.clients)
        if len(self._records) == 1 and not self._silent:
            self._heading()
        if self._rounds is not None and record.round > self._before:
            self._bar.update(self._rounds, completed=record.round)
        if not self._silent:
            self._print(self._line(record))
            for warning in record.warnings:
                self._print(Text(f"       warning: {warning}", "yellow"))
            if record.error:
                self._print(Text(f"       the model stays as it was: {record.error}", "yellow"))

    @property
    def shown(self) -> int:
        """Number of rounds shown."""
        return len(self._records)

    def finish(self, folder: RunFolder) -> None:
        """Describe the result, and where it is kept."""
        if not self._silent:
            for sentence in self._in_words(self._records[-1]):
                say(self._out, sentence)
        played = len(self._records) - self._before
        how = (
            f"{counted(played, 'round')} in {time.perf_counter() - self._began:.0f} s"
            if self._rounds is not None
            else "finished earlier; --force runs it again"
        )
        say(self._remarks, f"{folder.path} ({how})")

    # ---------------------------------------------------------------- lines

    def _print(self, line: Text) -> None:
        # Above the bar, if both go to one terminal.
        console = (
            self._bar.console if self._out.is_terminal and not self._bar.disable else self._out
        )
        say(console, line)

    def _heading(self) -> None:
        s = self._scenario
        by = f"{s.attack.name} by {s.attackers} of {s.clients}" if s.attackers else "no attack"
        rule = s.rule.name
        if self._records[0].defense:
            rule = f"{rule}, {self._records[0].defense}"
        self._print(Text(f"{s.task.name} · {rule} · {by} · seed {s.seed}", "bold"))
        if 0 < len(self._attackers) <= _STRIP:
            listed = " ".join(sorted(self._attackers, key=int))
            self._print(Text(f"attackers: {listed}", "dim"))
        columns = f"{'round':>7}   {'ACC':>6}"
        columns += f"{'ASR':>8}" if self._has_target else ""
        columns += f"{'on attackers':>14} " if s.attackers else ""
        columns += "   weight by client" if self._has_strip else ""
        self._print(Text(columns, "dim"))

    @property
    def _has_target(self) -> bool:
        return any(record.asr is not None for record in self._records)

    @property
    def _has_strip(self) -> bool:
        return self._scenario.clients <= _STRIP and self._weighs

    def _line(self, record: RoundRecord) -> Text:
        line = Text(f"{record.round:>4}/{self._scenario.rounds:<4} ")
        line.append("     –" if record.accuracy is None else f"{record.accuracy:6.1%}")
        if self._has_target:
            style = "red" if (record.asr or 0) > 0.5 else ""
            line.append(f"  {share(record.asr):>6}", style)
        if self._scenario.attackers:
            style = "red" if (record.attacker_weight or 0) > 0.2 else "green"
            line.append(f"   {share(record.attacker_weight):>11} ", style)
        if self._has_strip:
            line.append("   ").append_text(_strip(record, self._scenario.clients))
        return line

    def _in_words(self, last: RoundRecord) -> list[str]:
        after = f"After {counted(last.round, 'round')} the model is right on {last.accuracy:.1%}"
        if last.asr is not None:
            after += (
                f", and does what the attackers want on {last.asr:.1%} of the attacked samples "
                f"({share(last.asr_others)} of those that are not of their class anyway)"
            )
        sentences = [f"{after}."]
        weights = [r.attacker_weight for r in self._records if r.attacker_weight is not None]
        if weights:
            when = "" if len(weights) == len(self._records) else ", in rounds that had any"
            sentences.append(f"Attackers had {fmean(weights):.1%} of the weight on average{when}.")
        sentences += _suspects_in_words(self._records)
        failed = sum(r.error is not None for r in self._records)
        if failed:
            sentences.append(f"In {counted(failed, 'round')} the model stayed as it was.")
        return sentences


def _suspects_in_words(records: Sequence[RoundRecord]) -> list[str]:
    """Name those suspected in most of their rounds, by the kind they were mostly called."""
    suspects: dict[str, list[str]] = {}
    sure: dict[str, list[float]] = {}
    for one in histories_of(records):
        if one.looks is None or 2 * one.counts["suspected"] <= one.rounds:
            continue
        suspects.setdefault(one.looks.kind, []).append(one.client)
        sure.setdefault(one.looks.kind, []).append(one.looks.confidence)
    return [
        f"Suspected in most rounds, looking {_alike(kind, fmean(sure[kind]))}: "
        f"{counted(len(names), 'client')} ({', '.join(sorted(names, key=int)[:_STRIP])})."
        for kind, names in sorted(suspects.items())
    ]


def _alike(kind: str, confidence: float) -> str:
    if kind == UNKNOWN:
        return "like no kind that was rehearsed"
    return f"most like {kind} ({confidence:.0%} on average)"


def _strip(record: RoundRecord, clients: int) -> Text:
    """One cell per client, as high as its weight, blank if it took no part; attackers in red."""
    largest = max(((client.weight or 0) for client in record.clients), default=0) or 1
    present = {client.client: client for client in record.clients}
    strip = Text()
    for number in map(str, range(clients)):
        strip.append_text(_cell(present[number], largest) if number in present else Text("  "))
    return strip


def _cell(client: ClientResult, largest: float) -> Text:
    if client.weight is None:
        return Text(_VERDICT_MARKS.get(client.verdict, " ") + " ", "bold yellow")
    if client.weight == 0:
        return Text("· ", "dim red" if client.is_attacker else "dim")
    level = _LEVELS[min(7, int(8 * client.weight / largest))]
    return Text(level + " ", "red" if client.is_attacker else "green")
