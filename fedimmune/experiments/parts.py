"""What an experiment is made of: parts that need each other, each made once and kept in a file.

A part knows what it needs, whether it is there, and how it is made. Two parts of the same `key` are
the same, whichever artefacts ask for them: that is how recordings, defences and runs are shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedimmune.errors import InputError, ParameterError
from fedimmune.experiments.store import Store
from fedimmune.federation.scenario import ResolvedScenario

__all__ = ["Part", "closure", "made_again_if_removed"]


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
    def played(self) -> ResolvedScenario | None:
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


@contextmanager
def made_again_if_removed() -> Iterator[None]:
    """Say of a file that is damaged what to do about it."""
    try:
        yield
    except (InputError, ParameterError) as error:
        raise InputError(f"{error}. Remove it, and it is made again") from error
