"""Who trains and tests: this process, or worker processes that share data and models."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from fedimmune.attacks import Attack, Context
from fedimmune.attacks.none import NoAttack
from fedimmune.errors import FedimmuneError, InputError
from fedimmune.kernels import num_threads
from fedimmune.simulation.client import PIECE, Counts, test_piece, train_client, write_update
from fedimmune.simulation.components import Work
from fedimmune.simulation.scenario import ResolvedScenario
from fedimmune.simulation.seeding import generator
from fedimmune.simulation.shared_memory import Arena, Layout, UnnamedFile
from fedimmune.tasks import Data, DataSpec, Task
from fedimmune.tasks.data import data_bytes, read_data

__all__ = [
    "SERVER",
    "ClientRunner",
    "Executor",
    "Job",
    "JobRunner",
    "Pool",
    "Rows",
    "Setup",
    "TestJob",
    "TrainJob",
    "WorkerError",
    "shared_data",
    "usable_cores",
]


@dataclass(frozen=True)
class TrainJob:
    """Train one client, or the server, from the arena's global model; its update goes to a row.

    The answer is None, or what went wrong.
    """

    round_number: int
    client: int
    row: int


@dataclass(frozen=True)
class TestJob:
    """Test the global model of the arena on one piece of the test samples."""

    __test__ = False

    start: int


Job = TrainJob | TestJob

SERVER = -1
"""The server's number among clients: it trains on its anchor samples."""


@dataclass(frozen=True)
class Setup:
    """What stays the same in all rounds, besides the data.

    Parameters
    ----------
    scenario
        What is simulated.
    task, attack
        Of the scenario; made here, because only this process may know their names.
    parts
        Numbers of each client's samples.
    attackers
        Which clients attack.
    anchor, tested
        Numbers of the server's samples that it trains on itself, and that models are tested on.
    works
        What each client does otherwise; empty if all do the same.
    """

    scenario: ResolvedScenario
    task: Task
    attack: Attack
    parts: list[Tensor]
    attackers: frozenset[int]
    anchor: Tensor
    tested: Tensor
    works: Sequence[Work] = ()

    def context(self, spec: DataSpec, arena: Arena, round_number: int, *client: int) -> Context:
        """Return the attack's context, as one client or as all attackers together."""
        # The last of what is carried from round to round is the model of the round before.
        has_previous = self.attack.needs_previous_model and round_number > 1
        return Context(
            spec,
            round_number,
            arena.global_model,
            generator(self.scenario.seed, "attack", round_number, *client),
            arena.momenta[-1] if has_previous else None,
            clients=self.scenario.clients,
            attackers=len(self.attackers),
            attacker=sum(each < client[0] for each in self.attackers) if client else 0,
        )


class ClientRunner:
    """Carries out jobs, one at a time: reads the global model from the arena, and writes there."""

    def __init__(self, setup: Setup, data: Data, arena: Arena) -> None:
        self._setup, self._data, self._arena = setup, data, arena
        self._device = torch.device(setup.scenario.device)
        with torch.random.fork_rng():  # its first weights are never used
            model = setup.task.model(data).to(self._device)
        # Convolutions on a CPU are a third quicker with the channels last.
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._facts = data.spec

    def do(self, job: Job) -> str | Counts | None:
        """Carry out a job."""
        with num_threads(1):
            self._model.load_state_dict(self._arena.global_model)
            if isinstance(job, TrainJob):
                return self._train(job)
            return test_piece(
                self._model,
                self._setup.task,
                self._data.server,
                self._setup.tested[job.start : job.start + PIECE],
                self._setup.attack,
                self._facts,
                self._device,
            )

    def _train(self, job: TrainJob) -> str | None:
        setup = self._setup
        attack = setup.attack if job.client in setup.attackers else NoAttack()
        samples = self._data.server if job.client == SERVER else self._data.clients
        indices = setup.anchor if job.client == SERVER else setup.parts[job.client]
        context = replace(
            setup.context(self._facts, self._arena, job.round_number, job.client),
            samples=cache(lambda: samples.only(indices)),
        )
        # The server always starts afresh.
        carries = setup.scenario.optimizer.carried and job.client != SERVER
        work = setup.works[job.client] if setup.works and job.client != SERVER else Work()
        try:
            train_client(
                self._model,
                setup.task,
                samples,
                indices,
                setup.scenario.as_done_by(work),
                client=job.client,
                attack=attack,
                context=context,
                momentum=self._arena.momenta[job.client] if carries else None,
                odd=work.odd,
            )
            update = self._arena.updates[job.row]
            write_update(self._model, self._arena.global_model, update)
            attack.on_update(update, context)
        except Exception as error:  # a user's model may raise anything: the others continue
            return f"{type(error).__name__}: {error}"
        return None


