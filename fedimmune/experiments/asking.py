"""What somebody wants to see of an artefact: at which scale, how often, and only what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedimmune.errors import ParameterError
from fedimmune.experiments.rows import FIELDS, MEASURED
from fedimmune.experiments.scales import SCALES

__all__ = ["Ask", "read_only"]

_SEEDS = {"smoke": 1, "cpu": 1, "paper": 3}


@dataclass(frozen=True)
class Ask:
    """What is wanted.

    Parameters
    ----------
    scale
        ``smoke``, ``cpu`` or ``paper``.
    repeats
        How many seeds, from 1 on; None for the scale's own: three as in the paper, else one.
    only
        Values that rows may have, by field; fields that are not named may have any.
    device
        Where clients train.

    Raises
    ------
    ParameterError
        There is no such scale, or no seed.
    """

    scale: str = "cpu"
    repeats: int | None = None
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ParameterError(f"there is no scale {self.scale!r}; there are {', '.join(SCALES)}")
        if self.repeats is not None and self.repeats < 1:
            raise ParameterError(f"there has to be a seed at least: {self.repeats}")

    @property
    def seeds(self) -> range:
        """The seeds to play."""
        return range(1, 1 + (_SEEDS[self.scale] if self.repeats is None else self.repeats))

    def admits(self, **values: Any) -> bool:
        """Whether something of these values is wanted."""
        return all(
            str(value) in self.only[name] for name, value in values.items() if name in self.only
        )

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
        for artefact, offered in offers.items():
            if self.only and offered is None:
                raise ParameterError(
                    f"{artefact} is made as a whole: --only chooses among the runs of a table. Ask "
                    "for it by itself, without --only"
                )
        for name, values in self.only.items():
            known = dict.fromkeys(
                value for each in offers.values() if each is not None for value in each[name]
            )
            for value in sorted(values - known.keys()):
                there = ", ".join(each for each in known if each) or "none"
                raise ParameterError(
                    f"--only {name}={value}: {', '.join(offers)} has no such run; of {name} "
                    f"there is {there}"
                )


def read_only(texts: Sequence[str]) -> dict[str, frozenset[str]]:
    """Read ``attackers=4,rule=adaptive``; a field that is named twice may have either value.

    Raises
    ------
    ParameterError
        It is not of that form, or rows have no such field.
    """
    found: dict[str, set[str]] = {}
    for part in (each for text in texts for each in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ParameterError(f"--only takes FIELD=VALUE, such as rule=adaptive, not {part!r}")
        if name not in _CHOOSABLE:
            known = ", ".join(_CHOOSABLE)
            raise ParameterError(f"--only cannot choose by {name!r}; there are {known}")
        found.setdefault(name, set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}


_CHOOSABLE = tuple(name for name in FIELDS if name not in {*MEASURED, "rounds", "scale", "key"})
