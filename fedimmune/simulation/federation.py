"""The federation: clients, the server's data, and the global model."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from fedimmune._layers import Kind, Layer, layers_of
from fedimmune.errors import InputError, ParameterError
from fedimmune.rules import Rule
from fedimmune.runs.records import ClientData
from fedimmune.simulation.client import PIECE, Counts
from fedimmune.simulation.components import Work
from fedimmune.simulation.scenario import ResolvedScenario, Scenario
from fedimmune.simulation.seeding import generator, seeded
from fedimmune.simulation.shared_memory import Layout
from fedimmune.simulation.workers import (
    SERVER,
    Executor,
    Setup,
    TestJob,
    TrainJob,
    usable_cores,
)
from fedimmune.tasks import Data, DataSpec, Task, build_model
from fedimmune.updates import Updates

__all__ = ["SUPPLIED", "Federation", "RoundUpdates", "check_device", "set_aside"]

_log = logging.getLogger("fedimmune")

OnDone = Callable[[int, int], None]
"""Called with how many jobs of how many are done."""

SUPPLIED = frozenset({"anchor", "model", "server_loss"})
"""What a federation can supply besides the updates."""

_FEW_SAMPLES = 100_000
"""Below this many sample visits, starting processes takes longer than the work."""


@dataclass(frozen=True)
class RoundUpdates:
    """What the clients sent in one round.

    Parameters
    ----------
    updates
        Of those that sent one; views of memory that the next round writes to.
    failed
        Why the others sent nothing, by client.
    without_anchor
        Why an update of the server's own was asked for and is missing.
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
        How many processes train and test; 1 is this one, None decides by the amount of work. It
        changes no result.
    """

    def __init__(
        self, scenario: Scenario, task: Task, data: Data, workers: int | None = None
    ) -> None:
        scenario = scenario.resolve()
        attack = scenario.make_attack()
        attack.check(data.spec)
        check_device(scenario.device)
        self.scenario, self.data = scenario, data
        chosen = torch.randperm(scenario.clients, generator=generator(scenario.seed, "attackers"))
        self.attackers = frozenset(chosen[: scenario.attackers].tolist())
        copied = scenario.attackers if scenario.attacker_data == "copied" else 0
        self.parts = scenario.make_partition().divide(
            data.clients.labels, scenario.clients - copied, generator(scenario.seed, "partition")
        )
        if copied:
            honest = iter(self.parts)
            self.parts = [
                self.parts[client % len(self.parts)] if client in self.attackers else next(honest)
                for client in range(scenario.clients)
            ]
        works = _works(scenario, data.spec, chosen.tolist())
        if works:
            self.parts = [
                _kept(part, data.clients.labels, work, generator(scenario.seed, "kept", client))
                for client, (part, work) in enumerate(zip(self.parts, works, strict=True))
            ]
        self._warn_of_empty_clients()
        with seeded(scenario.seed, "model"):
            first = build_model(task, data).state_dict()
        attack.check_model(layers_of(first))
        self.anchor, self.tested = set_aside(len(data.server), scenario.anchor)
        self._setup = Setup(
            scenario, task, attack, self.parts, self.attackers, self.anchor, self.tested, works
        )
        self._model: nn.Module | None = None
        layout = Layout(first)
        momenta = scenario.clients if scenario.optimizer.carried else 0
        # The last update is the server's. What is carried: momenta, the attack's memory, and last
        # the previous model.
        self._memory = slice(momenta, momenta + attack.needs_memory)
        # Momenta of clients that never took part are 0: nobody saves or reads them.
        self._with_momentum: set[int] = set()
        rows = (len(self.participants(1)) + 1, self._memory.stop + attack.needs_previous_model)
        count = _usual_workers(scenario, data) if workers is None else workers
        self._executor = Executor(count, self._setup, data, layout, rows)
        self.set_global_model(first)

    @property
    def global_model(self) -> Mapping[str, Tensor]:
        """The global model's state; read-only."""
        return self._executor.arena.global_model

    def set_global_model(self, model: Mapping[str, Tensor]) -> None:
        """Make this the global model."""
        _copy(model, self._executor.arena.global_model)

    @property
    def carried(self) -> dict[str, Tensor]:
        """What the next round needs besides the model, by row and layer; read-only.

        Rows are the clients' momenta, if they are carried, what the attack remembers, and the
        previous round's model, if the attack needs it. Clients that have not taken part have none.
        """
        rows = self._executor.arena.momenta
        used = [*sorted(self._with_momentum), *range(self._memory.start, len(rows))]
        return {
            f"{number}/{name}": tensor for number in used for name, tensor in rows[number].items()
        }

    def carry_on(self, carried: Mapping[str, Tensor]) -> None:
        """Resume with an earlier `carried`."""
        rows = {int(name.partition("/")[0]) for name in carried}
        self._with_momentum = {row for row in rows if row < self._memory.start}
        _copy(carried, self.carried)

    def trained_layers(self) -> list[Layer]:
        """Return the layers that rules measure."""
        layers = layers_of(self.global_model)
        return [layer for layer in layers if layer.kind is Kind.PARAMETER]

    def participants(self, round_number: int) -> list[int]:
        """Return who takes part in a round: clients with data, or a share of them by the seed."""
        able = [client for client, part in enumerate(self.parts) if len(part)]
        count = max(1, round(self.scenario.participation * len(able)))
        if count == len(able):
            return able
        random = generator(self.scenario.seed, "participants", round_number)
        return sorted(able[i] for i in torch.randperm(len(able), generator=random)[:count])

    def train(
        self,
        round_number: int,
        on_done: OnDone,
        *,
        needs: Collection[str] = (),
        rule: Rule | None = None,
    ) -> RoundUpdates:
        """Train the clients of a round, each from the global model.

        Parameters
        ----------
        round_number
            Which round.
        on_done
            Called after each client.
        needs
            What the rule needs besides the updates: of `SUPPLIED`. For an ``anchor`` the server
            trains too, on the samples set aside for it; a ``server_loss`` is taken on them.
        rule
            The server's rule, for attacks that know it; they get a copy.

        Raises
        ------
        InputError
            The attack's own code failed, or what it sends is not valid.
        """
        clients, arena = self.participants(round_number), self._executor.arena
        rows = {client: row for row, client in enumerate(clients)}
        jobs = [TrainJob(round_number, client, row) for client, row in rows.items()]
        jobs.sort(key=lambda job: -len(self.parts[job.client]))  # the longest first
        spared: list[TrainJob] = []
        if not self._attackers_train:
            spared = [job for job in jobs if job.client in self.attackers]
            jobs = [job for job in jobs if job.client not in self.attackers]
        if {"anchor", "server_loss"} & set(needs):
            self._require_anchor()
        if "anchor" in needs:
            jobs.append(TrainJob(round_number, SERVER, len(arena.updates) - 1))
        problems = self._trained(jobs, on_done)
        honest = {c: arena.updates[row] for c, row in rows.items() if problems.get(c, "") is None}
        if spared and len(Updates.from_states(honest).checked()):
            for job in spared:
                for tensor in arena.updates[job.row].values():
                    tensor.zero_()
        else:  # if somebody was spared, there is nobody to look at
            problems |= self._trained(spared, on_done)
        if self.scenario.optimizer.carried:
            self._with_momentum.update(client for client in clients if client in problems)
        failed = {c: why for c in clients if (why := problems.get(c)) is not None}
        updates = {c: arena.updates[row] for c, row in rows.items() if c not in failed}
        samples = {client: float(len(self.parts[client])) for client in updates}
        made, problem = self._round(updates, samples, round_number, needs), None
        if "anchor" in needs:
            problem = problems[SERVER] and f"the server's own training failed: {problems[SERVER]}"
            try:
                made = made if problem else made.with_anchor(arena.updates[-1])
            except InputError as error:
                problem = str(error)
        hostile = self._in_concert(made, round_number, rule)
        if hostile:
            again = self._round({**updates, **hostile}, samples, round_number, needs)
            made = replace(again, references=made.references)
        if self._setup.attack.needs_previous_model:
            _copy(self.global_model, arena.momenta[-1])
        return RoundUpdates(made, failed, problem)

    def _trained(self, jobs: list[TrainJob], on_done: OnDone) -> dict[int, str | None]:
        """Train clients; return what went wrong, by client, or None."""
        answers = self._do(jobs, on_done)
        return {job.client: problem for job, problem in zip(jobs, answers, strict=True)}

    @property
    def _attackers_train(self) -> bool:
        attack = self._setup.attack
        return attack.needs_training or not attack.overrides("on_round")

    def _round(
        self,
        updates: Mapping[int, Mapping[str, Tensor]],
        samples: Mapping[int, float],
        number: int,
        needs: Collection[str],
    ) -> Updates:
        made = replace(Updates.from_states(updates, samples=samples), round=number)
        if "model" in needs and len(made):
            made = made.with_reference("model", self.global_model)
        return made.with_server_loss(self._server_loss) if "server_loss" in needs else made

    @torch.no_grad()
    def _server_loss(self, update: Mapping[str, Tensor]) -> float:
        """Return the loss of the global model moved by an update, on the server's own samples."""
        if self._model is None:
            self._model = build_model(self._setup.task, self.data).to(self.scenario.device).eval()
        moved = {
            name: tensor + update[name].to(tensor.dtype)
            for name, tensor in self.global_model.items()
        }
        self._model.load_state_dict(moved)
        samples, task = self.data.server, self._setup.task
        losses = []
        for indices in self.anchor.split(PIECE):
            inputs = samples.inputs.index_select(0, indices).to(self.scenario.device)
            labels = samples.labels.index_select(0, indices).to(self.scenario.device)
            losses.append(float(task.loss(self._model(inputs), labels)) * len(indices))
        return sum(losses) / len(self.anchor)

    def _in_concert(
        self, sent: Updates, round_number: int, rule: Rule | None
    ) -> dict[int, dict[str, Tensor]]:
        """Return what attackers send who first look at others' updates, by attacker."""
        attack = self._setup.attack
        if not attack.overrides("on_round") or self.attackers.isdisjoint(sent.clients):
            return {}
        valid = replace(sent.checked(), rejected={})
        mine = replace(valid.only(self.attackers), references={}, server_loss=None)
        if not len(mine):
            return {}
        alone = attack.knowledge in {"own", "colluders"}
        visible = mine if alone else replace(valid, references={}, server_loss=None)
        arena = self._executor.arena
        context = replace(
            self._setup.context(self.data.spec, arena, round_number),
            memory=tuple(arena.momenta[self._memory]),
        )
        if attack.knowledge == "defense":
            visible, context = valid, replace(context, rule=deepcopy(rule))
        try:
            answer = attack.on_round(mine, visible, context)
            return _valid_answer(answer, mine)
        except Exception as error:  # a class of the user's own
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            raise InputError(f"attack {attack.name!r}: on_round: {kind}{error}") from error

    def test(self, on_done: OnDone) -> Counts:
        """Test the global model on the server's samples that are not set aside."""
        jobs = [TestJob(start) for start in range(0, len(self.tested), PIECE)]
        return sum(self._do(jobs, on_done), Counts())

    def partition(self) -> tuple[ClientData, ...]:
        """Return who has how many samples of which class."""
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
        """Digest what the scenario does not hold: the data and, before round 1, the first model."""
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
        """End the workers."""
        self._executor.close()

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

        return self._executor.do(jobs, one_more)

    def _require_anchor(self) -> None:
        if not len(self.anchor):
            raise ParameterError(
                "the rule compares clients with the server's own update, and no samples are set "
                "aside for it: set the scenario's `anchor` to a few hundred"
            )

    def _warn_of_empty_clients(self) -> None:
        empty = sum(not len(part) for part in self.parts)
        if empty:
            what = "%d of %d clients have no data and take no part: there are %d samples"
            _log.warning(what, empty, len(self.parts), len(self.data.clients))


