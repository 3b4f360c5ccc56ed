"""What is requested of an experiment: which scale, how many seeds, which runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedimmune.errors import ParameterError
from reproduction.presets import SCALES

__all__ = ["FIELDS", "Request", "Which", "parse_filter", "parse_seeds", "spell"]

FIELDS = (
    *("task", "attack", "attackers", "rule", "seed", "clients", "trained", "varied", "value"),
)
"""What is known of a run beforehand: it can be selected by these."""

_SEEDS = {"smoke": 1, "cpu": 1, "paper": 3, "authors": 3}

Which = Mapping[str, frozenset[str]]
"""Values that runs may have, by field; fields that are not named may have any."""


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Parameters
    ----------
    scale
        One of `SCALES`.
    repeats
        How many seeds, from 1; None for the scale's own: three as in the paper, otherwise one.
    filter
        Which runs; all if nothing is named.
    device
        Where clients train.
    repeats_of
        How many seeds for some runs; if several match a run, the last one counts.

    Raises
    ------
    ParameterError
        There is no such scale, or no seed.
    """

    scale: str = "cpu"
    repeats: int | None = None
    filter: Which = field(default_factory=dict)
    device: str = "cpu"
    repeats_of: tuple[tuple[Which, int], ...] = ()

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ParameterError(f"there is no scale {self.scale!r}; there are {', '.join(SCALES)}")
        for count in (self.repeats, *(count for _, count in self.repeats_of)):
            if count is not None and count < 1:
                raise ParameterError(f"there has to be at least one seed: {count}")

    @property
    def seeds(self) -> range:
        """The seeds of runs about which nothing else is said."""
        return range(1, 1 + (_SEEDS[self.scale] if self.repeats is None else self.repeats))

    def seeds_of(self, **values: Any) -> range:
        """Return the seeds of a run of these values."""
        counts = [count for which, count in self.repeats_of if _matches(which, values)]
        return range(1, 1 + counts[-1]) if counts else self.seeds

    def admits(self, **values: Any) -> bool:
        """Whether a run of these values is asked for."""
        return _matches(self.filter, values)

    def check(self, offers: Mapping[str, Mapping[str, Sequence[str]] | None]) -> None:
        """Check that there is what is selected.

        Parameters
        ----------
        offers
            What there is, as `Experiment.offers` says it, by the experiment's id.

        Raises
        ------
        ParameterError
            An experiment is made as a whole, or none has such a value.
        """
        asked = [("--filter ", self.filter)]
        asked += [(f"--seeds {count}:", which) for which, count in self.repeats_of]
        for option, which in asked:
            for name, offered in offers.items():
                if which and offered is None:
                    raise ParameterError(
                        f"{name} is made as a whole and has no runs to select. Ask for it by "
                        f"itself, without {option}{','.join(spell(which))}"
                    )
            for name, values in which.items():
                known = dict.fromkeys(v for each in offers.values() if each for v in each[name])
                for value in sorted(values - known.keys()):
                    there = ", ".join(each for each in known if each) or "none"
                    raise ParameterError(
                        f"{option}{name}={value}: {', '.join(offers)} has no such run; of {name} "
                        f"there is {there}"
                    )


def _matches(which: Which, values: Mapping[str, Any]) -> bool:
    """Whether a run of these values, as far as they are known, is among those selected."""
    return all(str(value) in which[name] for name, value in values.items() if name in which)


def spell(which: Which) -> list[str]:
    """Write a selection as it is read: ``attackers=4``, ``rule=adaptive``."""
    return [f"{name}={value}" for name, values in which.items() for value in sorted(values)]


def parse_filter(texts: Sequence[str], option: str = "--filter") -> Which:
    """Read ``attackers=4,rule=adaptive``; a field named twice may have either value.

    Raises
    ------
    ParameterError
        It has another form, or runs have no such field.
    """
    found: dict[str, set[str]] = {}
    for part in (each for text in texts for each in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ParameterError(f"{option} takes FIELD=VALUE, such as rule=adaptive, not {part!r}")
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise ParameterError(f"{option} cannot select by {name!r}; there are {known}")
        found.setdefault(name, set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}


def parse_seeds(texts: Sequence[str]) -> tuple[int | None, tuple[tuple[Which, int], ...]]:
    """Read ``1`` and ``3:attackers=4``: how many seeds, and how many for some runs.

    Returns
    -------
    tuple
        `Request.repeats` and `Request.repeats_of`.

    Raises
    ------
    ParameterError
        One has another form, or two are for all runs.
    """
    repeats: int | None = None
    repeats_of = []
    for text in texts:
        number, colon, which = (piece.strip() for piece in text.partition(":"))
        if not number.isdecimal() or int(number) < 1:
            raise ParameterError(
                f"--seeds takes a number, or a number for some runs, such as 3 or 3:attackers=4, "
                f"not {text!r}"
            )
        if colon:
            chosen = parse_filter([which], "--seeds")
            if "seed" in chosen:
                raise ParameterError(f"--seeds {text} counts seeds; select them by --filter")
            repeats_of.append((chosen, int(number)))
        elif repeats is not None:
            raise ParameterError(
                f"--seeds is given twice, {repeats} and {number}; for some runs say which, such as "
                f"{number}:attackers=4"
            )
        else:
            repeats = int(number)
    return repeats, tuple(repeats_of)
