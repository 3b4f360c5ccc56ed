"""Search of a defense's settings: points of a grid, how they came out, a file that keeps them.

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

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
    "Executor",
    "Grid",
    "Outcome",
    "OutcomeFile",
    "Point",
    "PointRunner",
    "Search",
    "TrainOptions",
    "best_of",
    "described_search",
    "figures_of",
    "point_runner",
    "points_of",
]

_ALIKE = 9
"""Digits after which two figures count as equal: the rest is rounding."""


def figures_of(
    validation: Sequence[Mapping[str, Any]], attacks: Sequence[str]
) -> dict[str, float | None]:
    """Summarize a defense's validation table: the mean over kinds of attack of each kind's mean.

    All kinds count alike, however many rehearsals they have; rounds in which nobody attacks are one
    of them. Kinds other than the learned `attacks` are left out: if they had a part in the choice,
    they would no longer be unseen.

    Returns
    -------
    dict
        ``accuracy``, the share of clients who rightly have a weight or rightly have none;
        ``exact``, the share of rounds in which that is right for all; ``benign_kept``, the share of
        honest clients with a weight; ``attacker_weight``, the attackers' share of the weight in
        rounds with attackers. None if there was nothing to measure.
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
    """Return the most accurate; of equals the one with least weight on attackers, or the first."""

    def rank(one: Outcome) -> tuple[float, float]:
        weight = math.inf if one.attacker_weight is None else one.attacker_weight
        return -round(one.accuracy, _ALIKE), round(weight, _ALIKE)

    return min(outcomes, key=rank)  # the first of equals


