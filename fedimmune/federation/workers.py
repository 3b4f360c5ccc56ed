"""Who trains and tests: worker processes that share data and models, or this very process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from fedimmune.federation.arena import Arena, Layout
from fedimmune.federation.pool import Pool
from fedimmune.federation.unnamed import UnnamedFile
from fedimmune.federation.workbench import Job, Setup, Workbench
from fedimmune.tasks import Data
from fedimmune.tasks.prepared import data_bytes, read_data

__all__ = ["Crew", "Here", "Processes", "Rows", "shared_data"]

Rows = tuple[int, int]
"""How many there are for updates and for momenta."""


class Crew(Protocol):
    """Carries out jobs."""

    arena: Arena

    def do(self, jobs: Sequence[Job], on_done: Callable[[], None]) -> list[Any]:
        """Carry out jobs and give their answers in the jobs' order."""

    def close(self) -> None:
        """Let the workers go."""


class Here:
    """No worker: the calling process does the work itself."""

    def __init__(self, setup: Setup, data: Data, layout: Layout, rows: Rows) -> None:
        self.arena = Arena(layout, *rows)
        self._bench = Workbench(setup, data, self.arena)

    def do(self, jobs: Sequence[Job], on_done: Callable[[], None]) -> list[Any]:
        answers = []
        for job in jobs:
            answers.append(self._bench.do(job))
            on_done()
        return answers

    def close(self) -> None:
        pass


class Processes:
    """Worker processes that map the same data and the same arena."""

    def __init__(self, count: int, setup: Setup, data: Data, layout: Layout, rows: Rows) -> None:
        with (
            UnnamedFile(Arena.bytes_for(layout, *rows)) as memory,
            shared_data(data) as file,
        ):
            self.arena = Arena(layout, *rows, memory.path)
            shared = {"layout": layout, "rows": rows, "arena": memory.path, "data": file}
            self._pool = Pool(count, _bench, {"setup": setup, **shared})

    def do(self, jobs: Sequence[Job], on_done: Callable[[], None]) -> list[Any]:
        return self._pool.do(jobs, lambda *_: on_done())

    def close(self) -> None:
        self._pool.close()


@contextmanager
def shared_data(data: Data) -> Iterator[Path]:
    """Give the file that other processes map a data set from: its prepared one, or an unnamed."""
    if data.file is not None:
        yield data.file
        return
    packed = data_bytes(data)
    with UnnamedFile(len(packed)) as file:
        file.write(packed)
        yield file.path


def _bench(setup: Setup, layout: Layout, rows: Rows, arena: Path, data: Path) -> Workbench:
    """Make the workbench of a worker process."""
    torch.set_num_threads(1)
    return Workbench(setup, read_data(data), Arena(layout, *rows, arena))
