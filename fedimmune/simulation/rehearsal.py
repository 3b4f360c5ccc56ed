"""Rehearsals: which attacks, by how many, along which trajectories; carried out and recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor

from fedimmune import attacks as known_attacks
from fedimmune._layers import Kind
from fedimmune.adaptive.recordings import SUFFIX, About, Recording, Sampled, read_recordings
from fedimmune.attacks import Attack
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from fedimmune.geometry import measure
from fedimmune.kernels import num_threads, values_at
from fedimmune.rules.median import Median
from fedimmune.simulation.federation import Federation, set_aside
from fedimmune.simulation.metrics import distances
from fedimmune.simulation.protocols import PROTOCOLS, with_protocol
from fedimmune.simulation.scenario import ResolvedScenario, Scenario, changed
from fedimmune.simulation.seeding import generator, seed_for
from fedimmune.simulation.workers import Pool, shared_data, usable_cores
from fedimmune.tasks import Data, DataSpec, Samples, Task, data_folder, load_data
from fedimmune.tasks.data import read_data
from fedimmune.updates import NonFiniteError, Updates
from fedimmune.validation import check_int

__all__ = ["Rehearsal", "carry_out", "plan", "record", "rehearse", "usual_attacks"]

_MOST_EPOCHS = 6
_PAPER_TRAJECTORIES = ("mean", "geometric-median", "median", "multi-krum")

Ranges = Mapping[str, tuple[float, float]]


def plan(
    base: Mapping[str, Any],
    spec: DataSpec,
    *,
    attacks: Sequence[str],
    attackers: Sequence[int],
    runs: int,
    follow: Sequence[str],
    local_epochs: Sequence[int] = (1,),
    family: Ranges | None = None,
    on: Literal["server", "clients"] = "server",
    protocol: str = "paper",
    seed: int = 1,
    save_updates: int = 0,
) -> list[Rehearsal]:
    """List rehearsals: nobody attacking, and each attack with each number of attackers.

    Other parameters are those of `rehearse`: `follow` is its `trajectory`, and `family` its
    `randomize`, so that a defense learns a family of attacks and not one pattern.

    Parameters
    ----------
    base
        Fields of all scenarios: task, rounds, clients, …; an attack's parameters, without its
        name, are those of all attacks.
    spec
        Of the task's data.
    protocol
        Fills in what is left open: one of `protocols.PROTOCOLS`.
    """
    if not attacks or not attackers or not follow or not local_epochs:
        raise ParameterError(
            "there have to be attacks, numbers of attackers, rules to follow and local epochs"
        )
    kinds: list[tuple[str, int]] = [("none", 0)] if 0 in attackers else []
    # An alias must not be rehearsed as well as what it stands for, nor with another seed.
    names = dict.fromkeys(known_attacks.resolve(attack) for attack in attacks)
    kinds += [(attack, count) for attack in names for count in attackers if count]
    drawing = {} if family is None else {name: _drawing(name, family) for name in names}
    for name in family or ():
        known = {each for attack in drawing.values() for each in attack.ranges}
        if name not in known:
            raise ParameterError(
                f"no attack here has a range {name!r}; there are {', '.join(sorted(known))}"
            )
    fixed = dict(base.get("attack", {}))
    rehearsals = []
    for run in range(runs):
        for rule, epochs in product(follow, local_epochs):
            for attack, count in kinds:
                own_seed = seed_for(seed, f"rehearsal of {_stream(attack)}", run, count)
                drawn = {} if attack == "none" else dict(fixed)
                if attack in drawing:
                    rng = generator(own_seed, "family")
                    drawn = drawing[attack].sample_parameters(spec, rng) | drawn
                fields = {
                    **base,
                    "attack": {"name": attack, **drawn},
                    "attackers": count,
                    "rule": rule,
                    "local_epochs": epochs,
                    "seed": own_seed,
                }
                fields = with_protocol(protocol, fields)
                whole = Scenario(**fields).resolve()
                rounds = max(1, round(whole.rounds / epochs))
                shorter = whole.model_copy(update={"rounds": rounds})
                rehearsals.append(Rehearsal(shorter, run, on, save_updates))
    return rehearsals


def rehearse(
    task: str = "digits",
    attacks: Sequence[str] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    attackers: Sequence[int] = range(5),
    runs: int = 3,
    trajectory: Sequence[str] | None = None,
    rounds: int | None = None,
    local_epochs: Sequence[int] | None = None,
    on: Literal["server", "clients"] = "server",
    preset: Literal["paper", "authors"] | None = None,
    randomize: Ranges | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    save_updates: int = 0,
    data: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on_start: Callable[[Sequence[Rehearsal]], None] = lambda _: None,
    on_done: Callable[[Rehearsal], None] = lambda _: None,
) -> list[Recording]:
    """Rehearse attacks on the server's own data, and return what a defense learns from.

    Each round is kept as inner products of the updates, layer by layer, and who attacked: no
    update of anyone. What `output` holds already is not rehearsed again, so an interrupted call
    resumes.

    Parameters
    ----------
    task
        What is learned: one of `fedimmune.tasks.available`, or ``package.module:Name``.
    attacks
        Kinds of attack; by default sign-flip and the backdoor, or the label flip if the task has no
        images.
    output
        Folder to keep the recordings in; by default nothing is kept.
    attackers
        How many attack; 0 is rehearsed once, whatever the attacks.
    runs
        Number of repetitions, with other data, other attackers and another first model. `train`
        holds the last one out.
    trajectory
        Rules whose global model is followed; by default the oracle.
    rounds
        How many; by default the task's.
    local_epochs
        Local epochs per round; each number is rehearsed, with fewer rounds by that factor. By
        default 1, and as many as make up for real clients having more samples, at most 6.
    on
        Whose data rehearsal clients have: the ``server``'s test samples, or the ``clients``' own,
        which a real server does not have.
    preset
        ``paper``: three runs, four trajectories, all rounds, as in the paper. ``authors``: the
        same, and attacks and clients as in the authors' program.
    randomize
        Draw the attacks' parameters anew for every rehearsal, from these ranges or, if it names
        none, from the attack's own; by default they are fixed.
    seed
        Random seed.
    settings
        Further fields of the scenarios, such as ``{"clients": 20, "optimizer.lr": 0.05}``.
    save_updates
        How many values of each update's last layer to keep, drawn once for all, or all if it has
        fewer: the rule ``spectral`` learns from them. By default none.
    data
        Folder of data sets; by default ``FEDIMMUNE_DATA``, else a cache of the user's.
    workers
        How many processes, each carrying out one rehearsal at a time; by default one per core.
    on_start, on_done
        Called with all rehearsals before the first, and with each that has been carried out, from
        several threads.

    Returns
    -------
    list of Recording
        One per rehearsal, for `train`.

    Raises
    ------
    ParameterError, InputError
        An attack, a rule or a setting does not exist or does not fit. Nothing has been rehearsed.

    Examples
    --------
    >>> from fedimmune import adaptive
    >>> adaptive.rehearse("digits", ["sign-flip"], attackers=[3], runs=1, rounds=2)
    [Recording(digits, sign-flip by 3 of 10, run 0, following oracle: 2 rounds)]
    """
    if on not in {"server", "clients"}:
        raise ParameterError(f"on takes server or clients, not {on!r}")
    check_int("rehearse", "save_updates", save_updates, 0)
    if preset not in {None, *PROTOCOLS}:
        raise ParameterError(f"there is no preset {preset!r}; there are {', '.join(PROTOCOLS)}")
    given: dict[str, Any] = {"task": task} | ({} if rounds is None else {"rounds": rounds})
    base = with_protocol(preset or "paper", changed(given, dict(settings or {})))
    # Refuses what is wrong before anything is loaded.
    first = Scenario(**{name: base[name] for name in base if name != "attack"}).resolve()
    made = first.make_task()
    loaded = load_data(made, data_folder(data))
    if local_epochs is None:
        as_they_are = preset is not None or on == "clients"
        local_epochs = _usual_epochs(first, loaded, as_they_are=as_they_are)
    rehearsals = plan(
        base,
        loaded.spec,
        attacks=usual_attacks(loaded.spec) if attacks is None else attacks,
        attackers=attackers,
        runs=3 if preset else runs,
        follow=trajectory or (_PAPER_TRAJECTORIES if preset else ("oracle",)),
        local_epochs=local_epochs,
        family=randomize,
        on=on,
        protocol=preset or "paper",
        seed=seed,
        save_updates=save_updates,
    )
    on_start(rehearsals)
    with TemporaryDirectory() as spare:
        folder = Path(spare if output is None else output)
        executor = workers or usable_cores()
        record(rehearsals, folder, made, loaded, workers=executor, on_done=on_done)
        return read_recordings([folder / each.file_name for each in rehearsals])


def _usual_epochs(scenario: ResolvedScenario, data: Data, *, as_they_are: bool) -> Sequence[int]:
    """Return the scenario's local epochs, and more to make up for fewer samples.

    The server has fewer samples than real clients, whose updates are longer and differ more. A
    defense that has seen short training alone suspects honest clients who train longer.
    """
    if as_they_are or scenario.local_epochs != 1:
        return (scenario.local_epochs,)
    more = round(len(data.clients) / max(1, len(data.server) - scenario.anchor))
    return (1, min(more, _MOST_EPOCHS)) if more > 1 else (1,)


def usual_attacks(spec: DataSpec) -> tuple[str, ...]:
    """Return the attacks to rehearse by default: one that has a target, and one that has none.

    The first is the backdoor or, on data that it does not fit, such as text, the label flip.
    """
    try:
        known_attacks.get("backdoor").check(spec)
    except ParameterError:
        return ("label-flip", "sign-flip")
    return ("backdoor", "sign-flip")


def _drawing(name: str, family: Ranges) -> Attack:
    """Make an attack that draws its parameters from these ranges, if they are its own."""
    attack = known_attacks.get(name)
    for given, (low, high) in family.items():
        if not 0 <= low <= high:
            raise ParameterError(
                f"the range {given} goes from low to high, from 0 on: {low}-{high}"
            )
    own = {
        each: _like(each, usual, family[each])
        for each, usual in attack.ranges.items()
        if each in family
    }
    attack.ranges = {**attack.ranges, **own}
    return attack


def _like(name: str, usual: tuple[float, float], given: tuple[float, float]) -> tuple[float, float]:
    """Make bounds whole numbers if the usual ones are."""
    if not all(isinstance(bound, int) for bound in usual):
        return given
    if any(bound != int(bound) for bound in given):
        raise ParameterError(f"the range {name} has whole numbers: {given[0]}-{given[1]}")
    return int(given[0]), int(given[1])


def _stream(attack: str) -> str:
    """Return the name that an attack's seed is made from: the older one of two."""
    return (*known_attacks.find(attack).aliases, attack)[0]


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
        own, which only a simulated server has.
    save_updates
        How many values of each update's last layer are kept.
    """

    scenario: ResolvedScenario
    run: int
    on: Literal["server", "clients"] = "server"
    save_updates: int = 0

    @property
    def file_name(self) -> str:
        """Of its recording, with a digest of the whole scenario."""
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
    """Carry out rehearsals of one task, and write a recording of each to a folder.

    Those whose recording is there already are not carried out again. Each of the `workers` carries
    out one at a time, and `on_done` is called with it afterwards, from several threads.

    Raises
    ------
    ParameterError
        An attack does not fit the data. Nothing has been rehearsed.
    InputError
        A recording is there already, without the values of updates that are asked for.
    """
    for each in rehearsals:
        try:
            each.scenario.make_attack().check(data.spec)
        except ParameterError as error:
            raise ParameterError(f"{error}. Choose other attacks (--attacks)") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write recordings to {folder}: {error.strerror}") from error
    jobs = [(each, folder / each.file_name) for each in rehearsals]
    for each, file in jobs:
        if each.save_updates and file.is_file():
            _check_sampled(file, each.save_updates)
    jobs = [(each, file) for each, file in jobs if not file.is_file()]
    if workers == 1 or len(jobs) < 2:
        for each, file in jobs:
            carry_out(each, task, data).save(file)
            on_done(each)
        return
    with shared_data(data) as shared:
        pool = Pool(min(workers, len(jobs)), _recorder, {"task": task, "data": shared})
    with pool:
        pool.do(jobs, lambda number, _: on_done(jobs[number][0]))


def _check_sampled(file: Path, count: int) -> None:
    about = Recording.load(file).about
    if about.sampled != Sampled.of(about.layers, count):
        raise InputError(
            f"{file} was recorded without these values of updates: rehearse into another folder, "
            "or delete it"
        )


class _Recorder:
    """Carries out rehearsals, one at a time, in a worker process."""

    def __init__(self, task: Task, data: Data) -> None:
        self._task, self._data = task, data

    def do(self, job: tuple[Rehearsal, Path]) -> None:
        rehearsal, file = job
        carry_out(rehearsal, self._task, self._data).save(file)


def _recorder(task: Task, data: Path) -> _Recorder:
    torch.set_num_threads(1)
    return _Recorder(task, read_data(data))


def carry_out(rehearsal: Rehearsal, task: Task, data: Data) -> Recording:
    """Carry out one rehearsal with its scenario's task and data, and record it."""
    if rehearsal.on == "server":
        data = _server_as_clients(data, rehearsal.scenario.anchor)
    scenario = rehearsal.scenario
    references = ("anchor",) if scenario.anchor else ()
    grams: list[Tensor] = []
    attackers: list[list[bool]] = []
    medians: list[float] = []
    values: list[Tensor] = []
    sampled: Sampled | None = None
    with num_threads(1), Federation(scenario, task, data, workers=1) as federation:
        rule = scenario.make_rule(federation.attackers)
        for number in range(1, scenario.rounds + 1):
            sent = federation.train(
                number, lambda *_: None, needs={*references, *rule.needs}, rule=rule
            )
            if sent.without_anchor is not None:
                break  # the attack has made the model diverge: nothing more to learn
            updates = sent.updates.checked()
            layers = {layer.name: layer for layer in updates.of_kind(Kind.PARAMETER)}
            if rehearsal.save_updates:
                shapes = {name: layer.shape for name, layer in layers.items()}
                sampled = Sampled.of(shapes, rehearsal.save_updates)
            try:
                found = measure(updates, references).grams(*references)
                medians.append(_median_distance(updates, federation.attackers))
                moved = rule.aggregate(updates).apply(federation.global_model)
            except (FedimmuneError, NonFiniteError):
                break  # the same, noticed later
            if len(updates) < len(sent.updates):
                break  # a recording has the same clients in all rounds
            if sampled is not None:
                kept = values_at(updates, layers[sampled.layer], sampled.indices).float()
                if not bool(torch.isfinite(kept).all()):
                    break  # too large to be kept: it has diverged
                values.append(kept)
            grams.append(found)
            attackers.append([client in federation.attackers for client in sent.updates.clients])
            federation.set_global_model(moved)
        trained = {layer.name: layer.shape for layer in sent.updates.of_kind(Kind.PARAMETER)}
    if not grams:
        raise InputError(f"the rehearsal of {scenario.title} gave no valid round")
    about = About(
        task=scenario.task.name,
        layers=trained,
        attack=scenario.attack.name if scenario.attackers else "none",
        attackers=scenario.attackers,
        clients=scenario.clients,
        run=rehearsal.run,
        trajectory=scenario.rule.name,
        references=references,
        on=rehearsal.on,
        scenario=scenario.model_dump(),
        sampled=sampled,
    )
    of_median = torch.tensor(medians[: len(grams)], dtype=torch.float64)
    of_updates = torch.stack(values) if values else None
    return Recording(about, torch.stack(grams), torch.tensor(attackers), of_median, of_updates)


def _median_distance(updates: Updates, attackers: frozenset[int]) -> float:
    found = distances(updates, attackers, Median().aggregate(updates))["distance"]
    return float("nan") if found is None else found


def _server_as_clients(data: Data, anchor: int) -> Data:
    """Return the data of a rehearsal: what the server tests on is now the clients'."""
    _, tested = set_aside(len(data.server), anchor)
    inputs = data.server.inputs.index_select(0, tested)
    return replace(data, clients=Samples(inputs, data.server.labels[tested]), file=None)
