"""What experiments are made of: jobs that need each other, each done once and kept in a file.

Two jobs of the same `key` are the same, whichever experiments ask for them: that is how recordings,
defenses and runs are shared.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from glob import escape
from pathlib import Path
from typing import Any

from fedimmune.adaptive import Defense, train, universal
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.adaptive.sweep import figures_of
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from fedimmune.io import write_text_atomically
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import RoundRecord
from fedimmune.simulation import Scenario, run_folder, simulate
from fedimmune.simulation.protocols import with_protocol
from fedimmune.simulation.rehearsal import Rehearsal, carry_out, plan
from fedimmune.simulation.scenario import ResolvedScenario
from fedimmune.simulation.seeding import generator
from fedimmune.tasks import DataSpec, data_folder, load_data
from reproduction.methods import UNIVERSAL, Method, find_method
from reproduction.presets import find_preset
from reproduction.synthetic import demonstrate

__all__ = ["DefenseJob", "Job", "PartitionJob", "RehearsalJob", "RunJob", "SearchJob", "Store"]
__all__ += ["SyntheticJob", "defense_job", "run_job"]


@dataclass(frozen=True)
class Store:
    """A folder of recordings, defenses, runs, other results, and tables; and that of data sets."""

    folder: Path
    data: str | os.PathLike[str] | None = None

    @property
    def runs(self) -> Path:
        """Run folders, as `fedimmune simulate --runs` has them."""
        return self.folder / "runs"

    def results(self, scale: str) -> Path:
        """Tables and figures of a scale."""
        return self.folder / "results" / scale


class Job(ABC):
    """Something to be done once."""

    seconds: float
    """About how long one core takes."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Identifies it, and names its result."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What people read; no two jobs of a scale have the same."""

    @property
    def needs(self) -> tuple[Job, ...]:
        """Jobs that have to be done first."""
        return ()

    @abstractmethod
    def is_done(self, store: Store) -> bool:
        """Whether its result exists."""

    @abstractmethod
    def run(self, store: Store) -> None:
        """Do it, in a process of one thread; a job that was killed can be run again."""

    @property
    def scenario(self) -> ResolvedScenario | None:
        """The scenario whose data it uses; None if it needs no data."""
        return None

    def progress(self, store: Store) -> float:
        """How much of it is done, from 0 to 1."""
        return 0.0

    def merged(self, other: Job) -> Job:
        """Return the job that serves both this one and another of the same key."""
        return self


class _FileJob(Job):
    """A job whose result is one file."""

    suffix = ""

    def file(self, store: Store) -> Path:
        """Return where the result is."""
        return store.folder / f"{self.key}{self.suffix}"

    def is_done(self, store: Store) -> bool:
        return self.file(store).is_file()

    def new_file(self, store: Store) -> Path:
        """Return where the result is to be, in a folder that exists."""
        file = self.file(store)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file


# -------------------------------------------------------------------- rehearsals and defenses


@dataclass(frozen=True)
class RehearsalJob(_FileJob):
    """A recording of a rehearsed attack."""

    rehearsal: Rehearsal
    seconds: float

    @cached_property
    def key(self) -> str:
        return f"recordings/{self.rehearsal.file_name}"

    @property
    def title(self) -> str:
        task, name = self.scenario.task.label, self.rehearsal.file_name.rpartition("-")[0]
        epochs = self.scenario.local_epochs
        return f"rehearsal {task} {name}" + (f", {epochs} local epochs" if epochs > 1 else "")

    @property
    def scenario(self) -> ResolvedScenario:
        return self.rehearsal.scenario

    def run(self, store: Store) -> None:
        task = self.scenario.make_task()
        recording = carry_out(self.rehearsal, task, load_data(task, data_folder(store.data)))
        recording.save(self.new_file(store))


class _LearningJob(_FileJob):
    """A job that trains a defense on recordings."""

    recordings: tuple[RehearsalJob, ...]
    epochs: int

    @property
    def needs(self) -> tuple[Job, ...]:
        return self.recordings

    def train(self, store: Store, **options: Any) -> Defense:
        """Train the defense."""
        with _naming_the_remedy():
            recordings = read_recordings(sorted(each.file(store) for each in self.recordings))
        made: Defense = train(recordings, epochs=self.epochs, **options)
        return made


@dataclass(frozen=True)
class DefenseJob(_LearningJob):
    """A trained defense of a method, which has rehearsed `attacks` on a task."""

    task: str
    method: Method
    attacks: tuple[str, ...]
    recordings: tuple[RehearsalJob, ...]
    epochs: int
    seconds: float
    suffix = ".defense"

    @cached_property
    def key(self) -> str:
        training = self.method.training
        assert training is not None
        what = {
            "recordings": sorted(each.key for each in self.recordings),
            "form": training.form,
            "settings": dict(training.settings),
            "kinds": training.kinds,
            "epochs": self.epochs,
        }
        name = f"{self.task}-{self.method.key}-{'+'.join(self.attacks)}"
        return f"defenses/{name}-{_digest(what, 8)}"

    @property
    def title(self) -> str:
        return f"defense {self.key.removeprefix('defenses/')}"

    def run(self, store: Store) -> None:
        training = self.method.training
        assert training is not None
        defense = self.train(
            store, form=training.form, kinds=training.kinds, settings=training.settings
        )
        defense.save(self.new_file(store))


@cache
def defense_job(
    task: str, scale: str, key: str, attacks: tuple[str, ...], device: str = "cpu"
) -> DefenseJob:
    """Return the job of a learned method's defense, which rehearses `attacks`."""
    preset, method = find_preset(task, scale), find_method(key)
    training = method.training
    assert training is not None
    chosen = preset.paper_rehearsals if training.as_in_paper else preset.rehearsals
    base, samples = dict(preset.fields), preset.samples
    if training.data == "clients":
        chosen = preset.client_rehearsals
    else:
        # The server splits all it has among rehearsed clients, however little real clients get.
        base.pop("partition", None)
        samples = preset.tested
    if chosen.rounds is not None:
        base["rounds"] = chosen.rounds
    if device != "cpu":
        base["device"] = device
    planned = plan(
        base,
        DataSpec(classes=1, shape=()),  # patterns are fixed: nothing depends on the data
        attacks=attacks,
        attackers=chosen.attackers,
        runs=chosen.runs,
        follow=chosen.trajectories,
        local_epochs=chosen.local_epochs,
        on=training.data,
        protocol=preset.protocol,
    )
    cost = samples * preset.sample_seconds
    recordings = tuple(
        RehearsalJob(each, cost * each.scenario.rounds * each.scenario.local_epochs)
        for each in planned
    )
    rounds = sum(each.scenario.rounds for each in planned)
    return DefenseJob(
        task=_name(preset.fields["task"]),
        method=method,
        attacks=attacks,
        recordings=recordings,
        epochs=preset.epochs,
        seconds=rounds * preset.epochs * preset.epoch_seconds,
    )


