"""Rehearsal: federated training on the server's own data, under a known attack, kept as recordings.

The server parts its samples over simulated clients, lets some of them attack, and keeps of each
round what a defence learns from: the inner products of the updates, and who attacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedimmune.adaptive.recordings import SUFFIX, About, Recording
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from fedimmune.federation.federation import Federation, set_aside
from fedimmune.federation.measuring import distances
from fedimmune.federation.pool import Pool
from fedimmune.federation.scenario import ResolvedScenario
from fedimmune.federation.workers import shared_data
from fedimmune.geometry import measure
from fedimmune.layers import Kind
from fedimmune.rules.median import Median
from fedimmune.tasks import Data, Samples, Task
from fedimmune.tasks.prepared import read_data
from fedimmune.threads import computing_with
from fedimmune.updates import NonFiniteError, Updates

__all__ = ["Rehearsal", "carry_out", "record"]


@dataclass(frozen=True)
class Rehearsal:
    """One rehearsal to be carried out.

    Parameters
    ----------
    scenario
        What to rehearse; its rule is the one whose global model is followed.
    run
        Which repetition it is.
    on
        Whose data the simulated clients have: the ``server``'s test samples, or the ``clients``'
        own, which a server has in a simulation alone.
    """

    scenario: ResolvedScenario
    run: int
    on: Literal["server", "clients"] = "server"

    @property
    def file_name(self) -> str:
        """What its recording is called; it holds a digest of the whole scenario."""
        s = self.scenario
        where = "" if self.on == "server" else f"{self.on}-"
        return (
            f"{s.attack.label}-{s.attackers}of{s.clients}-{s.rule.label}-{where}run{self.run}-"
            f"{s.digest}{SUFFIX}"
        )


def record(
    rehearsals: Sequence[Rehearsal],
    folder: Path,
    task: Task,
    data: Data,
    *,
    workers: int = 1,
    on_done: Callable[[Rehearsal], None] = lambda _: None,
) -> None:
    """Carry out rehearsals, several at a time, and leave a recording of each in a folder.

    Those whose recording is there already are not carried out again.

    Parameters
    ----------
    rehearsals
        What to rehearse, all of the same task.
    folder
        Where recordings go; made where there is none.
    task, data
        Of the rehearsals.
    workers
        How many processes, each carrying out one rehearsal at a time.
    on_done
        Is told of each that has been carried out, from several threads.

    Raises
    ------
    ParameterError
        An attack does not fit the data. Nothing has been rehearsed.
    """
    for each in rehearsals:
        try:
            each.scenario.make_attack().check(data.facts)
        except ParameterError as error:
            raise ParameterError(f"{error}. Choose other attacks (--attacks)") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write recordings to {folder}: {error.strerror}") from error
    jobs = [(each, folder / each.file_name) for each in rehearsals]
    jobs = [(each, file) for each, file in jobs if not file.is_file()]
    if workers == 1 or len(jobs) < 2:
        stage = _Stage(task, data)
        for each, file in jobs:
            stage.do((each, file))
            on_done(each)
        return
    with shared_data(data) as shared:
        pool = Pool(min(workers, len(jobs)), _stage, {"task": task, "data": shared})
    with pool:
        pool.do(jobs, lambda number, _: on_done(jobs[number][0]))


class _Stage:
    """Carries out rehearsals, one at a time."""

    def __init__(self, task: Task, data: Data) -> None:
        self._task, self._data = task, data

    def do(self, job: tuple[Rehearsal, Path]) -> None:
        rehearsal, file = job
        carry_out(rehearsal, self._task, self._data).save(file)


def _stage(task: Task, data: Path) -> _Stage:
    """Make the stage of a worker process."""
    torch.set_num_threads(1)
    return _Stage(task, read_data(data))


def carry_out(rehearsal: Rehearsal, task: Task, data: Data) -> Recording:
    """Carry out one rehearsal, and record it.

    Parameters
    ----------
    rehearsal
        What to rehearse.
    task, data
        Of its scenario.
    """
    if rehearsal.on == "server":
        data = _server_as_clients(data, rehearsal.scenario.anchor)
    scenario = rehearsal.scenario
    references = ("anchor",) if scenario.anchor else ()
    grams: list[Tensor] = []
    attackers: list[list[bool]] = []
    medians: list[float] = []
    with computing_with(1), Federation(scenario, task, data, workers=1) as federation:
        rule = scenario.make_rule(federation.attackers)
        for number in range(1, scenario.rounds + 1):
            sent = federation.train(
                number, lambda *_: None, with_anchor=bool(references), rule=rule
            )
            if sent.without_anchor is not None:
                break  # the attack has driven the model beyond numbers: nothing more to learn
            updates = sent.updates.checked()
            try:
                found = measure(updates, references).grams(*references)
                medians.append(_median_distance(updates, federation.attackers))
                moved = rule.aggregate(updates).apply(federation.global_model)
            except (FedimmuneError, NonFiniteError):
                break  # the same, seen later
            if len(updates) < len(sent.updates):
                break  # somebody has, and a recording has the same clients in all rounds
            grams.append(found)
            attackers.append([client in federation.attackers for client in sent.updates.clients])
            federation.move(moved)
        layers = {layer.name: layer.shape for layer in sent.updates.of_kind(Kind.PARAMETER)}
    if not grams:
        raise InputError(f"the rehearsal of {scenario.title} gave no valid round")
    about = About(
        task=scenario.task.name,
        layers=layers,
        attack=scenario.attack.name if scenario.attackers else "none",
        attackers=scenario.attackers,
        clients=scenario.clients,
        run=rehearsal.run,
        trajectory=scenario.rule.name,
        references=references,
        on=rehearsal.on,
        scenario=scenario.model_dump(),
    )
    of_median = torch.tensor(medians[: len(grams)], dtype=torch.float64)
    return Recording(about, torch.stack(grams), torch.tensor(attackers), of_median)


def _median_distance(updates: Updates, attackers: frozenset[int]) -> float:
    found = distances(updates, attackers, Median().aggregate(updates))["distance"]
    return float("nan") if found is None else found


def _server_as_clients(data: Data, anchor: int) -> Data:
    """Give the data of a rehearsal: what the server tests on is now the clients'."""
    _, tested = set_aside(len(data.server), anchor)
    inputs = data.server.inputs.index_select(0, tested)
    return replace(data, clients=Samples(inputs, data.server.labels[tested]), file=None)
