"""Parts that are runs, and how long they take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from glob import escape
from typing import Any

from fedimmune.errors import FedimmuneError, InputError
from fedimmune.experiments.contenders import Contender
from fedimmune.experiments.learned_parts import Trained, name_of
from fedimmune.experiments.parts import Part, made_again_if_removed
from fedimmune.experiments.scales import Setting
from fedimmune.experiments.store import Store
from fedimmune.federation import Scenario, run_folder, simulate
from fedimmune.federation.scenario import ResolvedScenario
from fedimmune.records import RoundRecord
from fedimmune.runs import RunFolder

__all__ = ["Played", "run_seconds"]

_TESTS = 1 / 3
"""What testing on a sample costs, in trainings on one."""


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
        usual = Scenario(**{**self.fields, "attack": attack.name}).resolve().attack.parameters
        said = [f"{n} {value}" for n, value in attack.parameters.items() if value != usual.get(n)]
        if self.defence is not None:
            said.append(f"trained on {'+'.join(self.defence.attacks)}")
        if self.keep:
            said.append(f"keeping {', '.join(self.keep)}")
        return f"{name} ({'; '.join(said)})" if said else name

    def _called(self, rule: str) -> str:
        return self.played.title.replace("-mean-", f"-{rule}-", 1)

    @property
    def played(self) -> ResolvedScenario:
        return _scenario(json.dumps(self.fields, sort_keys=True))

    @property
    def needs(self) -> tuple[Part, ...]:
        return () if self.defence is None else (self.defence,)

    def scenario(self, store: Store) -> ResolvedScenario:
        """Give what is played; a learned rule's defence has to be there."""
        rule: Any = self.contender.rule
        written = 0
        if self.defence is not None:
            file = self.defence.file(store)
            rule = {"name": rule, "defence": str(file)}
            if self.defence.task != name_of(self.fields["task"]):
                rule["any_shape"] = True  # a task with the same layers and other classes
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
        with made_again_if_removed():
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
def _scenario(fields: str, _written: int = 0) -> ResolvedScenario:
    """Check fields, once: runs of many rules have the same, and a list has thousands of runs.

    Parameters
    ----------
    fields
        As JSON.
    _written
        When the defence was, which may be made again.
    """
    return Scenario(**json.loads(fields)).resolve()


def run_seconds(setting: Setting, *, rounds: int) -> float:
    """Say about how long one core plays a run."""
    visits = setting.samples + 2 * _TESTS * setting.tested
    return rounds * visits * setting.sample_seconds
