"""Workers: processes of one thread each that carry out jobs, or this very process.

Workers are started as commands of their own rather than forked, so that they work wherever
`simulate` is called from: a script without a main guard, a notebook, a process with threads. Data
and models lie in mapped files; only jobs and their small answers go through pipes.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from fedimmune.errors import FedimmuneError, InputError
from fedimmune.federation.arena import Arena, Layout
from fedimmune.federation.scenario import Scenario
from fedimmune.federation.workbench import Job, Setup, Workbench
from fedimmune.tasks.prepared import read_data, write_data

__all__ = ["Crew", "Here", "Processes", "WorkerError", "serve"]


class WorkerError(FedimmuneError):
    """A worker process has gone; what was finished before is safe."""


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
    """Several processes share the work; each takes the next job when it is free."""

    def __init__(self, count: int, setup: Setup, layout: Layout, rows: int) -> None:
        self.arena = Arena.shared(layout, rows)
        self._workers: list[_Worker] = []
        own_file = None
        try:
            file = setup.data.file
            if file is None:
                handle, name = tempfile.mkstemp(prefix="fedimmune-", suffix=".safetensors")
                os.close(handle)
                file = own_file = Path(name)
                write_data(setup.data, own_file)
            kit = _packed(
                scenario=setup.scenario.model_dump(),
                task=setup.task,
                data=file,
                parts=setup.parts,
                attackers=setup.attackers,
                tested=setup.tested,
                layout=layout,
                rows=rows,
                arena=self.arena.file,
            )
            self._workers = [_Worker() for _ in range(count)]
            for worker in self._workers:
                worker.send_bytes(kit)
            for worker in self._workers:
                worker.receive()  # it has mapped the files
        except BaseException:
            self.close()
            raise
        finally:
            self.arena.forget_file()
            if own_file is not None:
                own_file.unlink(missing_ok=True)

    def do(self, jobs: Sequence[Job], on_done: Callable[[], None]) -> list[Any]:
        answers: list[Any] = [None] * len(jobs)
        left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(jobs)):
            left.put(number)

        def work(worker: _Worker) -> None:
            while True:
                try:
                    number = left.get_nowait()
                except queue.Empty:
                    return
                worker.send(jobs[number])
                answers[number] = worker.receive()
                on_done()

        with ThreadPoolExecutor(len(self._workers)) as threads:
            for future in [threads.submit(work, worker) for worker in self._workers]:
                future.result()
        return answers

    def close(self) -> None:
        for worker in self._workers:
            worker.end()


class _Worker:
    """One process, seen from the one that gives it work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedimmune.federation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def send(self, message: object) -> None:
        self.send_bytes(pickle.dumps(message))

    def send_bytes(self, packed: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(packed)
            self._process.stdin.flush()
        except OSError:
            self._gone()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            self._gone()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _gone(self) -> None:
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise WorkerError(
            f"a worker process ended ({how}); was there enough memory? "
            "The same command goes on from the last finished round"
        )

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()  # it ends when there is nothing more to read
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()


def _packed(**kit: Any) -> bytes:
    try:
        packed = pickle.dumps(kit)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        packed = b""
        problem: object = error
    else:
        problem = "it is defined in the script itself" if b"__main__" in packed else None
    if problem:
        raise InputError(
            f"the task cannot be sent to worker processes ({problem}): define it in a module "
            "that can be imported, or use workers=1"
        )
    return packed


def serve(kit: dict[str, Any]) -> Workbench:
    """Make the workbench of a worker process out of what it was sent."""
    torch.set_num_threads(1)
    arena = Arena(kit["layout"], kit["rows"], kit["arena"])
    setup = Setup(
        Scenario(**kit["scenario"]),
        kit["task"],
        read_data(kit["data"]),
        kit["parts"],
        kit["attackers"],
        kit["tested"],
    )
    return Workbench(setup, arena)
