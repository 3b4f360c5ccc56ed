"""Jobs done by several processes at once: what is needed first, what takes longest before the rest.

Each process has one thread and does one job at a time. A job that fails takes along those that need
it, and no others; so does one whose process dies.
"""

from __future__ import annotations

import heapq
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedimmune.errors import FedimmuneError
from reproduction.jobs import Job, Store

__all__ = ["Ended", "Outcome", "Plan", "closure", "execute", "plan_jobs"]


@dataclass(frozen=True)
class Plan:
    """Jobs to be done, what is needed before what needs it, and the number of jobs done already."""

    jobs: tuple[Job, ...]
    done: int

    @property
    def seconds(self) -> float:
        """About how long one core takes."""
        return sum(job.seconds for job in self.jobs)


@dataclass(frozen=True)
class Ended:
    """A job that has ended, how long it took, and why it failed, if it did."""

    job: Job
    seconds: float
    problem: str = ""


@dataclass
class Outcome:
    """What became of a plan.

    Parameters
    ----------
    done, failed
        Jobs that ended.
    left_out
        Jobs that need one that failed.
    seconds
        How long it all took.
    busy
        Share of that time in which the processes computed, from 0 to 1.
    """

    done: list[Ended] = field(default_factory=list)
    failed: list[Ended] = field(default_factory=list)
    left_out: list[Job] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0


def closure(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs and everything they need, each once, what is needed before what needs it."""
    found: dict[str, Job] = {}

    def add(job: Job) -> None:
        if job.key in found:
            found[job.key] = found[job.key].merged(job)
            return
        for each in job.needs:
            add(each)
        found[job.key] = job

    for job in jobs:
        add(job)
    return list(found.values())


def plan_jobs(wanted: Sequence[Job], store: Store) -> Plan:
    """Find out what is missing. What a finished job needed is not."""
    every = closure(wanted)
    missing = {job.key: job for job in every if not job.is_done(store)}
    needed = {job.key for job in wanted} & missing.keys()
    for job in reversed(every):  # what needs comes after what is needed
        if job.key in needed:
            needed |= {each.key for each in job.needs} & missing.keys()
    jobs = tuple(job for key, job in missing.items() if key in needed)
    return Plan(jobs, len(every) - len(jobs))


def execute(
    plan: Plan,
    store: Store,
    *,
    workers: int,
    on_start: Callable[[Job], None] = lambda _: None,
    on_end: Callable[[Ended], None] = lambda _: None,
) -> Outcome:
    """Do the jobs of a plan in that many processes; the callbacks are called for each job."""
    jobs = {job.key: job for job in plan.jobs}
    sorter = TopologicalSorter(
        {key: [each.key for each in job.needs if each.key in jobs] for key, job in jobs.items()}
    )
    sorter.prepare()
    chains = _chains(plan.jobs)
    ready: list[tuple[float, int, str]] = []
    order = {key: number for number, key in enumerate(jobs)}
    outcome, started, computed = Outcome(), time.perf_counter(), 0.0
    with _processes(store) as processes:
        while True:
            for key in sorter.get_ready():
                heapq.heappush(ready, (-chains[key], order[key], key))
            while ready and len(processes.running) < workers:
                job = jobs.pop(heapq.heappop(ready)[2])
                on_start(job)
                processes.start(job)
            if not processes.running:
                break
            for ended, seconds in processes.finished():
                computed += seconds
                if ended.problem:  # never reported to the sorter: what needs it is never ready
                    outcome.failed.append(ended)
                else:
                    outcome.done.append(ended)
                    sorter.done(ended.job.key)
                on_end(ended)
    outcome.left_out = list(jobs.values())
    outcome.seconds = time.perf_counter() - started
    count = min(workers, max(1, len(plan.jobs)))
    outcome.busy = computed / (outcome.seconds * count) if outcome.seconds else 0.0
    return outcome


def _chains(jobs: Sequence[Job]) -> dict[str, float]:
    """Return the seconds of the longest chain of jobs that begins with each."""
    after: dict[str, float] = {}
    for job in reversed(jobs):  # what needs comes after what is needed
        after[job.key] = after.get(job.key, 0.0) + job.seconds
        for each in job.needs:
            after[each.key] = max(after.get(each.key, 0.0), after[job.key])
    return after


class _Processes:
    """Processes that do one job at a time; one that dies is replaced."""

    def __init__(self, store: Store) -> None:
        # Forked by a server of one thread that has imported everything, so that they start at once.
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        self._context.set_forkserver_preload(["reproduction.jobs"])
        self._store = store
        self._idle: list[tuple[Any, Connection]] = []
        self.running: dict[Connection, tuple[Any, Job, float]] = {}

    def start(self, job: Job) -> None:
        """Hand a job to a process that has none."""
        process, pipe = self._idle.pop() if self._idle else self._new()
        self.running[pipe] = (process, job, time.perf_counter())
        with suppress(OSError):  # it has died meanwhile, which `finished` reports
            pipe.send(job)

    def _new(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(self._store, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process ends the pipe
        return process, ours

    def finished(self) -> Iterator[tuple[Ended, float]]:
        """Wait for jobs to end; with each goes how long its process computed."""
        for pipe in wait(list(self.running)):
            assert isinstance(pipe, Connection)
            process, job, started = self.running.pop(pipe)
            try:
                problem, computed = pipe.recv()
                self._idle.append((process, pipe))
            except (EOFError, OSError):
                process.join()
                problem, computed = f"its process ended by itself (exit code {process.exitcode})", 0
            yield Ended(job, time.perf_counter() - started, problem), computed

    def stop(self) -> None:
        """End all processes: every result is written whole, or can be continued."""
        processes = [process for process, _ in self._idle]
        processes += [process for process, _, _ in self.running.values()]
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


@contextmanager
def _processes(store: Store) -> Iterator[_Processes]:
    processes = _Processes(store)
    try:
        yield processes
    finally:
        processes.stop()


def _work(store: Store, pipe: Connection) -> None:
    """Do jobs in a process, and report what went wrong, if anything did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to heed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        job = pipe.recv()
        problem, started = "", time.process_time()
        try:
            job.run(store)
        except FedimmuneError as error:
            problem = str(error)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            problem = f"{error.strerror or error}{where}"
        except Exception as error:  # whatever it is, the other jobs continue
            problem = f"{type(error).__name__}: {error}"
        pipe.send((problem, time.process_time() - started))


def _end_with_parent() -> None:
    """Let nobody write into the folder once the main process was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
