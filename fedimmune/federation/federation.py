"""Clients, a server's data, and a global model that goes round: the engine itself."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedimmune.errors import InputError, ParameterError
from fedimmune.federation.arena import Layout
from fedimmune.federation.pool import usable_cores
from fedimmune.federation.scenario import Scenario
from fedimmune.federation.seeds import generator, seeded
from fedimmune.federation.testing import PIECE, Counts
from fedimmune.federation.workbench import SERVER, Setup, TestJob, TrainJob
from fedimmune.federation.workers import Crew, Here, Processes
from fedimmune.layers import Kind, Layer, layers_of
from fedimmune.records import ClientData
from fedimmune.tasks import Data, Task, build_model
from fedimmune.updates import Updates

__all__ = ["Federation", "Sent", "check_device", "set_aside"]

_log = logging.getLogger("fedimmune")

OnDone = Callable[[int, int], None]
"""Is told how many jobs of how many are done."""

_FEW_SAMPLES = 100_000
"""Below that many sample visits, starting processes takes longer than the work."""


@dataclass(frozen=True)
class Sent:
    """What came from the clients in one round.

    Parameters
    ----------
    updates
        Of those that sent one; views of memory that the next round writes to.
    failed
        Why the others sent nothing, by client.
    without_anchor
        Why there is no update of the server's own, where one was asked for and there is none.
    """

    updates: Updates
    failed: Mapping[int, str]
    without_anchor: str | None = None


class Federation:
    """A server, its clients, and the global model.

    Parameters
    ----------
    scenario
        What is simulated.
    task, data
        Of the scenario.
    workers
        How many processes train and test; 1 is this one alone, None decides by the work there is.
        Of no influence on any result.
    """

    def __init__(
        self, scenario: Scenario, task: Task, data: Data, workers: int | None = None
    ) -> None:
        attack = scenario.make_attack()
        attack.check(data.facts)
        check_device(scenario.device)
        self.scenario, self.data = scenario, data
        self.parts = scenario.make_partition().divide(
            data.clients.labels, scenario.clients, generator(scenario.seed, "partition")
        )
        chosen = torch.randperm(scenario.clients, generator=generator(scenario.seed, "attackers"))
        self.attackers = frozenset(chosen[: scenario.attackers].tolist())
        self._warn_of_empty_clients()
        with seeded(scenario.seed, "model"):
            first = build_model(task, data).state_dict()
        self.anchor, self.tested = set_aside(len(data.server), scenario.anchor)
        setup = Setup(scenario, task, attack, self.parts, self.attackers, self.anchor, self.tested)
        layout = Layout(first)
        momenta = scenario.clients if scenario.optimiser.carried else 0
        rows = (len(self.participants(1)) + 1, momenta)  # the last update is the server's
        count = _usual_workers(scenario, data) if workers is None else workers
        self._crew: Crew = (
            Here(setup, data, layout, rows)
            if count == 1
            else Processes(count, setup, data, layout, rows)
        )
        self.move(first)

    @property
    def global_model(self) -> Mapping[str, Tensor]:
        """The global model's state; not to be written to."""
        return self._crew.arena.global_model

    def move(self, model: Mapping[str, Tensor]) -> None:
        """Make this the global model."""
        for name, tensor in self._crew.arena.global_model.items():
            tensor.copy_(model[name])

    @property
    def carried(self) -> dict[str, Tensor]:
        """What clients go on with in the next round, by client and layer; not to be written to."""
        return {
            f"{client}/{name}": tensor
            for client, row in enumerate(self._crew.arena.momenta)
            for name, tensor in row.items()
        }

    def carry_on(self, carried: Mapping[str, Tensor]) -> None:
        """Let clients go on with what `carried` once gave."""
        for name, tensor in self.carried.items():
            tensor.copy_(carried[name])

    def trained_layers(self) -> list[Layer]:
        """Give the layers that rules measure."""
        layers = layers_of(self.global_model)
        return [layer for layer in layers if layer.kind is Kind.PARAMETER]

    def participants(self, round_number: int) -> list[int]:
        """Who takes part in a round: those who have data, or a share of them drawn by the seed."""
        able = [client for client, part in enumerate(self.parts) if len(part)]
        count = max(1, round(self.scenario.participation * len(able)))
        if count == len(able):
            return able
        random = generator(self.scenario.seed, "participants", round_number)
        return sorted(able[i] for i in torch.randperm(len(able), generator=random)[:count])

    def train(self, round_number: int, on_done: OnDone, *, with_anchor: bool = False) -> Sent:
        """Let the clients of a round train, each from the global model.

        Parameters
        ----------
        round_number
            Which round.
        on_done
            Is told how far it is.
        with_anchor
            Let the server train too, on its anchor samples, and give its update with the clients'.
        """
        clients = self.participants(round_number)
        jobs = [TrainJob(round_number, client, row) for row, client in enumerate(clients)]
        jobs.sort(key=lambda job: -len(self.parts[job.client]))  # so that no worker is left waiting
        if with_anchor:
            self._require_anchor()
            jobs.append(TrainJob(round_number, SERVER, len(self._crew.arena.updates) - 1))
        answers = self._do(jobs, on_done)
        problems = {job.client: problem for job, problem in zip(jobs, answers, strict=True)}
        failed = {client: problems[client] for client in clients if problems[client] is not None}
        updates = {
            client: self._crew.arena.updates[row]
            for row, client in enumerate(clients)
            if client not in failed
        }
        samples = {client: float(len(self.parts[client])) for client in updates}
        made = Updates.from_states(updates, samples=samples)
        if not with_anchor:
            return Sent(made, failed)
        if problems[SERVER] is not None:
            return Sent(made, failed, f"the server's own training failed: {problems[SERVER]}")
        try:
            return Sent(made.with_anchor(self._crew.arena.updates[-1]), failed)
        except InputError as error:
            return Sent(made, failed, str(error))

    def test(self, on_done: OnDone) -> Counts:
        """Test the global model on the server's samples that are not set aside."""
        jobs = [TestJob(start) for start in range(0, len(self.tested), PIECE)]
        return sum(self._do(jobs, on_done), Counts())

    def partition(self) -> tuple[ClientData, ...]:
        """Say who has how many samples of which class."""
        labels, classes = self.data.clients.labels, self.data.classes
        return tuple(
            ClientData(
                client=str(client),
                is_attacker=client in self.attackers,
                samples=tuple(labels[part].bincount(minlength=classes).tolist()),
            )
            for client, part in enumerate(self.parts)
        )

    def fingerprint(self) -> str:
        """Digest what the scenario does not hold: the data's content, and the global model.

        To be taken before the first round.
        """
        digest = hashlib.sha256()
        for samples in (self.data.clients, self.data.server):
            every = max(1, len(samples) // 100)
            for tensor in (samples.labels, samples.inputs[::every]):
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(_bytes(tensor))
        for name, tensor in self.global_model.items():
            digest.update(name.encode())
            digest.update(_bytes(tensor))
        return digest.hexdigest()[:16]

    def close(self) -> None:
        """Let the workers go."""
        self._crew.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, jobs: list[TrainJob] | list[TestJob], on_done: OnDone) -> list[Any]:
        done = 0

        def one_more() -> None:
            nonlocal done
            done += 1
            on_done(done, len(jobs))

        return self._crew.do(jobs, one_more)

    def _require_anchor(self) -> None:
        if not len(self.anchor):
            raise ParameterError(
                "the rule compares clients with the server's own update, and no samples are set "
                "aside for it: set the scenario's `anchor` to a few hundred"
            )

    def _warn_of_empty_clients(self) -> None:
        empty = sum(not len(part) for part in self.parts)
        if empty:
            _log.warning(
                "%d of %d clients have no data and take no part: there are %d samples",
                empty,
                len(self.parts),
                len(self.data.clients),
            )


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def set_aside(samples: int, anchor: int) -> tuple[Tensor, Tensor]:
    """Part the server's samples: for its own update, and for testing; the same in all scenarios."""
    if anchor >= samples:
        raise ParameterError(
            f"{anchor} of the server's {samples} samples cannot be set aside as an anchor: "
            "none would be left to test on"
        )
    order = torch.randperm(samples, generator=generator(0, "anchor"))
    return order[:anchor].sort().values, order[anchor:].sort().values


def check_device(device: str) -> None:
    """See whether there is such a device.

    Raises
    ------
    InputError
        There is none.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"cannot compute on device {device!r} here: {first}") from error


def _usual_workers(scenario: Scenario, data: Data) -> int:
    visits = len(data.clients) * scenario.local_epochs * scenario.rounds
    if visits < _FEW_SAMPLES or scenario.device != "cpu":
        return 1
    return min(usable_cores(), scenario.clients)
