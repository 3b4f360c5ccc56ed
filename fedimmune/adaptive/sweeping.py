"""Searching settings: one defence a point of a grid, compared on the run that is kept apart.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, section
"Hyperparameter search": c and ε are chosen by the validation accuracy on predicting attackers. The
paper gives no grid; it reports that values around c = 10, ε = 0.5 do well.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from fedimmune import __version__
from fedimmune.adaptive.defence import Defence
from fedimmune.adaptive.description import Epoch, Outcome
from fedimmune.adaptive.making import train
from fedimmune.adaptive.outcomes import OutcomeFile, figures_of
from fedimmune.adaptive.recordings import Recording, digest_of, read_recordings
from fedimmune.errors import InputError, ParameterError

__all__ = [
    "GRID",
    "Bench",
    "Course",
    "Crew",
    "Grid",
    "InTurn",
    "Point",
    "Search",
    "bench_for",
    "points_of",
]

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
    ) -> Defence:
        """Train a defence with the settings of a point.

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
        """Train a defence and say how it came out."""
        defence = self._course.train(self._recordings, job, kinds=False)
        found = figures_of(defence.about.validation, defence.about.attacks)
        kept = min(defence.curve, key=lambda epoch: epoch.validation)
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


class Crew(Protocol):
    """Whoever measures points: a pool of processes with a `Bench` each, or `InTurn`."""

    def do(self, jobs: Sequence[Any], on_done: Callable[[int, Any], None]) -> list[Any]:
        """Carry out jobs, and tell of each its number and its answer as it is done."""


class InTurn:
    """No pool: one bench measures point after point, in this process."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def do(self, jobs: Sequence[Any], on_done: Callable[[int, Any], None]) -> list[Any]:
        answers = []
        for number, job in enumerate(jobs):
            answers.append(self._bench.do(job))
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
        self, crew: Crew, on_done: Callable[[Outcome], None] = lambda _: None
    ) -> list[Outcome]:
        """Measure the points that are left, and give the outcomes of all in their order.

        Parameters
        ----------
        crew
            Who does it.
        on_done
            Is told of each that was measured now, perhaps from several threads.
        """
        found = self._file.read()
        left = [number for number, key in enumerate(self._keys) if key not in found]

        def keep(number: int, outcome: Outcome) -> None:
            self._file.add(self._keys[left[number]], outcome)
            on_done(outcome)

        answers = crew.do([self.points[number] for number in left], keep)
        found |= {self._keys[number]: answer for number, answer in zip(left, answers, strict=True)}
        # The same settings may have been parted otherwise, into common ones and a point, before.
        return [
            found[key].model_copy(update={"settings": point})
            for key, point in zip(self._keys, self.points, strict=True)
        ]
