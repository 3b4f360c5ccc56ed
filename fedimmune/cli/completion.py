"""Shell completion, without PyTorch: a shell cannot wait until that is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["ATTACKS", "FORMS", "RULES", "STEPS", "TASKS", "listed", "one_of"]

_PACKAGE = Path(__file__).parents[1]

Names = Sequence[str] | Callable[[], Sequence[str]]


def _names_in(*places: str) -> Callable[[], list[str]]:
    """Read the names of classes from source files, without importing them."""

    def read() -> list[str]:
        files = [file for place in places for file in _PACKAGE.glob(place)]
        found = [
            re.findall(r'^    name = "(.+)"$', file.read_text("utf-8"), re.M) for file in files
        ]
        return sorted(name for names in found for name in names)

    return read


# A test compares them with the registries.
STEPS = _names_in("rules/preaggregation.py")
RULES = _names_in("rules/[!p]*.py", "rules/p[!r]*.py", "adaptive/rule.py", "adaptive/spectral.py")
ATTACKS = _names_in("attacks/*.py")
TASKS = _names_in("tasks/*.py")
FORMS = ("universal", "relational", "paper", "spectral")


def one_of(names: Names) -> Callable[[str], list[str]]:
    """Complete a name."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in _known(names) if name.startswith(incomplete)]

    return complete


def listed(names: Names) -> Callable[[str], list[str]]:
    """Complete the last of several names separated by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        left = [each for each in _known(names) if each.startswith(last) and each not in given]
        return [f"{before}{comma}{name}" for name in left]

    return complete


def _known(names: Names) -> Sequence[str]:
    return names() if callable(names) else names