# -------------------------------------------------------------------- runs


@dataclass(frozen=True)
class RunJob(Job):
    """A run.

    Parameters
    ----------
    fields
        The fields of its scenario, except the rule.
    method, defense
        What aggregates, and the defense that it uses, if any.
    layers
        Layers whose updates are saved with the run.
    """

    fields: Mapping[str, Any]
    method: Method
    defense: DefenseJob | None
    seconds: float
    layers: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        # By the whole scenario: fields that say the same in other words make the same run. What is
        # saved with it does not make another run: it has one folder.
        by = self.method.rule if self.defense is None else self.defense.key
        if self.method.defense == UNIVERSAL:
            by = f"{by} {universal().digest}"  # another release may ship another
        what = f"{self.scenario.digest} {by}"
        return f"runs/{hashlib.sha256(what.encode()).hexdigest()[:16]}"

    def merged(self, other: Job) -> Job:
        assert isinstance(other, RunJob)
        return replace(self, layers=tuple(dict.fromkeys((*self.layers, *other.layers))))

    @cached_property
    def title(self) -> str:
        attack = self.scenario.attack
        usual = Scenario(**{**self.fields, "attack": attack.name}).resolve().attack.parameters
        said = [f"{n} {value}" for n, value in attack.parameters.items() if value != usual.get(n)]
        if self.defense is not None:
            said.append(f"trained on {'+'.join(self.defense.attacks)}")
        if self.layers:
            said.append(f"saving {', '.join(self.layers)}")
        name = self._name(self.method.key)
        return f"{name} ({'; '.join(said)})" if said else name

    def _name(self, rule: str) -> str:
        return self.scenario.title.replace("-mean-", f"-{rule}-", 1)

    @property
    def scenario(self) -> ResolvedScenario:
        return _scenario(json.dumps(self.fields, sort_keys=True))

    @property
    def needs(self) -> tuple[Job, ...]:
        return () if self.defense is None else (self.defense,)

    def scenario_in(self, store: Store) -> ResolvedScenario:
        """Return what is run, with the rule; its defense has to be there."""
        rule: Any = self.method.rule
        written = 0
        if self.defense is not None:
            file = self.defense.file(store)
            rule = {"name": rule, "defense": str(file)}
            if self.defense.task != _name(self.fields["task"]):
                rule["any_shape"] = True  # a task with the same layers and other classes
            written = file.stat().st_mtime_ns if file.is_file() else 0
        return _scenario(json.dumps({**self.fields, "rule": rule}, sort_keys=True), written)

    def folder(self, store: Store) -> RunFolder:
        """Return the run's folder."""
        return run_folder(self.scenario_in(store), store.runs)

    def is_done(self, store: Store) -> bool:
        if self.defense is not None and not self.defense.is_done(store):
            return False
        # Naming the folder takes reading the defense; seeing that there is none does not.
        if not any(store.runs.glob(f"{escape(self._name(self.method.rule))}-*")):
            return False
        try:
            folder = self.folder(store)
            return folder.is_finished and not self._must_start_over(folder)
        except FedimmuneError:  # the defense is damaged; `run` says so
            return False

    def run(self, store: Store) -> None:
        with _naming_the_remedy():
            folder = self.folder(store)
        for _ in simulate(
            self.scenario_in(store),
            data=store.data,
            runs=store.runs,
            workers=1,
            force=self._must_start_over(folder),
            save_updates=self.layers,
        ):
            pass

    def progress(self, store: Store) -> float:
        try:
            return len(self.folder(store).records()) / self.scenario.rounds
        except FedimmuneError:  # its process will say what is wrong
            return 0.0

    def records(self, store: Store) -> list[RoundRecord]:
        """Return the finished run's records."""
        return self.folder(store).records()

    def _must_start_over(self, folder: RunFolder) -> bool:
        """Whether records are missing or damaged, or rounds lack updates to be saved."""
        try:
            rounds = len(folder.records())
        except InputError:
            return True
        if folder.is_finished and rounds != self.scenario.rounds:
            return True
        return any(folder.traces.lacking(layer, rounds) for layer in self.layers)


