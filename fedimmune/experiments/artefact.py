"""What an artefact is: something that the paper shows, and what has to be made to show it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedimmune.experiments.asking import Ask
from fedimmune.experiments.parts import Part
from fedimmune.experiments.scales import setting_of
from fedimmune.experiments.store import Store

__all__ = ["Artefact", "Results"]


@dataclass(frozen=True)
class Results:
    """What there is to show.

    Parameters
    ----------
    csv, markdown, latex
        The tables; empty where an artefact has none.
    draw
        Draws the figure to a path without its suffix, as PNG and PDF, and says what it wrote.
    shown, wanted
        How many parts there are to show, and how many were asked for.
    scenarios
        What was played, in full.
    """

    csv: str
    markdown: str
    latex: str
    draw: Callable[[Path], list[Path]]
    shown: int
    wanted: int
    scenarios: tuple[Mapping[str, Any], ...] = field(default=())


@dataclass(frozen=True)
class Artefact(ABC):
    """A table or a figure of the paper.

    Parameters
    ----------
    id
        As commands name it.
    title
        What it is called in front of people.
    shows
        What is to be seen, in a sentence.
    source
        Where it is in the paper.
    tasks
        What is learned, by scale; more than one are shown in tables of their own.
    """

    id: str
    title: str
    shows: str
    source: str
    tasks: Mapping[str, tuple[str, ...]]

    def reduced(self, scale: str) -> str:
        """Say what is not as in the paper; nothing where all is."""
        tasks, papers = self.tasks[scale], self.tasks["paper"]
        said = {task: setting_of(task, scale).reduced for task in tasks}
        if len(tasks) > 1:
            every = [f"on {task}, {reduced}" for task, reduced in said.items() if reduced]
        else:
            every = [reduced for reduced in said.values() if reduced]
        if scale != "smoke" and not {*tasks} & {*papers}:
            every.insert(0, f"{' and '.join(tasks)} instead of {' and '.join(papers)}")
        return "; ".join(every)

    def offers(self, ask: Ask) -> Mapping[str, Sequence[str]] | None:
        """Say what can be chosen, whatever was: values by field; None where all is made at once.

        Parameters
        ----------
        ask
            At which scale and with how many seeds.
        """
        return None

    def check_earlier(self, ask: Ask, earlier: Path) -> None:  # noqa: B027 (a whole has no rows)
        """See, before anything is made, that what is asked for can take a published table's place.

        Parameters
        ----------
        ask
            What is wanted.
        earlier
            The CSV that was published before, should there be one.

        Raises
        ------
        InputError
            It is no such table, or has rows that would get lost.
        """

    @abstractmethod
    def parts(self, ask: Ask) -> list[Part]:
        """List what has to be made; `fedimmune.experiments.parts.closure` adds what that needs."""

    @abstractmethod
    def results(self, ask: Ask, store: Store, earlier: Path | None = None) -> Results:
        """Show what is there, were it only a part.

        Parameters
        ----------
        ask
            What is wanted.
        store
            Where its parts are.
        earlier
            The CSV that was published before, should there be one: in a table of runs, what it
            tells stands in for runs that are not in the store.
        """
