"""What somebody wants to see of an artefact: at which scale, how often, and only what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedimmune.errors import ParameterError
from fedimmune.experiments.rows import FIELDS, MEASURED
from fedimmune.experiments.scales import SCALES

__all__ = ["Ask", "Which", "read_only", "read_seeds", "spelled"]

_SEEDS = {"smoke": 1, "cpu": 1, "paper": 3, "authors": 3}

Which = Mapping[str, frozenset[str]]
"""Values that rows may have, by field; fields that are not named may have any."""


@dataclass(frozen=True)
class Ask:
    """What is wanted.

    Parameters
    ----------
    scale
        One of `SCALES`.
    repeats
        How many seeds, from 1 on; None for the scale's own: three as in the paper, else one.
    only
        Which rows; all where nothing is named.
    device
        Where clients train.
    repeats_of
        How many seeds for which rows, where it is not `repeats`; of several that suit a row the
        last one counts.

    Raises
    ------
    ParameterError
        There is no such scale, or no seed.
    """

    scale: str = "cpu"
    repeats: int | None = None
    only: Which = field(default_factory=dict)
    device: str = "cpu"
    repeats_of: tuple[tuple[Which, int], ...] = ()

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ParameterError(f"there is no scale {self.scale!r}; there are {', '.join(SCALES)}")
        counts = (self.repeats, *(count for _, count in self.repeats_of))
        for count in counts:
            if count is not None and count < 1:
                raise ParameterError(f"there has to be a seed at least: {count}")

    @property
    def seeds(self) -> range:
        """The seeds to play, where nothing else is said of a row."""
        return _first(_SEEDS[self.scale] if self.repeats is None else self.repeats)

    def seeds_of(self, **values: Any) -> range:
        """Give the seeds to play for a row of these values."""
        suiting = [_first(count) for choice, count in self.repeats_of if _suits(choice, values)]
        return suiting[-1] if suiting else self.seeds

    def admits(self, **values: Any) -> bool:
        """Whether something of these values is wanted."""
        return _suits(self.only, values)

    def check(self, offers: Mapping[str, Mapping[str, Sequence[str]] | None]) -> None:
        """See that there is what is to be chosen.

        Parameters
        ----------
        offers
            What there is, as `Artefact.offers` says it, by the artefact's id.

        Raises
        ------
        ParameterError
            An artefact is made at once, or none has such a value.
        """
        asked = [("--only ", self.only)]
        asked += [(f"--seeds {count}:", choice) for choice, count in self.repeats_of]
        for option, choice in asked:
            for artefact, offered in offers.items():
                if choice and offered is None:
                    raise ParameterError(
                        f"{artefact} is made as a whole and has no runs to choose from. Ask for it "
                        f"by itself, without {option}{','.join(spelled(choice))}"
                    )
            for name, values in choice.items():
                known = dict.fromkeys(
                    value for each in offers.values() if each is not None for value in each[name]
                )
                for value in sorted(values - known.keys()):
                    there = ", ".join(each for each in known if each) or "none"
                    raise ParameterError(
                        f"{option}{name}={value}: {', '.join(offers)} has no such run; of {name} "
                        f"there is {there}"
                    )


def _first(count: int) -> range:
    return range(1, 1 + count)


def _suits(choice: Which, values: Mapping[str, Any]) -> bool:
    """Whether a row of these values, as far as they are known, is among the chosen."""
    return all(str(value) in choice[name] for name, value in values.items() if name in choice)


def spelled(choice: Which) -> list[str]:
    """Write a choice as it is read: ``attackers=4``, ``rule=adaptive``."""
    return [f"{name}={value}" for name, values in choice.items() for value in sorted(values)]


def read_only(texts: Sequence[str]) -> Which:
    """Read ``attackers=4,rule=adaptive``; a field that is named twice may have either value.

    Raises
    ------
    ParameterError
        It is not of that form, or rows have no such field.
    """
    return _read_choice(texts, "--only")


def read_seeds(texts: Sequence[str]) -> tuple[int | None, tuple[tuple[Which, int], ...]]:
    """Read ``1`` and ``3:attackers=4``: how many seeds, and how many for some rows.

    Parameters
    ----------
    texts
        In any number; one at most has no choice of rows.

    Returns
    -------
    tuple
        `Ask.repeats` and `Ask.repeats_of`.

    Raises
    ------
    ParameterError
        One is not of that form, or two are for all rows.
    """
    repeats: int | None = None
    repeats_of = []
    for text in texts:
        number, colon, which = (piece.strip() for piece in text.partition(":"))
        if not number.isdecimal() or int(number) < 1:
            raise ParameterError(
                f"--seeds takes how many there are, or how many for some runs, such as 3 or "
                f"3:attackers=4, not {text!r}"
            )
        if colon:
            choice = _read_choice([which], "--seeds")
            if "seed" in choice:
                raise ParameterError(f"--seeds {text}: seeds are counted here; choose by --only")
            repeats_of.append((choice, int(number)))
        elif repeats is not None:
            raise ParameterError(
                f"--seeds is said twice, {repeats} and {number}; for some runs say which, such as "
                f"{number}:attackers=4"
            )
        else:
            repeats = int(number)
    return repeats, tuple(repeats_of)


def _read_choice(texts: Sequence[str], option: str) -> Which:
    found: dict[str, set[str]] = {}
    for part in (each for text in texts for each in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ParameterError(f"{option} takes FIELD=VALUE, such as rule=adaptive, not {part!r}")
        if name not in _CHOOSABLE:
            known = ", ".join(_CHOOSABLE)
            raise ParameterError(f"{option} cannot choose by {name!r}; there are {known}")
        found.setdefault(name, set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}


_CHOOSABLE = tuple(name for name in FIELDS if name not in {*MEASURED, "rounds", "scale", "key"})
