"""One pair of hands: a model to train and test with, and the jobs that it is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedimmune.attacks import Attack, Context
from fedimmune.attacks.none import NoAttack
from fedimmune.federation.arena import Arena
from fedimmune.federation.client import train_client, write_update
from fedimmune.federation.scenario import ResolvedScenario
from fedimmune.federation.seeds import generator
from fedimmune.federation.testing import PIECE, Counts, test_piece
from fedimmune.tasks import Data, Facts, Task
from fedimmune.threads import computing_with

__all__ = ["SERVER", "Job", "Setup", "TestJob", "TrainJob", "Workbench"]


@dataclass(frozen=True)
class TrainJob:
    """Train one client, or the server, on the global model of the arena; the update goes there too.

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
"""The server's number where clients have theirs: it trains on its anchor samples."""


@dataclass(frozen=True)
class Setup:
    """What stays the same in all rounds, besides the data.

    Parameters
    ----------
    scenario
        What is simulated.
    task, attack
        Of the scenario; workers get them as they are, for only this process may know their names.
    parts
        Numbers of each client's samples.
    attackers
        Which clients attack.
    anchor, tested
        Numbers of the server's samples that it trains on itself, and that models are tested on.
    """

    scenario: ResolvedScenario
    task: Task
    attack: Attack
    parts: list[Tensor]
    attackers: frozenset[int]
    anchor: Tensor
    tested: Tensor

    def context(self, spec: Facts, arena: Arena, round_number: int, *client: int) -> Context:
        """Return what the attack is told, as one client or as all attackers together."""
        # The last of what is carried from round to round is the model of the round before.
        has_previous = self.attack.needs_previous_model and round_number > 1
        return Context(
            spec,
            round_number,
            arena.global_model,
            generator(self.scenario.seed, "attack", round_number, *client),
            arena.momenta[-1] if has_previous else None,
        )


class Workbench:
    """Carries out jobs, one at a time.

    Parameters
    ----------
    setup
        What stays the same in all rounds.
    data
        Of the task.
    arena
        Where the global model is and updates go.
    """

    def __init__(self, setup: Setup, data: Data, arena: Arena) -> None:
        self._setup, self._data, self._arena = setup, data, arena
        self._device = torch.device(setup.scenario.device)
        with torch.random.fork_rng():  # its first weights are never used
            model = setup.task.model(data).to(self._device)
        # Convolutions on a CPU are a third quicker with the channels last.
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._facts = data.facts

    def do(self, job: Job) -> str | Counts | None:
        """Carry out a job."""
        with computing_with(1):
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
        context = setup.context(self._facts, self._arena, job.round_number, job.client)
        # The server's own update is not a client's: it always starts afresh.
        carries = setup.scenario.optimiser.carried and job.client != SERVER
        try:
            train_client(
                self._model,
                setup.task,
                self._data.server if job.client == SERVER else self._data.clients,
                setup.anchor if job.client == SERVER else setup.parts[job.client],
                setup.scenario,
                client=job.client,
                attack=attack,
                context=context,
                momentum=self._arena.momenta[job.client] if carries else None,
            )
            update = self._arena.updates[job.row]
            write_update(self._model, self._arena.global_model, update)
            attack.on_update(update, context)
        except Exception as error:  # whatever a user's model may raise: the others go on
            return f"{type(error).__name__}: {error}"
        return None