def _works(scenario: ResolvedScenario, spec: DataSpec, order: list[int]) -> list[Work]:
    """Draw what each client does otherwise; attackers come first in `order`."""
    variation = scenario.variation
    if variation is None:
        return []
    honest = order[scenario.attackers :][::-1]
    if variation.odd is not None and variation.odd_clients > len(honest):
        raise ParameterError(
            f"variation: {variation.odd_clients} clients with odd data, but only {len(honest)} of "
            f"{scenario.clients} are honest"
        )
    if variation.odd == "brighter" and spec.words is not None:
        raise ParameterError("variation: text cannot be brighter; odd may be inverted or noisy")
    return variation.draw(scenario.seed, scenario.clients, honest)


def _kept(part: Tensor, labels: Tensor, work: Work, random: torch.Generator) -> Tensor:
    """Return which of its samples a client has."""
    if work.odd == "one-class" and len(part):
        part = part[labels[part] == labels[part].bincount().argmax()]
    count = max(min(len(part), 1), round(work.samples * len(part)))
    return part[torch.randperm(len(part), generator=random)[:count].sort().values]


def _valid_answer(answer: object, mine: Updates) -> dict[Any, dict[str, Tensor]]:
    """Copy what an attack returned for its attackers, and refuse what is not valid."""
    if not isinstance(answer, Updates):
        raise InputError(f"it has to return Updates, not {type(answer).__name__}")
    for client, reason in answer.rejected.items():
        raise InputError(f"client {client}: {reason}")
    if set(answer.clients) != set(mine.clients):
        raise InputError(
            f"it returned updates of the clients {_listed(answer)}, but the attackers are "
            f"{_listed(mine)}"
        )
    shapes, expected = ({layer.name: layer.shape for layer in u.layers} for u in (answer, mine))
    for name in expected | shapes:
        if shapes.get(name) != expected.get(name):
            raise InputError(
                f"layer {name!r} has the shape {shapes.get(name)}, not {expected.get(name)}"
            )
    dtypes = {layer.name: layer.dtype for layer in mine.layers}
    # Copies: what an attack returns may be a view of an honest client's update.
    states = {
        client: {name: t.to(dtypes[name]) for name, t in answer.state(client).items()}
        for client in mine.clients
    }
    for client, reason in Updates.from_states(states).checked().rejected.items():
        raise InputError(f"client {client}: {reason}")
    return states


def _listed(updates: Updates) -> str:
    return ", ".join(sorted(map(str, updates.clients))) or "nobody"


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def set_aside(samples: int, anchor: int) -> tuple[Tensor, Tensor]:
    """Split the server's samples: for its own update, and for testing; alike in all scenarios."""
    if anchor >= samples:
        raise ParameterError(
            f"{anchor} of the server's {samples} samples cannot be set aside as an anchor: "
            "none would be left to test on"
        )
    order = torch.randperm(samples, generator=generator(0, "anchor"))
    return order[:anchor].sort().values, order[anchor:].sort().values


def check_device(device: str) -> None:
    """Refuse a device that is not there.

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


def _usual_workers(scenario: ResolvedScenario, data: Data) -> int:
    taking_part = max(1, round(scenario.participation * scenario.clients))
    share = taking_part / scenario.clients
    visits = share * len(data.clients) * scenario.local_epochs * scenario.rounds
    if visits < _FEW_SAMPLES or scenario.device != "cpu":
        return 1
    return min(usable_cores(), taking_part)
