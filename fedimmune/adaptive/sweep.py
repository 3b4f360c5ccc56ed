"""How points of a search came out: the figures, which is best, and a file that keeps them.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, section
"Hyperparameter search": settings are chosen by the validation accuracy on predicting attackers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from fedimmune import __version__
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.description import FIGURES, Epoch, Outcome
from fedimmune.adaptive.recordings import Recording, digest_of, read_recordings
from fedimmune.adaptive.training import train
from fedimmune.errors import InputError, ParameterError
from fedimmune.io import writable

__all__ = [
    "FIGURES",
    "GRID",
    "Bench",
    "Course",
    "Executor",
    "Grid",
    "InTurn",
    "Outcome",
    "OutcomeFile",
    "Point",
    "Search",
    "bench_for",
    "best_of",
    "described_search",
    "figures_of",
    "points_of",
]

_ALIKE = 9
"""Digits after which two figures count as equal: the rest is rounding."""


def figures_of(
    validation: Sequence[Mapping[str, Any]], attacks: Sequence[str]
) -> dict[str, float | None]:
    """Sum up a validation table: the mean over kinds of attack of each kind's mean.

    Every kind counts the same however many rehearsals it has, and so do the rounds in which nobody
    attacks. Kinds that were not learned are left out: chosen on them, they would be unseen no more.

    Parameters
    ----------
    validation
        Of a defense.
    attacks
        The kinds that it has learned.

    Returns
    -------
    dict
        ``accuracy``, the share of clients who rightly have a weight or rightly have none;
        ``exact``, the share of rounds in which that is right of all; ``benign_kept``, the share of
        honest clients with a weight; ``attacker_weight``, the attackers' share of the weight where
        somebody attacks. None where there was nothing to measure.
    """
    found: dict[str, float | None] = {}
    for name in FIGURES:
        by_kind: dict[str, list[float]] = {}
        for row in validation:
            if row["attack"] in {*attacks, "none"} and row[name] is not None:
                by_kind.setdefault(row["attack"], []).append(row[name])
        means = [math.fsum(values) / len(values) for values in by_kind.values()]
        found[name] = math.fsum(means) / len(means) if means else None
    return found


def best_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Give the most accurate; of several the one with least weight on attackers, then the first."""

    def rank(one: Outcome) -> tuple[float, float]:
        weight = math.inf if one.attacker_weight is None else one.attacker_weight
        return -round(one.accuracy, _ALIKE), round(weight, _ALIKE)

    return min(outcomes, key=rank)  # the first of equals


