"""How points of a search came out: the figures, which is best, and a file that keeps them.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, section
"Hyperparameter search": settings are chosen by the validation accuracy on predicting attackers.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedimmune.adaptive.description import FIGURES, Outcome
from fedimmune.errors import InputError
from fedimmune.files import writable

__all__ = [
    "FIGURES",
    "Outcome",
    "OutcomeFile",
    "best_of",
    "described_search",
    "figures_of",
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
        Of a defence.
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
    """Say what was searched, as the defence keeps it.

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