class WorkerError(FedimmuneError):
    """A worker process has ended; what was finished before is safe."""


class JobRunner(Protocol):
    """What carries out the jobs of a worker process."""

    def do(self, job: Any) -> Any:
        """Carry out a job."""


class Pool:
    """Several processes that share the work; each takes the next job when it is free.

    Parameters
    ----------
    count
        How many.
    make
        Called in each process with `arguments`; returns the `JobRunner` that does its jobs. The
        processes import it from its module.
    arguments
        For `make`.
    """

    def __init__(
        self, count: int, make: Callable[..., JobRunner], arguments: Mapping[str, Any]
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
        """Carry out jobs and return their answers in order.

        `on_done` is called with each job's number and answer as it is done, from several threads.
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
                while not left.empty():  # the others finish their present job
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
            [sys.executable, "-P", "-m", "fedimmune.simulation._worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the master, which then ends them
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
            "The same command resumes after what is finished"
        )

    def stop(self) -> None:
        """Abort its present job."""
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
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _packed(make: Callable[..., JobRunner], arguments: Mapping[str, Any]) -> bytes:
    problem: object = "it is defined in the script itself"
    try:
        packed = pickle.dumps((make, dict(arguments)))
        if b"__main__" not in packed:
            return packed
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = error
    raise InputError(
        f"the task cannot be sent to worker processes ({problem}): define it in a module "
        "that can be imported, or use workers=1"
    )


Rows = tuple[int, int]
"""Numbers of rows for updates and for momenta."""


class Executor:
    """Carries out jobs: in worker processes that map the same data and arena, or in this one.

    Parameters
    ----------
    workers
        How many processes; 1 is this one.
    setup, data
        What stays the same in all rounds.
    layout, rows
        Of the arena.
    """

    def __init__(self, workers: int, setup: Setup, data: Data, layout: Layout, rows: Rows) -> None:
        self._pool: Pool | None = None
        if workers == 1:
            self.arena = Arena(layout, *rows)
            self._runner = ClientRunner(setup, data, self.arena)
            return
        with UnnamedFile(Arena.bytes_for(layout, *rows)) as memory, shared_data(data) as file:
            self.arena = Arena(layout, *rows, memory.path)
            shared = {"layout": layout, "rows": rows, "arena": memory.path, "data": file}
            self._pool = Pool(workers, _client_runner, {"setup": setup, **shared})

    def do(self, jobs: Sequence[Job], on_done: Callable[[], None]) -> list[Any]:
        """Carry out jobs and return their answers in order."""
        if self._pool is not None:
            return self._pool.do(jobs, lambda *_: on_done())
        answers = []
        for job in jobs:
            answers.append(self._runner.do(job))
            on_done()
        return answers

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()


@contextmanager
def shared_data(data: Data) -> Iterator[Path]:
    """Yield the file that other processes map a data set from: its prepared one, or an unnamed."""
    if data.file is not None:
        yield data.file
        return
    packed = data_bytes(data)
    with UnnamedFile(len(packed)) as file:
        file.write(packed)
        yield file.path


def _client_runner(
    setup: Setup, layout: Layout, rows: Rows, arena: Path, data: Path
) -> ClientRunner:
    torch.set_num_threads(1)
    return ClientRunner(setup, read_data(data), Arena(layout, *rows, arena))
