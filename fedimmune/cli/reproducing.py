"""An experiment as it goes: what is being made, how much is left, for how long."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from fedimmune.cli.durations import in_words
from fedimmune.cli.terminal import progress, say

if TYPE_CHECKING:
    from rich.console import Console

    from fedimmune.experiments.doing import Done, Work
    from fedimmune.experiments.parts import Part
    from fedimmune.experiments.store import Store

__all__ = ["Watched"]

_LOOK = 2.0
"""Seconds between looks at what is in the making."""


class Watched:
    """Shows parts as they are made: bars on a terminal, one line each elsewhere.

    Parameters
    ----------
    work
        What is to be made.
    store
        Where.
    workers
        How many processes are at it.
    notes
        Where to show it.
    """

    def __init__(self, work: Work, store: Store, workers: int, notes: Console) -> None:
        self._work, self._store, self._workers, self._notes = work, store, workers, notes
        self._made = 0
        self._done = 0
        self._finished = 0.0  # in the seconds that were reckoned with
        self._before = 0.0  # of these, what was there of parts when they were begun
        self._dropped: set[str] = set()  # failed, or in need of what has
        self._making: dict[str, Part] = {}
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._bars = progress(
            notes,
            TextColumn("{task.fields[count]}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            transient=False,
        )

    def __enter__(self) -> Self:
        total = len(self._work.parts)
        say(
            self._notes,
            f"{self._work.there} parts are there already, {total} are to be made by "
            f"{min(self._workers, total)} processes",
        )
        self._begun = time.monotonic()
        self._bars.start()
        self._bar = self._bars.add_task("", total=self._work.seconds, count=f"0/{total}", left="")
        self._looker = threading.Thread(target=self._look, daemon=True)
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looker.join()
        self._bars.stop()

    def begun(self, part: Part) -> None:
        """A part is begun."""
        self._before += part.seconds * part.progress(self._store)
        self._making[part.key] = part

    def done(self, done: Done) -> None:
        """A part is made, or has failed."""
        self._making.pop(done.part.key, None)
        self._done += 1
        if done.problem:
            self._drop(done.part.key)
        else:
            self._made += 1
            self._finished += done.part.seconds
        if self._bars.disable:
            what = f"failed: {done.problem}" if done.problem else in_words(done.seconds)
            count = f"[{self._done}/{len(self._work.parts)}]"
            say(self._notes, f"{count} {done.part.title}: {what}{self._left()}")
        self._show()

    def kept(self) -> str:
        """What there is, should it end now."""
        total = len(self._work.parts)
        return (
            f"{self._made} of {total} parts are made, and the same command goes on with the others"
        )

    def _drop(self, failed: str) -> None:
        """Reckon no more with a part, nor with those that need it."""
        self._dropped.add(failed)
        for part in self._work.parts:
            if part.key not in self._dropped and any(each.key == failed for each in part.needs):
                self._drop(part.key)

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            self._show()

    def _show(self) -> None:
        names = ", ".join(part.title for part in list(self._making.values()))
        self._bars.update(
            self._bar,
            total=self._total(),
            completed=self._progress(),
            count=f"{self._done}/{len(self._work.parts)}",
            left=self._left().removeprefix("; "),
            description=names,
        )

    def _total(self) -> float:
        """How much there is to do, in the seconds that were reckoned with."""
        return sum(part.seconds for part in self._work.parts if part.key not in self._dropped)

    def _progress(self) -> float:
        """How much is done, in the seconds that were reckoned with."""
        begun = sum(
            part.seconds * part.progress(self._store) for part in list(self._making.values())
        )
        return self._finished + begun

    def _left(self) -> str:
        """Say how much longer it takes, by how long it took so far."""
        done = self._progress()
        if done - self._before <= 0:
            return ""
        rate = (time.monotonic() - self._begun) / (done - self._before)
        return f"; {in_words(max(0.0, self._total() - done) * rate)} left"