def described_search(
    grid: Mapping[str, Sequence[Any]], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """Describe what was searched, as the defense keeps it.

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
    """Outcomes on disk, one JSON object per line, each with the digest of all that it depends on.

    Lines are only ever added. One that was cut off by a kill, or is not ours, is skipped: at worst
    a point is trained again.

    Raises
    ------
    InputError
        No file can be at `path`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        writable(self.path)
        self._lock = threading.Lock()  # points are added from several threads

    def read(self) -> dict[str, Outcome]:
        """Return the outcomes by digest; empty if there is no file."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        found = {}
        for line in lines[:-1]:  # the last one has no end: it was cut off
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
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a line that was cut off would swallow this one
                        line = "\n" + line
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error


Grid = Mapping[str, Sequence[Any]]
"""Values to try, by the setting's name."""
Point = Mapping[str, Any]
"""One value for each of a grid's settings."""

GRID: Grid = {"c": (1, 2, 5, 10, 20), "eps": (0, 0.25, 0.5, 0.75)}
"""The default: around the paper's choice, with both of its ablations, c = 1 and ε = 0."""


@dataclass(frozen=True)
class TrainOptions:
    """How `train` is called for every point; the parameters are those of `train`."""

    form: str = "relational"
    preset: str | None = None
    attacks: tuple[str, ...] | None = None
    anchor: bool | None = None
    synthetic: bool | None = None
    start: Defense | None = None
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
        """Train a defense with the settings of a point, which override the common ones."""
        chosen = {**self.settings, **point}
        return train(
            recordings,
            form=self.form,
            preset=self.preset,
            attacks=self.attacks,
            # The recordings decide about the anchor too, so it is not among the form's settings.
            anchor=chosen.pop("anchor", self.anchor),
            kinds=kinds,
            synthetic=self.synthetic,
            start=self.start,
            epochs=self.epochs if epochs is None else epochs,
            seed=self.seed,
            settings=chosen,
            on_epoch=on_epoch,
        )

    def measure(self, recordings: Sequence[Recording], point: Point) -> Outcome:
        """Train a defense with the settings of a point, and return how it came out."""
        defense = self.train(recordings, point, kinds=False)
        found = figures_of(defense.about.validation, defense.about.attacks)
        kept = min(defense.curve, key=lambda epoch: epoch.validation)
        return Outcome.model_validate({"settings": dict(point), "epoch": kept.number, **found})

    def digest(self, recordings: str, point: Point) -> str:
        """Digest all that a point's outcome depends on, given the recordings' digest."""
        what = {
            **asdict(self),
            "recordings": recordings,
            "attacks": None if self.attacks is None else sorted(self.attacks),
            "settings": {**self.settings, **point},
            # Another version may train to another result.
            "versions": [__version__, torch.__version__],
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


class PointRunner:
    """Measures points, one at a time, in a worker process."""

    def __init__(self, recordings: Sequence[Recording], options: TrainOptions) -> None:
        self._recordings, self._options = recordings, options

    def do(self, job: Point) -> Outcome:
        return self._options.measure(self._recordings, job)


def point_runner(files: Sequence[Path], digest: str, options: TrainOptions) -> PointRunner:
    """Make the runner of a worker process, which reads the recordings itself.

    Raises
    ------
    InputError
        The recordings no longer have this digest.
    """
    torch.set_num_threads(1)
    recordings = read_recordings(files)
    if digest_of(recordings) != digest:
        raise InputError("the recordings have changed meanwhile: start the same command again")
    return PointRunner(recordings, options)


def points_of(grid: Grid) -> list[dict[str, Any]]:
    """Return every point of a grid, the last setting changing fastest.

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
    """A pool of processes with a `PointRunner` each."""

    def do(self, jobs: Sequence[Any], on_done: Callable[[int, Any], None]) -> list[Any]:
        """Carry out jobs; `on_done` is called with each job's number and answer."""


class _Begun(Exception):  # noqa: N818 (not an error: it is what one hopes for)
    """A point can be trained."""


def _has_begun(_: Epoch) -> None:
    raise _Begun


class Search:
    """A grid to be searched, and what is known of its points.

    Parameters
    ----------
    recordings
        All of them.
    options
        What points have in common.
    grid
        What to try.
    file
        Keeps outcomes; those that it has already are not measured again.

    Raises
    ------
    ParameterError, InputError
        A point cannot be trained. All are checked before the first is trained, which may be hours
        before the last.
    """

    def __init__(
        self, recordings: Sequence[Recording], options: TrainOptions, grid: Grid, file: OutcomeFile
    ) -> None:
        self.grid, self._file = grid, file
        self._recordings, self._options = recordings, options
        self.points = points_of(grid)
        for name in grid:
            if name in options.settings:
                raise ParameterError(f"{name} cannot be both set and searched")
        first_rounds = [each.take(slice(1)) for each in recordings]
        for point in self.points:
            # One epoch on one round of each is refused for the same reasons as the whole.
            with suppress(_Begun):
                options.train(first_rounds, point, _has_begun, epochs=1, kinds=False)
        digest = digest_of(recordings)
        self._keys = [options.digest(digest, point) for point in self.points]

    @property
    def done(self) -> int:
        """Number of points that are measured."""
        return len(self._file.read().keys() & set(self._keys))

    def carry_out(
        self,
        executor: Executor | None = None,
        on_done: Callable[[Outcome], None] = lambda _: None,
    ) -> list[Outcome]:
        """Measure the points that are left, and return the outcomes of all in their order.

        Parameters
        ----------
        executor
            Measures several at a time; by default this process measures one after the other.
        on_done
            Called with each new outcome, perhaps from several threads.
        """
        found = self._file.read()
        left = [number for number, key in enumerate(self._keys) if key not in found]
        points = [self.points[number] for number in left]

        def keep(number: int, outcome: Outcome) -> None:
            found[self._keys[left[number]]] = outcome
            self._file.add(self._keys[left[number]], outcome)
            on_done(outcome)

        if executor is not None:
            executor.do(points, keep)
        else:
            for number, point in enumerate(points):
                keep(number, self._options.measure(self._recordings, point))
        # Common settings and points may have been split differently before: the key is the same.
        return [
            found[key].model_copy(update={"settings": point})
            for key, point in zip(self._keys, self.points, strict=True)
        ]
