"""Parts that a learned rule needs: rehearsals, and the defences that learn from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from fedimmune.adaptive.making import train
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.experiments.contenders import Contender, contender
from fedimmune.experiments.parts import Part, made_again_if_removed
from fedimmune.experiments.scales import Rehearsing, Setting, setting_of
from fedimmune.experiments.store import Store
from fedimmune.federation.plan import plan
from fedimmune.federation.rehearsal import Rehearsal, carry_out
from fedimmune.federation.scenario import ResolvedScenario
from fedimmune.tasks import Facts, data_folder, load_data

__all__ = ["Rehearsed", "Trained", "name_of", "rehearsed", "trained"]


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
    def played(self) -> ResolvedScenario:
        return self.rehearsal.scenario

    def file(self, store: Store) -> Path:
        """Where the recording is."""
        return store.recordings / self.rehearsal.file_name

    def is_made(self, store: Store) -> bool:
        return self.file(store).is_file()

    def make(self, store: Store) -> None:
        task = self.played.make_task()
        recording = carry_out(self.rehearsal, task, load_data(task, data_folder(store.data)))
        store.recordings.mkdir(parents=True, exist_ok=True)
        recording.save(self.file(store))


def rehearsed(
    setting: Setting,
    rehearsing: Rehearsing,
    attacks: Sequence[str],
    device: str = "cpu",
    on: Literal["server", "clients"] = "server",
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
    on
        Whose data they train on.
    """
    base = dict(setting.fields)
    if on == "server":
        base.pop("partition", None)  # it deals out all that it has, however little real clients get
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
        on=on,
        protocol=setting.protocol,
    )
    samples = setting.tested if on == "server" else setting.samples
    return tuple(
        Rehearsed(
            each,
            samples * setting.sample_seconds * each.scenario.rounds * each.scenario.local_epochs,
        )
        for each in listed
    )


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
        with made_again_if_removed():
            recordings = read_recordings(sorted(each.file(store) for each in self.recordings))
        defence = train(
            recordings,
            form=learned.form,
            kinds=learned.kinds,
            settings=learned.settings,
            epochs=self.epochs,
        )
        store.defences.mkdir(parents=True, exist_ok=True)
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
    if learned.on == "clients":
        how = setting.on_clients
    recordings = rehearsed(setting, how, attacks, device, learned.on)
    rounds = sum(each.rehearsal.scenario.rounds for each in recordings)
    return Trained(
        task=name_of(setting.fields["task"]),
        contender=who,
        attacks=attacks,
        recordings=recordings,
        epochs=setting.epochs,
        seconds=rounds * setting.epochs * setting.epoch_seconds,
    )


def name_of(task: str | Mapping[str, Any]) -> str:
    """Give the name of a task that a scenario has by name, or with parameters."""
    return task if isinstance(task, str) else str(task["name"])