def run_job(
    task: str,
    scale: str,
    key: str,
    fields: Mapping[str, Any],
    *,
    defense: DefenseJob | None = None,
    device: str = "cpu",
    layers: tuple[str, ...] = (),
) -> RunJob:
    """Return the job of a run by a method; `fields` are added to those of the preset."""
    preset = find_preset(task, scale)
    fields = with_protocol(preset.protocol, {**preset.fields, **fields})
    if device != "cpu":
        fields["device"] = device
    return RunJob(fields, find_method(key), defense, preset.run_seconds(), layers)


@cache
def _scenario(fields: str, _written: int = 0) -> ResolvedScenario:
    """Check fields, in JSON, once: runs of many rules share them, and a list has thousands of runs.

    `_written` is when the defense was written: it may be trained again.
    """
    return Scenario(**json.loads(fields)).resolve()


# -------------------------------------------------------------------- other results, in JSON


class _JsonJob(_FileJob):
    """A job whose result is one JSON file."""

    suffix = ".json"

    @abstractmethod
    def compute(self, store: Store) -> object:
        """Compute the result."""

    def run(self, store: Store) -> None:
        self.write(store, self.compute(store))

    def write(self, store: Store, result: object) -> None:
        """Write the result."""
        write_text_atomically(json.dumps(result) + "\n", self.new_file(store))

    def result(self, store: Store) -> Any:
        """Read the result.

        Raises
        ------
        InputError
            The file is damaged.
        """
        try:
            return self._checked(json.loads(self.file(store).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.file(store)} cannot be read ({error!r}): remove it, and it is made again"
            ) from error

    def _checked(self, result: Any) -> Any:
        return result


