"""Parts that are no rehearsals, defences or runs: points of a search, partitions, drawn sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedimmune.adaptive.outcomes import Outcome
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.adaptive.sweeping import Bench, Course
from fedimmune.errors import InputError
from fedimmune.experiments.learned_parts import Rehearsed
from fedimmune.experiments.parts import Part
from fedimmune.experiments.store import Store
from fedimmune.federation import Scenario
from fedimmune.federation.scenario import ResolvedScenario
from fedimmune.federation.seeds import generator
from fedimmune.files import write_text_atomically
from fedimmune.synthetic import Demonstration, demonstrate
from fedimmune.tasks import data_folder, load_data

__all__ = ["Dealt", "Demonstrated", "Searched"]


class _InAFile(Part):
    """A part that is one JSON file."""

    def file(self, store: Store) -> Path:
        """Where it is."""
        return store.folder / f"{self.key}.json"

    def is_made(self, store: Store) -> bool:
        return self.file(store).is_file()

    def _write(self, store: Store, found: object) -> None:
        self.file(store).parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(json.dumps(found) + "\n", self.file(store))

    def _read(self, store: Store) -> Any:
        try:
            return json.loads(self.file(store).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._damaged(store, error) from error

    def _damaged(self, store: Store, why: object) -> InputError:
        return InputError(
            f"{self.file(store)} cannot be read ({why}): remove it, and it is made again"
        )


@dataclass(frozen=True)
class Searched(_InAFile):
    """How a defence of the paper's form comes out with some settings.

    Parameters
    ----------
    recordings
        What it learns from, and is measured on.
    point
        Its settings, by name.
    epochs
        Of its training.
    seconds
        About how long that takes.
    """

    recordings: tuple[Rehearsed, ...]
    point: tuple[tuple[str, Any], ...]
    epochs: int
    seconds: float

    @cached_property
    def key(self) -> str:
        recordings = sorted(each.key for each in self.recordings)
        what = [recordings, self.point, self.epochs, "signs settled"]
        return f"others/search-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]}"

    @property
    def title(self) -> str:
        return "search " + ", ".join(f"{name} = {value}" for name, value in self.point)

    @property
    def needs(self) -> tuple[Part, ...]:
        return self.recordings

    def make(self, store: Store) -> None:
        files = sorted(each.file(store) for each in self.recordings)
        course = Course(form="paper", epochs=self.epochs)
        found = Bench(read_recordings(files), course).do(dict(self.point))
        self._write(store, found.model_dump(mode="json"))

    def outcome(self, store: Store) -> Outcome:
        """Read how it came out."""
        try:
            return Outcome.model_validate(self._read(store))
        except ValidationError as error:
            raise self._damaged(store, error.errors()[0]["msg"]) from error


@dataclass(frozen=True)
class Dealt(_InAFile):
    """How a task's samples are dealt out.

    Parameters
    ----------
    fields
        Of a scenario, as JSON.
    clients
        How many there are.
    """

    fields: str
    clients: int
    seconds: float = 1.0

    @cached_property
    def key(self) -> str:
        digest = hashlib.sha256(self.fields.encode()).hexdigest()[:12]
        return f"others/partition-{self.clients}-{digest}"

    @property
    def title(self) -> str:
        return f"partition among {self.clients} clients"

    @property
    def played(self) -> ResolvedScenario:
        return Scenario(**json.loads(self.fields), clients=self.clients).resolve()

    def make(self, store: Store) -> None:
        scenario = self.played
        data = load_data(scenario.make_task(), data_folder(store.data))
        labels = data.clients.labels
        parts = scenario.make_partition().divide(
            labels, self.clients, generator(scenario.seed, "partition")
        )
        counts = [labels[part].bincount(minlength=data.classes).tolist() for part in parts]
        self._write(store, counts)

    def counts(self, store: Store) -> list[list[int]]:
        """Read how many samples of each class each client has."""
        found: list[list[int]] = self._read(store)
        return found


@dataclass(frozen=True)
class Demonstrated(_InAFile):
    """What the synthetic demonstration came to.

    Parameters
    ----------
    seed, sets, epochs
        As `fedimmune.synthetic.demonstrate` takes them.
    """

    seed: int
    sets: int
    epochs: int
    seconds: float = 15.0

    @property
    def key(self) -> str:
        return f"others/synthetic-{self.seed}-{self.sets}-{self.epochs}"

    @property
    def title(self) -> str:
        return f"synthetic sets, seed {self.seed}"

    def make(self, store: Store) -> None:
        self._write(store, self.demonstration().figures)

    def demonstration(self) -> Demonstration:
        """Carry it out; the same every time, for it is seeded."""
        return demonstrate(seed=self.seed, sets=self.sets, epochs=self.epochs)

    def figures(self, store: Store) -> Mapping[str, float]:
        """Read what was measured."""
        found: dict[str, float] = self._read(store)
        return found
