"""What an experiment is made of: parts that need each other, each made once and kept in a file.

A part knows what it needs, whether it is there, and how it is made. Two parts of the same `key` are
the same, whichever artefacts ask for them: that is how recordings, defences and runs are shared.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from glob import escape
from pathlib import Path
from typing import Any

from fedimmune.adaptive.making import make_defence
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.adaptive.training import write_curve
from fedimmune.errors import FedimmuneError, InputError
from fedimmune.experiments.contenders import Contender, contender
from fedimmune.experiments.scales import Rehearsing, Setting, setting_of
from fedimmune.experiments.store import Store
from fedimmune.federation import Scenario, run_folder, simulate
from fedimmune.federation.plan import plan
from fedimmune.federation.rehearsal import Rehearsal, rehearse
from fedimmune.records import RoundRecord
from fedimmune.runs import RunFolder
from fedimmune.tasks import Facts, data_folder, load_data

__all__ = [
    "Part",
    "Played",
    "Rehearsed",
    "Trained",
    "closure",
    "rehearsed",
    "run_seconds",
    "trained",
]

_TESTS = 1 / 3
"""What testing on a sample costs, in trainings on one."""


class Part(ABC):
    """Something to be made once."""

    seconds: float
    """About how long one core takes."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Tells it from all others."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is called in front of people; no two parts of a scale are called the same."""

    @property
    def needs(self) -> tuple[Part, ...]:
        """What has to be there first."""
        return ()

    @abstractmethod
    def is_made(self, store: Store) -> bool:
        """Whether it is there."""

    @abstractmethod
    def make(self, store: Store) -> None:
        """Make it, in a process of one thread; whole, or so that it goes on where it was."""

    @property
    def played(self) -> Scenario | None:
        """The scenario whose data it is made from; None for a part that needs no data."""
        return None

    def progress(self, store: Store) -> float:
        """How much of it is there, from 0 to 1, while it is being made."""
        return 0.0

    def joined(self, other: Part) -> Part:
        """Give what serves those who asked for this as well as for another one of its key."""
        return self


def closure(parts: Iterable[Part]) -> list[Part]:
    """Give parts and all that they need, each once, what is needed before who needs it."""
    found: dict[str, Part] = {}

    def add(part: Part) -> None:
        if part.key in found:
            found[part.key] = found[part.key].joined(part)
            return
        for each in part.needs:
            add(each)
        found[part.key] = part

    for part in parts:
        add(part)
    return list(found.values())


# -------------------------------------------------------------------- rehearsals


@dataclass(frozen=True)
class Rehearsed(Part):
    """A recording.

    Parameters
    ----------
    rehearsal
        What is rehearsed.
    seconds
        About how long it takes.
    """

    rehearsal: Rehearsal
    seconds: float

    @cached_property
    def key(self) -> str:
        return f"recordings/{self.rehearsal.file_name}"

    @property
    def title(self) -> str:
        task, name = self.played.task.label, self.rehearsal.file_name.rpartition("-")[0]
        epochs = self.played.local_epochs
        return f"rehearsal {task} {name}" + (f", {epochs} local epochs" if epochs > 1 else "")

    @property
    def played(self) -> Scenario:
        return self.rehearsal.scenario

    def file(self, store: Store) -> Path:
        """Where the recording is."""
        return store.recordings / self.rehearsal.file_name

    def is_made(self, store: Store) -> bool:
        return self.file(store).is_file()

    def make(self, store: Store) -> None:
        task = self.played.make_task()
        recording = rehearse(self.rehearsal, task, load_data(task, data_folder(store.data)))
        store.recordings.mkdir(parents=True, exist_ok=True)
        recording.save(self.file(store))


def rehearsed(
    setting: Setting, rehearsing: Rehearsing, attacks: Sequence[str], device: str = "cpu"
) -> tuple[Rehearsed, ...]:
    """List the rehearsals that a defence learns from.

    Parameters
    ----------
    setting
        The task at its scale.
    rehearsing
        How.
    attacks
        Kinds to rehearse.
    device
        Where clients train.
    """
    # The server deals out all that it has, however few samples real clients get.
    base = {name: value for name, value in setting.fields.items() if name != "partition"}
    if rehearsing.rounds is not None:
        base["rounds"] = rehearsing.rounds
    if device != "cpu":
        base["device"] = device
    listed = plan(
        base,
        Facts(classes=1, shape=()),  # patterns are fixed: nothing is drawn by what data there is
        attacks=attacks,
        attackers=rehearsing.attackers,
        runs=rehearsing.runs,
        follow=rehearsing.follow,
        local_epochs=rehearsing.local_epochs,
    )
    return tuple(
        Rehearsed(
            each,
            setting.tested
            * setting.sample_seconds
            * each.scenario.rounds
            * each.scenario.local_epochs,
        )
        for each in listed
    )


# -------------------------------------------------------------------- defences


@dataclass(frozen=True)
class Trained(Part):
    """A defence.

    Parameters
    ----------
    task
        In the paper's experiments.
    contender
        Whose it is.
    attacks
        What it has rehearsed.
    recordings
        What it learns from.
    epochs
        Of its training.
    seconds
        About how long that takes.
    """

    task: str
    contender: Contender
    attacks: tuple[str, ...]
    recordings: tuple[Rehearsed, ...]
    epochs: int
    seconds: float

    @cached_property
    def key(self) -> str:
        learned = self.contender.learned
        assert learned is not None
        what = {
            "recordings": sorted(each.key for each in self.recordings),
            "form": learned.form,
            "settings": dict(learned.settings),
            "kinds": learned.kinds,
            "epochs": self.epochs,
        }
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
        return f"defences/{self.task}-{self.contender.key}-{'+'.join(self.attacks)}-{digest}"

    @property
    def title(self) -> str:
        return f"defence {self.key.removeprefix('defences/')}"

    @property
    def needs(self) -> tuple[Part, ...]:
        return self.recordings

    def file(self, store: Store) -> Path:
        """Where the defence is."""
        return store.folder / f"{self.key}.defence"

    def is_made(self, store: Store) -> bool:
        return self.file(store).is_file()

    def make(self, store: Store) -> None:
        learned = self.contender.learned
        assert learned is not None
        with _made_again_if_removed():
            recordings = read_recordings(sorted(each.file(store) for each in self.recordings))
        defence, curve = make_defence(
            recordings,
            form=learned.form,
            kinds=learned.kinds,
            settings=learned.settings,
            epochs=self.epochs,
        )
        store.defences.mkdir(parents=True, exist_ok=True)
        write_curve(curve, self.file(store))
        defence.save(self.file(store))


@cache
def trained(
    task: str, scale: str, key: str, attacks: tuple[str, ...], device: str = "cpu"
) -> Trained:
    """Say which defence a contender uses.

    Parameters
    ----------
    task, scale
        Of the paper's experiments.
    key
        Of a contender that is learned.
    attacks
        What it rehearses.
    device
        Where clients train.
    """
    setting, who = setting_of(task, scale), contender(key)
    learned = who.learned
    assert learned is not None
    how = setting.to_the_letter if learned.to_the_letter else setting.shipped
    recordings = rehearsed(setting, how, attacks, device)
    rounds = sum(each.rehearsal.scenario.rounds for each in recordings)
    return Trained(
        task=_name_of(setting.fields["task"]),
        contender=who,
        attacks=attacks,
        recordings=recordings,
        epochs=setting.epochs,
        seconds=rounds * setting.epochs * setting.epoch_seconds,
    )


def _name_of(task: str | Mapping[str, Any]) -> str:
    return task if isinstance(task, str) else str(task["name"])


# -------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Played(Part):
    """A run.

    Parameters
    ----------
    fields
        Of its scenario, but for the rule.
    contender
        Who defends.
    defence
        What it uses, where it needs one.
    seconds
        About how long it takes.
    keep
        Layers whose updates are kept with the run.
    """

    fields: Mapping[str, Any]
    contender: Contender
    defence: Trained | None
    seconds: float
    keep: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        by = self.contender.rule if self.defence is None else self.defence.key
        # By the whole scenario: fields that say the same in other words make the same run. What is
        # kept with it makes no other run: it has one folder.
        what = f"{self.played.digest} {by}"
        return f"runs/{hashlib.sha256(what.encode()).hexdigest()[:16]}"

    def joined(self, other: Part) -> Part:
        assert isinstance(other, Played)
        return replace(self, keep=tuple(dict.fromkeys((*self.keep, *other.keep))))

    @cached_property
    def title(self) -> str:
        name = self._called(self.contender.key)
        attack = self.played.attack
        usual = Scenario(**{**self.fields, "attack": attack.name}).attack.parameters
        said = [f"{n} {value}" for n, value in attack.parameters.items() if value != usual.get(n)]
        if self.defence is not None:
            said.append(f"trained on {'+'.join(self.defence.attacks)}")
        if self.keep:
            said.append(f"keeping {', '.join(self.keep)}")
        return f"{name} ({'; '.join(said)})" if said else name

    def _called(self, rule: str) -> str:
        return self.played.title.replace("-mean-", f"-{rule}-", 1)

    @property
    def played(self) -> Scenario:
        return _scenario(json.dumps(self.fields, sort_keys=True))

    @property
    def needs(self) -> tuple[Part, ...]:
        return () if self.defence is None else (self.defence,)

    def scenario(self, store: Store) -> Scenario:
        """Give what is played; a learned rule's defence has to be there."""
        rule: Any = self.contender.rule
        written = 0
        if self.defence is not None:
            file = self.defence.file(store)
            rule = {"name": rule, "defence": str(file)}
            written = file.stat().st_mtime_ns if file.is_file() else 0
        return _scenario(json.dumps({**self.fields, "rule": rule}, sort_keys=True), written)

    def folder(self, store: Store) -> RunFolder:
        """Give the run's folder."""
        return run_folder(self.scenario(store), store.runs)

    def is_made(self, store: Store) -> bool:
        if self.defence is not None and not self.defence.is_made(store):
            return False
        # To say which folder it is takes reading the defence; to see that there is none does not.
        if not any(store.runs.glob(f"{escape(self._called(self.contender.rule))}-*")):
            return False
        try:
            folder = self.folder(store)
            return folder.is_finished and not self._must_begin_anew(folder)
        except FedimmuneError:  # the defence is damaged, which `make` says
            return False

    def make(self, store: Store) -> None:
        with _made_again_if_removed():
            folder = self.folder(store)
        anew = self._must_begin_anew(folder)
        records = simulate(
            self.scenario(store),
            data=store.data,
            runs=store.runs,
            workers=1,
            force=anew,
            keep=self.keep,
        )
        for _ in records:
            pass

    def progress(self, store: Store) -> float:
        try:
            return len(self.folder(store).records()) / self.played.rounds
        except FedimmuneError:  # it is for its process to say what is wrong
            return 0.0

    def records(self, store: Store) -> list[RoundRecord]:
        """Read the finished run's records."""
        return self.folder(store).records()

    def _must_begin_anew(self, folder: RunFolder) -> bool:
        """Whether records are missing or damaged, or rounds did not keep what is to be kept."""
        try:
            played = len(folder.records())
        except InputError:
            return True
        if folder.is_finished and played != self.played.rounds:
            return True
        return any(folder.traces.lacking(layer, played) for layer in self.keep)


@cache
def _scenario(fields: str, _written: int = 0) -> Scenario:
    """Check fields, once: runs of many rules have the same, and a list has thousands of runs.

    Parameters
    ----------
    fields
        As JSON.
    _written
        When the defence was, which may be made again.
    """
    return Scenario(**json.loads(fields))


@contextmanager
def _made_again_if_removed() -> Iterator[None]:
    """Say of a file that is damaged what to do about it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}. Remove it, and it is made again") from error


def run_seconds(setting: Setting, *, rounds: int) -> float:
    """Say about how long one core plays a run."""
    visits = setting.samples + 2 * _TESTS * setting.tested
    return rounds * visits * setting.sample_seconds
