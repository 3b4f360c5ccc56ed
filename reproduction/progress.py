"""An experiment as it runs: what is in progress, how much is left, for how long."""

from __future__ import annotations

import threading
import time
from typing import Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from fedimmune.kernels import num_threads
from fedimmune.tasks.models.lenet import LeNet
from reproduction.jobs import Job, Store
from reproduction.schedule import Ended, Plan

__all__ = ["Monitor", "duration", "machine_factor"]

_REFERENCE = 1.1e-4
"""Seconds per sample on one idle core of the machine that `presets` was measured on."""
_LOOK = 2.0
"""Seconds between looks at what is in progress."""


def duration(seconds: float) -> str:
    """Write a duration with two units at most: 40 s, 5 min, 2 h 10 min, 3 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        hours, rest = divmod(round(seconds / 600) * 10, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{round(seconds / 86400)} days"


def machine_factor(batch: int = 128, steps: int = 4) -> float:
    """Train a LeNet for a moment: 2 means that everything takes twice as long here."""
    with num_threads(1):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = LeNet()
            images, labels = torch.randn(batch, 1, 32, 32), torch.randint(10, (batch,))
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5, fused=True)
        found = []
        for _ in range(4):
            started = time.thread_time()  # what else the machine is doing does not count
            for _ in range(steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(images), labels).backward()
                optimizer.step()
            found.append((time.thread_time() - started) / (steps * batch))
        return min(found[1:]) / _REFERENCE


class Monitor:
    """Shows jobs as they are done: a bar on a terminal, one line per job elsewhere."""

    def __init__(self, plan: Plan, store: Store, workers: int, notes: Console) -> None:
        self._plan, self._store, self._workers, self._notes = plan, store, workers, notes
        self._ended, self._done = 0, 0
        self._finished = 0.0  # in estimated seconds
        self._before = 0.0  # of these, what was there of jobs when they started
        self._dropped: set[str] = set()  # failed, or in need of what has
        self._running: dict[str, Job] = {}
        self._over = threading.Event()
        self._is_shown = notes.is_terminal and not notes.quiet
        self._bar = Progress(
            TextColumn("{task.fields[count]}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=notes if self._is_shown else Console(quiet=True),
            disable=not self._is_shown,
        )

    def __enter__(self) -> Self:
        total = len(self._plan.jobs)
        self._say(
            f"{self._plan.done} jobs are done already, {total} are left for "
            f"{min(self._workers, total)} processes"
        )
        self._started = time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task("", total=self._plan.seconds, count=f"0/{total}", left="")
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._bar.stop()

    def started(self, job: Job) -> None:
        """Take note of a job that starts."""
        self._before += job.seconds * job.progress(self._store)
        self._running[job.key] = job

    def ended(self, ended: Ended) -> None:
        """Take note of a job that ended."""
        self._running.pop(ended.job.key, None)
        self._ended += 1
        if ended.problem:
            self._drop(ended.job.key)
        else:
            self._done += 1
            self._finished += ended.job.seconds
        if not self._is_shown:
            what = f"failed: {ended.problem}" if ended.problem else duration(ended.seconds)
            left = f"; {self._left()}" if self._left() else ""
            self._say(f"[{self._ended}/{len(self._plan.jobs)}] {ended.job.title}: {what}{left}")
        self._show()

    def kept(self) -> str:
        """Describe what there is if it ends now."""
        total = len(self._plan.jobs)
        return f"{self._done} of {total} jobs are done; the same command resumes with the others"

    def _drop(self, failed: str) -> None:
        """No longer expect a job, or those that need it."""
        self._dropped.add(failed)
        for job in self._plan.jobs:
            if job.key not in self._dropped and any(each.key == failed for each in job.needs):
                self._drop(job.key)

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            self._show()

    def _show(self) -> None:
        if self._is_shown:
            self._bar.update(
                self._task,
                total=self._total(),
                completed=self._progress(),
                count=f"{self._ended}/{len(self._plan.jobs)}",
                left=self._left(),
                description=", ".join(job.title for job in list(self._running.values())),
            )

    def _total(self) -> float:
        return sum(job.seconds for job in self._plan.jobs if job.key not in self._dropped)

    def _progress(self) -> float:
        running = list(self._running.values())
        return self._finished + sum(job.seconds * job.progress(self._store) for job in running)

    def _left(self) -> str:
        """Estimate how much longer it takes, by how long it took so far."""
        done = self._progress()
        if done <= self._before:
            return ""
        rate = (time.monotonic() - self._started) / (done - self._before)
        return f"{duration(max(0.0, self._total() - done) * rate)} left"

    def _say(self, line: str) -> None:
        self._notes.print(line, markup=False, highlight=False, soft_wrap=True)