FIGURES = ("accuracy", "exact", "benign_kept", "attacker_weight")
"""What is measured at each point of a search; the first chooses."""


@dataclass(frozen=True)
class SearchJob(_LearningJob, _JsonJob):
    """How well a defense of the paper's form does with the settings of a `point`."""

    recordings: tuple[RehearsalJob, ...]
    point: tuple[tuple[str, Any], ...]
    epochs: int
    seconds: float

    @cached_property
    def key(self) -> str:
        recordings = sorted(each.key for each in self.recordings)
        return f"other/search-{_digest([recordings, self.point, self.epochs], 12)}"

    @property
    def title(self) -> str:
        return "search " + ", ".join(f"{name} = {value}" for name, value in self.point)

    def compute(self, store: Store) -> object:
        defense = self.train(store, form="paper", kinds=False, settings=dict(self.point))
        found = figures_of(defense.about.validation, defense.about.attacks)
        return {**dict(self.point), **{name: found[name] for name in FIGURES}}

    def _checked(self, result: Any) -> Any:
        return {name: result[name] for name in (*dict(self.point), *FIGURES)}


@dataclass(frozen=True)
class PartitionJob(_JsonJob):
    """How many samples of each class each client has; `fields` are a scenario's, in JSON."""

    fields: str
    clients: int
    seconds: float = 1.0

    @cached_property
    def key(self) -> str:
        return f"other/partition-{self.clients}-{_digest(self.fields, 12)}"

    @property
    def title(self) -> str:
        return f"partition among {self.clients} clients"

    @property
    def scenario(self) -> ResolvedScenario:
        return Scenario(**json.loads(self.fields), clients=self.clients).resolve()

    def compute(self, store: Store) -> object:
        scenario = self.scenario
        data = load_data(scenario.make_task(), data_folder(store.data))
        labels = data.clients.labels
        parts = scenario.make_partition().divide(
            labels, self.clients, generator(scenario.seed, "partition")
        )
        return [labels[part].bincount(minlength=data.classes).tolist() for part in parts]


@dataclass(frozen=True)
class SyntheticJob(_JsonJob):
    """What the synthetic demonstration measured."""

    seed: int
    sets: int
    epochs: int
    seconds: float = 15.0

    @property
    def key(self) -> str:
        return f"other/synthetic-{self.seed}-{self.sets}-{self.epochs}"

    @property
    def title(self) -> str:
        return f"synthetic sets, seed {self.seed}"

    def compute(self, store: Store) -> object:
        return demonstrate(seed=self.seed, sets=self.sets, epochs=self.epochs).figures


def _name(task: str | Mapping[str, Any]) -> str:
    """Return the name of a task given by name, or with parameters."""
    return task if isinstance(task, str) else str(task["name"])


def _digest(what: object, length: int) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:length]


@contextmanager
def _naming_the_remedy() -> Iterator[None]:
    """Add what to do about a damaged file."""
    try:
        yield
    except (InputError, ParameterError) as error:
        raise InputError(f"{error}. Remove it, and it is made again") from error
