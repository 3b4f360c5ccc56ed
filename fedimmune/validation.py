"""Checks of the parameters that rules, attacks and tasks are made with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedimmune.errors import ParameterError

__all__ = [
    "check_at_least",
    "check_bool",
    "check_choice",
    "check_float",
    "check_fraction",
    "check_int",
    "check_measure",
    "check_open_fraction",
    "check_single",
]


_LARGEST_SINGLE = 1e38


def check_bool(owner: str, name: str, value: object) -> bool:
    """Check a yes or no."""
    if not isinstance(value, bool):
        raise ParameterError(f"{owner}: {name} must be true or false: {_shown(value)}")
    return value


def check_int(owner: str, name: str, value: object, least: int, most: float = math.inf) -> int:
    """Check a whole number (2.0 will do for 2)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        needed = f"a whole number from {least} to {most}"
        if most == math.inf:
            needed = f"a whole number of at least {least}"
        raise ParameterError(f"{owner}: {name} must be {needed}: {_shown(value)}")
    return value


def check_float(
    owner: str, name: str, value: object, above: float, most: float = math.inf
) -> float:
    """Check a finite number larger than a bound (ints will do)."""
    found = _as_float(value)
    if found is None or not math.isfinite(found) or not above < found <= most:
        needed = f"a number above {above:g}" + (f", at most {most:g}" if most < math.inf else "")
        raise ParameterError(f"{owner}: {name} must be {needed}: {_shown(value)}")
    return found


def check_at_least(owner: str, name: str, value: object, least: float) -> float:
    """Check a finite number that is not below a bound (ints will do)."""
    found = _as_float(value)
    if found is None or not math.isfinite(found) or found < least:
        needed = f"a number of at least {least:g}"
        raise ParameterError(f"{owner}: {name} must be {needed}: {_shown(value)}")
    return found


def check_measure(owner: str, name: str, value: object, *words: str) -> float | str:
    """Check a number above 0, or a word for what is measured in each round."""
    if not isinstance(value, str):
        return check_float(owner, name, value, 0)
    if value not in words:
        needed = " or ".join(", ".join(("a number", *words)).rsplit(", ", 1))
        raise ParameterError(f"{owner}: {name} must be {needed}: {_shown(value)}")
    return value


def check_single(owner: str, name: str, value: object) -> float:
    """Check a number that is finite in single precision, as samples are (ints will do)."""
    found = _as_float(value)
    if found is None or not abs(found) <= _LARGEST_SINGLE:
        raise ParameterError(
            f"{owner}: {name} must be a number of at most {_LARGEST_SINGLE:g}: {_shown(value)}"
        )
    return found


def check_open_fraction(owner: str, name: str, value: object, below: float) -> float:
    """Check a share from 0 up to, not including, a bound (ints will do)."""
    found = _as_float(value)
    if found is None or not 0 <= found < below:
        needed = f"a share from 0 up to but not including {below:g}"
        raise ParameterError(f"{owner}: {name} must be {needed}: {_shown(value)}")
    return found


def check_fraction(owner: str, name: str, value: object) -> float:
    """Check a share from 0 to 1, both included (ints will do)."""
    found = _as_float(value)
    if found is None or not 0 <= found <= 1:
        raise ParameterError(f"{owner}: {name} must be a share from 0 to 1: {_shown(value)}")
    return found


def check_choice(owner: str, name: str, value: object, known: Sequence[str]) -> str:
    """Check one of several words."""
    if not isinstance(value, str) or value not in known:
        raise ParameterError(f"{owner}: {name} must be {' or '.join(known)}: {_shown(value)}")
    return value


def _as_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _shown(value: object) -> str:
    """Show a value in a message of one line, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, a list without end
        text = type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}…"
