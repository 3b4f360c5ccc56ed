"""Processes that carry out jobs: one thread each, started as commands of their own.

Not forked, so that they work wherever they are started from: a script without a main guard, a
notebook, a process with threads. Only jobs and their small answers go through pipes.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, Self

from fedimmune.errors import FedimmuneError, InputError

__all__ = ["Hands", "Pool", "WorkerError", "usable_cores"]


class WorkerError(FedimmuneError):
    """A worker process has gone; what was finished before is safe."""


class Hands(Protocol):
    """What a worker process works with."""

    def do(self, job: Any) -> Any:
        """Carry out a job."""


class Pool:
    """Several processes that share the work; each takes the next job when it is free.

    Parameters
    ----------
    count
        How many.
    make
        Called in each process with `arguments`, gives the `Hands` that do its jobs. A function of
        a module, which the processes import.
    arguments
        For `make`.
    """

    def __init__(
        self, count: int, make: Callable[..., Hands], arguments: Mapping[str, Any]
    ) -> None:
        packed = _packed(make, arguments)
        self._workers = [_Worker() for _ in range(count)]
        try:
            for worker in self._workers:
                worker.send_bytes(packed)
            for worker in self._workers:
                worker.receive()  # it is ready
        except BaseException:
            self.close()
            raise

    def do(
        self, jobs: Sequence[Any], on_done: Callable[[int, Any], None] = lambda *_: None
    ) -> list[Any]:
        """Carry out jobs and give their answers in the jobs' order.

        Parameters
        ----------
        jobs
            What to do.
        on_done
            Is told each job's number and answer as it is done, from several threads.
        """
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
                on_done(number, answers[number])

        with ThreadPoolExecutor(len(self._workers)) as threads:
            try:
                futures = [threads.submit(work, worker) for worker in self._workers]
                for future in futures:
                    future.result()
            except BaseException as stop:
                while not left.empty():  # the others finish what they have in hand
                    with suppress(queue.Empty):
                        left.get_nowait()
                if not isinstance(stop, Exception):  # but Ctrl-C does not wait for that
                    for worker in self._workers:
                        worker.stop()
                raise
        return answers

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """One process, seen from the one that gives it work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # With -P, modules are found where the master finds them, and not in the current folder.
            [sys.executable, "-P", "-m", "fedimmune.federation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the master, who then ends them
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
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
            "The same command goes on from what is finished"
        )

    def stop(self) -> None:
        """Let it drop what it has in hand."""
        self._process.terminate()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()  # it ends when there is nothing more to read
        self.stop()
        self._process.wait()
        self._process.stdout.close()


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _packed(make: Callable[..., Hands], arguments: Mapping[str, Any]) -> bytes:
    problem: object
    try:
        packed = pickle.dumps((make, dict(arguments)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = error
    else:
        if b"__main__" not in packed:
            return packed
        problem = "it is defined in the script itself"
    raise InputError(
        f"the task cannot be sent to worker processes ({problem}): define it in a module "
        "that can be imported, or use workers=1"
    )
