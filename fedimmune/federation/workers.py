"""Who trains and tests: worker processes that share data and models, or this very process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedimmune.federation.arena import Arena, Layout
from fedimmune.federation.pool import Pool
from fedimmune.federation.scenario import Scenario
from fedimmune.federation.unnamed import UnnamedFile
from fedimmune.federation.workbench import Job, Setup, Workbench
from fedimmune.tasks import Data, Task
from fedimmune.tasks.prepared import data_bytes, read_data

__all__ = ["Crew", "Here", "Processes", "shared_data"]


class Crew(Protocol):
    """Carries out jobs."""

    arena: Arena

    def do(self, jobs: Sequence[Job], on_done: Callable[[], None]) -> list[Any]:
        """Carry out jobs and give their answers in the jobs' order."""

    def close(self) -> None:
        """Let the workers go."""


class Here:
    """No worker: the calling process does the work itself."""

    def __init__(self, setup: Setup, layout: Layout, rows: int) -> None:
        self.arena = Arena(layout, rows)
        self._bench = Workbench(setup, self.arena)

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

    def __init__(self, count: int, setup: Setup, layout: Layout, rows: int) -> None:
        with (
            UnnamedFile(Arena.bytes_for(layout, rows)) as memory,
            shared_data(setup.data) as data,
        ):
            self.arena = Arena(layout, rows, memory.path)
            self._pool = Pool(
                count,
                _bench,
                {
                    "scenario": setup.scenario.model_dump(),
                    "task": setup.task,
                    "data": data,
                    "parts": setup.parts,
                    "attackers": setup.attackers,
                    "anchor": setup.anchor,
                    "tested": setup.tested,
                    "layout": layout,
                    "rows": rows,
                    "arena": memory.path,
                },
            )

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


def _bench(
    scenario: dict[str, Any],
    task: Task,
    data: Path,
    parts: list[Tensor],
    attackers: frozenset[int],
    anchor: Tensor,
    tested: Tensor,
    layout: Layout,
    rows: int,
    arena: Path,
) -> Workbench:
    """Make the workbench of a worker process."""
    torch.set_num_threads(1)
    setup = Setup(Scenario(**scenario), task, read_data(data), parts, attackers, anchor, tested)
    return Workbench(setup, Arena(layout, rows, arena))
