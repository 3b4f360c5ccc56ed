"""What a report is made of: runs, read from their folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedimmune.errors import InputError
from fedimmune.records import ClientData, RoundRecord
from fedimmune.report.truth import with_truth
from fedimmune.runs import RunFolder

__all__ = ["Run", "read_run", "read_runs"]

_SIGNS = ("scenario.toml", "rounds.jsonl")
"""A folder with one of these is a run's, perhaps a damaged one's."""


@dataclass(frozen=True)
class Run:
    """One run, as its folder has it.

    Parameters
    ----------
    path
        The folder.
    scenario
        What was run, as it was written down.
    records
        Of the rounds that are there.
    is_finished
        Whether all rounds were played.
    partition
        Who has which data, where that is known.
    """

    path: Path
    scenario: Mapping[str, Any]
    records: tuple[RoundRecord, ...]
    is_finished: bool
    partition: tuple[ClientData, ...] | None = None

    def choice(self, field: str) -> tuple[str, dict[str, Any]]:
        """Give the name and the parameters of a task, a rule, an attack or a partition."""
        found = self.scenario.get(field)
        if isinstance(found, Mapping):
            rest = {name: value for name, value in found.items() if name != "name"}
            return str(found.get("name", "")), rest
        return str(found or ""), {}

    def whole(self, field: str) -> int | None:
        """Give a whole number of the scenario's; None where it has none of that name."""
        found = self.scenario.get(field)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @property
    def rule(self) -> str:
        """Name of the rule."""
        return self.choice("rule")[0] or "unnamed rule"

    @property
    def rule_key(self) -> str:
        """Tells rules apart, parameters included."""
        return json.dumps(self.scenario.get("rule"), sort_keys=True, default=str)

    @property
    def seed(self) -> int:
        """Where its chance was from; 0 where that is not said."""
        return self.whole("seed") or 0

    @property
    def planned(self) -> int:
        """How many rounds it was to have."""
        return self.whole("rounds") or len(self.records)

    @cached_property
    def knows_truth(self) -> bool:
        """Whether it is known who attacks, as in a simulation."""
        told = (client.is_attacker for record in self.records for client in record.clients)
        data = (client.is_attacker for client in self.partition or ())
        return any(a is not None for a in told) or any(a is not None for a in data)

    @cached_property
    def attackers(self) -> frozenset[str]:
        """Who is known to attack."""
        seen = {c.client for record in self.records for c in record.clients if c.is_attacker}
        return frozenset(seen | {c.client for c in self.partition or () if c.is_attacker})

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Everyone who ever took part, numbers first."""
        seen = {client.client for record in self.records for client in record.clients}
        return tuple(sorted(seen, key=_in_order))


def _in_order(client: str) -> tuple[bool, int, str]:
    is_number = client.isascii() and client.isdecimal()
    return not is_number, len(client) if is_number else 0, client


def read_runs(places: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Read runs.

    Parameters
    ----------
    places
        Run folders, or folders of run folders, which stand for all runs in them.

    Raises
    ------
    InputError
        There is no such folder, no run in it, or a run is damaged; the message names it.
    """
    folders: dict[Path, Path] = {}  # by where they really are: nothing is reported twice
    for place in places:
        for folder in _run_folders(Path(place)):
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise InputError("a report needs a run: `fedimmune simulate` makes one")
    return [read_run(folder) for folder in folders.values()]


def read_run(folder: Path) -> Run:
    """Read one run from its folder."""
    if not (folder / "scenario.toml").is_file():
        raise InputError(f"the run {folder} is damaged: it has no scenario.toml")
    run = RunFolder(folder)
    try:
        partition = run.partition()
        return Run(
            path=folder,
            scenario=run.scenario(),
            records=with_truth(run.records(), partition),
            is_finished=run.is_finished,
            partition=partition,
        )
    except InputError as error:
        raise InputError(f"the run {folder} is damaged: {error}") from error
    except OSError as error:
        raise InputError(f"cannot read the run {folder}: {error.strerror}") from error


def _run_folders(place: Path) -> list[Path]:
    try:
        if not place.is_dir():
            problem = "is no folder" if place.exists() else "does not exist"
            raise InputError(f"{place} {problem}: name a run's folder, or a folder of runs")
        if _is_run(place):
            return [place]
        within = [folder for folder in sorted(place.iterdir()) if folder.is_dir()]
        found = [folder for folder in within if _is_run(folder)]
    except OSError as error:
        raise InputError(f"cannot read {place}: {error.strerror}") from error
    if not found:
        raise InputError(f"there is no run in {place}: `fedimmune simulate` makes one")
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / sign).exists() for sign in _SIGNS)
