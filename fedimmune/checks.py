"""Checks of the parameters that rules are made with."""

from __future__ import annotations

import math

from fedimmune.errors import ParameterError

__all__ = ["flag", "fraction", "number", "whole"]


def flag(rule: str, name: str, value: object) -> bool:
    """Check a yes or no."""
    if not isinstance(value, bool):
        raise ParameterError(f"{rule}: {name} must be true or false: {_shown(value)}")
    return value


def whole(rule: str, name: str, value: object, least: int) -> int:
    """Check a whole number (2.0 will do for 2)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        needed = f"a whole number of at least {least}"
        raise ParameterError(f"{rule}: {name} must be {needed}: {_shown(value)}")
    return value


def number(rule: str, name: str, value: object, above: float) -> float:
    """Check a finite number larger than a bound (ints will do)."""
    found = _as_float(value)
    if found is None or not math.isfinite(found) or found <= above:
        raise ParameterError(f"{rule}: {name} must be a number above {above:g}: {_shown(value)}")
    return found


def fraction(rule: str, name: str, value: object, below: float) -> float:
    """Check a share from 0 up to, not including, a bound (ints will do)."""
    found = _as_float(value)
    if found is None or not 0 <= found < below:
        needed = f"a share from 0 up to but not including {below:g}"
        raise ParameterError(f"{rule}: {name} must be {needed}: {_shown(value)}")
    return found


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
