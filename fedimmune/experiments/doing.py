"""Carrying out: parts made by several processes at once, what is needed first, failures set aside.

Each process has one thread and makes one part at a time. A part that fails takes those with it that
need it, and no others; a process that dies is replaced.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import torch

from fedimmune.errors import FedimmuneError
from fedimmune.experiments.parts import Part, closure
from fedimmune.experiments.store import Store
from fedimmune.federation.pool import Pool

__all__ = ["Done", "Outcome", "Work", "carry_out"]


@dataclass(frozen=True)
class Done:
    """A part that was worked at.

    Parameters
    ----------
    part
        Which.
    seconds
        How long it took.
    problem
        Why it is not there; empty where it is.
    """

    part: Part
    seconds: float
    problem: str = ""


@dataclass
class Outcome:
    """What came of carrying out.

    Parameters
    ----------
    made, failed
        What was worked at.
    left_out
        What could not be begun, for it needs something that failed.
    seconds
        How long it all took.
    busy
        Share of that time in which the processes computed, from 0 to 1.
    """

    made: list[Done] = field(default_factory=list)
    failed: list[Done] = field(default_factory=list)
    left_out: list[Part] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True)
class Work:
    """What is to be done: all that parts need and is not there yet.

    Parameters
    ----------
    parts
        In an order in which they can be made.
    there
        How many are made already.
    """

    parts: tuple[Part, ...]
    there: int

    @classmethod
    def of(cls, wanted: Sequence[Part], store: Store) -> Work:
        """Look what is missing. What a made part needs is not missed."""
        every = closure(wanted)
        missing = [part for part in every if not part.is_made(store)]
        keys = {part.key for part in missing}
        needed: set[str] = set()

        def need(part: Part) -> None:
            if part.key in keys and part.key not in needed:
                needed.add(part.key)
                for each in part.needs:
                    need(each)

        for part in wanted:
            need(part)
        to_do = tuple(part for part in missing if part.key in needed)
        return cls(to_do, len(every) - len(to_do))

    @property
    def seconds(self) -> float:
        """About how long one core takes."""
        return sum(part.seconds for part in self.parts)


def carry_out(
    work: Work,
    store: Store,
    *,
    workers: int,
    on_begun: Callable[[Part], None] = lambda _: None,
    on_done: Callable[[Done], None] = lambda _: None,
) -> Outcome:
    """Make parts.

    Parameters
    ----------
    work
        What to make.
    store
        Where to.
    workers
        How many processes.
    on_begun, on_done
        Are told of each part, from several threads but never two at a time.
    """
    board = _Board(work.parts)
    count = min(workers, max(1, len(work.parts)))
    lanes = [_Lane(board, store, on_begun, on_done) for _ in range(count)]
    begun, before = time.perf_counter(), _computed()
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that Ctrl-C is heard
    finally:
        board.stop()
        for lane in lanes:
            lane.close()
    seconds = time.perf_counter() - begun
    outcome = board.outcome
    outcome.seconds = seconds
    outcome.busy = (_computed() - before) / (seconds * count) if seconds else 0.0
    return outcome


class _Board:
    """Which part is next: of those that can be made the one that most others wait for."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.outcome = Outcome()
        self._condition = threading.Condition()
        self._parts = {part.key: part for part in parts}
        self._missing = {
            part.key: {each.key for each in part.needs if each.key in self._parts} for part in parts
        }
        waiting = _depths(parts)
        order = {part.key: number for number, part in enumerate(parts)}
        self._rank = {key: (-waiting[key], order[key]) for key in order}
        self._ready: list[tuple[tuple[int, int], str]] = []
        self._open = len(parts)
        self._stopped = False
        for key, missing in self._missing.items():
            if not missing:
                heappush(self._ready, (self._rank[key], key))

    def take(self) -> Part | None:
        """Wait for a part that can be made; None where there will be none."""
        with self._condition:
            while not self._ready and self._open and not self._stopped:
                self._condition.wait()
            if self._stopped or not self._ready:
                return None
            return self._parts[heappop(self._ready)[1]]

    def put(self, done: Done, tell: Callable[[Done], None]) -> None:
        """Note what became of a part."""
        with self._condition:
            self._open -= 1
            if done.problem:
                self.outcome.failed.append(done)
                self._leave_out(done.part.key)
            else:
                self.outcome.made.append(done)
                for key, missing in self._missing.items():
                    if done.part.key in missing:
                        missing.remove(done.part.key)
                        if not missing:
                            heappush(self._ready, (self._rank[key], key))
            self._condition.notify_all()  # before anybody is told: that may fail
            tell(done)

    def tell(self, part: Part, tell: Callable[[Part], None]) -> None:
        """Say that a part is begun, while nobody else says anything."""
        with self._condition:
            tell(part)

    def stop(self) -> None:
        """Let nothing more be begun."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    @property
    def stopped(self) -> bool:
        """Whether it has ended before its time."""
        return self._stopped

    def _leave_out(self, failed: str) -> None:
        for key, missing in self._missing.items():
            if failed in missing and self._parts[key] not in self.outcome.left_out:
                self.outcome.left_out.append(self._parts[key])
                self._open -= 1
                self._leave_out(key)


class _Lane:
    """One process, and the thread that gives it work."""

    def __init__(
        self,
        board: _Board,
        store: Store,
        on_begun: Callable[[Part], None],
        on_done: Callable[[Done], None],
    ) -> None:
        self._board, self._store = board, store
        self._on_begun, self._on_done = on_begun, on_done
        self._pool: Pool | None = None

    def run(self) -> None:
        """Make parts until there are no more."""
        while (part := self._board.take()) is not None:
            self._board.tell(part, self._on_begun)
            begun = time.perf_counter()
            problem = self._make(part)
            if self._board.stopped:
                return
            done = Done(part, time.perf_counter() - begun, problem)
            self._board.put(done, self._on_done)

    def _make(self, part: Part) -> str:
        try:
            if self._pool is None:
                self._pool = Pool(1, workshop, {"store": self._store})
            answer: str = self._pool.do([part])[0]
        except FedimmuneError as error:  # the process is gone, or cannot be started
            self.close()
            return str(error)
        except Exception as error:  # whatever it is, the other parts go on
            self.close()
            return f"{type(error).__name__}: {error}"
        return answer

    def close(self) -> None:
        """End the process."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with suppress(OSError, ValueError):
                pool.close()


class _Workshop:
    """Makes parts, one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def do(self, job: Any) -> str:
        """Make a part; says what went wrong, or nothing."""
        try:
            job.make(self._store)
        except FedimmuneError as error:
            return str(error)
        except OSError as error:
            return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
        return ""


def workshop(store: Store) -> _Workshop:
    """Make the workshop of a process."""
    torch.set_num_threads(1)
    return _Workshop(store)


def _depths(parts: Sequence[Part]) -> dict[str, int]:
    """Say how long a chain of others waits for each part."""
    depths = {part.key: 0 for part in parts}
    for part in reversed(parts):  # who needs comes after what is needed
        for each in part.needs:
            if each.key in depths:
                depths[each.key] = max(depths[each.key], depths[part.key] + 1)
    return depths


def _computed() -> float:
    """Processor seconds of processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system