def described_search(
    grid: Mapping[str, Sequence[Any]], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """Say what was searched, as the defense keeps it.

    Parameters
    ----------
    grid
        Values by name.
    outcomes
        Of all points.

    Returns
    -------
    dict
        ``grid``, the values by name; ``by``, the figure that chose; ``best``, the chosen settings;
        ``points``, one table row each: its settings, figures and epoch.
    """
    return {
        "grid": {name: list(values) for name, values in grid.items()},
        "by": FIGURES[0],
        "best": dict(best_of(outcomes).settings),
        "points": [one.model_dump(mode="json") for one in outcomes],
    }


class OutcomeFile:
    """Outcomes on disk, one JSON object a line, each with the digest of all that it depends on.

    Lines are only ever added. One that was torn by a kill, or is nothing of ours, is passed over:
    at worst a point is trained again.

    Parameters
    ----------
    path
        Where it is, or will be.

    Raises
    ------
    InputError
        No file can be there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        writable(self.path)
        self._lock = threading.Lock()  # points are done in several threads

    def read(self) -> dict[str, Outcome]:
        """Give the outcomes by digest; empty where there is no file."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        found = {}
        for line in lines[:-1]:  # what follows the last line's end was cut off while being written
            try:
                entry = json.loads(line)
                digest = str(entry.pop("digest"))
                found[digest] = Outcome.model_validate(entry)
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
                continue
        return found

    def add(self, digest: str, outcome: Outcome) -> None:
        """Add an outcome; it is on disk when this returns."""
        line = json.dumps({"digest": digest, **outcome.model_dump(mode="json")}) + "\n"
        try:
            with self._lock, self.path.open("ab+") as file:
                # A torn line would swallow this one.
                if file.tell() and _last_byte(file) != b"\n":
                    line = "\n" + line
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error


def _last_byte(file: IO[bytes]) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


Grid = Mapping[str, Sequence[Any]]
"""Values to try, by the setting's name."""
Point = Mapping[str, Any]
"""One value for each of a grid's settings."""

GRID: Grid = {"c": (1, 2, 5, 10, 20), "eps": (0, 0.25, 0.5, 0.75)}
"""What is searched unless something else is asked for: about the paper's choice, with both of its
ablations, c = 1 and ε = 0."""


@dataclass(frozen=True)
class Course:
    """What all points have in common: how `train` is called, except for the point.

    Parameters
    ----------
    form, preset, attacks, anchor, epochs, seed, settings
        As `train` takes them.
    """

    form: str = "relational"
    preset: str | None = None
    attacks: tuple[str, ...] | None = None
    anchor: bool | None = None
    epochs: int = 500
    seed: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    def train(
        self,
        recordings: Sequence[Recording],
        point: Point,
        on_epoch: Callable[[Epoch], None] = lambda _: None,
        *,
        epochs: int | None = None,
        kinds: bool = True,
    ) -> Defense:
        """Train a defense with the settings of a point.

        Parameters
        ----------
        recordings
            All of them.
        point
            Comes before the common settings.
        on_epoch
            Called after every epoch.
        epochs
            Instead of the common number.
        kinds
            Whether it learns to tell kinds of attack apart, too.
        """
        chosen = {**self.settings, **point}
        return train(
            recordings,
            form=self.form,
            preset=self.preset,
            attacks=self.attacks,
            # Whether there is an anchor follows from the recordings too, so it has its own place.
            anchor=chosen.pop("anchor", self.anchor),
            kinds=kinds,
            epochs=self.epochs if epochs is None else epochs,
            seed=self.seed,
            settings=chosen,
            on_epoch=on_epoch,
        )

    def digest(self, recordings: str, point: Point) -> str:
        """Give the key of a point's outcome: all that it depends on.

        Parameters
        ----------
        recordings
            Their digest.
        point
            Which.
        """
        what = {
            "recordings": recordings,
            "form": self.form,
            "preset": self.preset,
            "attacks": None if self.attacks is None else sorted(self.attacks),
            "anchor": self.anchor,
            "epochs": self.epochs,
            "seed": self.seed,
            "settings": {**self.settings, **point},
            # Both may change what the same training comes to.
            "versions": [__version__, torch.__version__],
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


class Bench:
    """Measures points, one at a time.

    Parameters
    ----------
    recordings
        All of them.
    course
        What points have in common.
    """

    def __init__(self, recordings: Sequence[Recording], course: Course) -> None:
        self._recordings, self._course = recordings, course

    def do(self, job: Point) -> Outcome:
        """Train a defense and say how it came out."""
        defense = self._course.train(self._recordings, job, kinds=False)
        found = figures_of(defense.about.validation, defense.about.attacks)
        kept = min(defense.curve, key=lambda epoch: epoch.validation)
        return Outcome.model_validate({"settings": dict(job), "epoch": kept.number, **found})


def bench_for(files: Sequence[Path], digest: str, course: Course) -> Bench:
    """Make the bench of a worker process, which reads the recordings itself.

    Parameters
    ----------
    files
        Folders or files, as `read_recordings` takes them.
    digest
        Of the recordings.
    course
        What points have in common.

    Raises
    ------
    InputError
        The recordings are no longer those of the digest.
    """
    torch.set_num_threads(1)
    recordings = read_recordings(files)
    if digest_of(recordings) != digest:
        raise InputError("the recordings have changed meanwhile: give the same command again")
    return Bench(recordings, course)


def points_of(grid: Grid) -> list[dict[str, Any]]:
    """Give every point of a grid, the last setting changing fastest.

    Raises
    ------
    ParameterError
        There is nothing to try.
    """
    empty = [name for name, values in grid.items() if not values]
    if not grid or empty:
        raise ParameterError(f"a search needs values to try{': ' + empty[0] if empty else ''}")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


class Executor(Protocol):
    """Whoever measures points: a pool of processes with a `Bench` each, or `InTurn`."""

    def do(self, jobs: Sequence[Any], on_done: Callable[[int, Any], None]) -> list[Any]:
        """Carry out jobs, and tell of each its number and its answer as it is done."""


class InTurn:
    """No pool: one bench measures point after point, in this process."""

    def __init__(self, bench: Bench) -> None:
        self._client_runner = bench

    def do(self, jobs: Sequence[Any], on_done: Callable[[int, Any], None]) -> list[Any]:
        answers = []
        for number, job in enumerate(jobs):
            answers.append(self._client_runner.do(job))
            on_done(number, answers[-1])
        return answers


class _Begun(Exception):  # noqa: N818 (no error: it is what one hopes for)
    """A point can be trained."""


def _has_begun(_: Epoch) -> None:
    raise _Begun


class Search:
    """A grid to be searched, and what is known of its points.

    Parameters
    ----------
    recordings
        All of them.
    course
        What points have in common.
    grid
        What to try.
    file
        Keeps outcomes; those that it has already are not measured again.

    Raises
    ------
    ParameterError, InputError
        A point cannot be trained. All are looked at before any is: hours may lie between the two.
    """

    def __init__(
        self, recordings: Sequence[Recording], course: Course, grid: Grid, file: OutcomeFile
    ) -> None:
        self.grid, self._file = grid, file
        self.points = points_of(grid)
        for name in grid:
            if name in course.settings:
                raise ParameterError(f"{name} cannot be both set and searched")
        first_rounds = [
            Recording(each.about, each.grams[:1], each.attackers[:1], each.median_distances[:1])
            for each in recordings
        ]
        for point in self.points:
            # An epoch of one round each says all that there is to refuse; the rest takes time.
            with suppress(_Begun):
                course.train(first_rounds, point, _has_begun, epochs=1, kinds=False)
        digest = digest_of(recordings)
        self._keys = [course.digest(digest, point) for point in self.points]

    @property
    def done(self) -> int:
        """How many points are measured."""
        return len(self._file.read().keys() & set(self._keys))

    def carry_out(
        self, executor: Executor, on_done: Callable[[Outcome], None] = lambda _: None
    ) -> list[Outcome]:
        """Measure the points that are left, and give the outcomes of all in their order.

        Parameters
        ----------
        executor
            Who does it.
        on_done
            Is told of each that was measured now, perhaps from several threads.
        """
        found = self._file.read()
        left = [number for number, key in enumerate(self._keys) if key not in found]

        def keep(number: int, outcome: Outcome) -> None:
            self._file.add(self._keys[left[number]], outcome)
            on_done(outcome)

        answers = executor.do([self.points[number] for number in left], keep)
        found |= {self._keys[number]: answer for number, answer in zip(left, answers, strict=True)}
        # The same settings may have been parted otherwise, into common ones and a point, before.
        return [
            found[key].model_copy(update={"settings": point})
            for key, point in zip(self._keys, self.points, strict=True)
        ]
