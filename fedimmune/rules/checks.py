"""Checks of the parameters that rules are made with."""

from __future__ import annotations

import math

from fedimmune.errors import ParameterError

__all__ = ["fraction", "number", "whole"]


def whole(rule: str, name: str, value: object, least: int) -> int:
    """Check a whole number (2.0 will do for 2)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ParameterError(
            f"{rule}: {name} must be a whole number of at least {least}: {value!r}"
        )
    return value


def number(rule: str, name: str, value: object, above: float) -> float:
    """Check a finite number larger than a bound (ints will do)."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= above:  # type: ignore[arg-type, operator]
        raise ParameterError(f"{rule}: {name} must be a number above {above:g}: {value!r}")
    return float(value)  # type: ignore[arg-type]


def fraction(rule: str, name: str, value: object, below: float) -> float:
    """Check a share from 0 up to, not including, a bound (ints will do)."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value < below:  # type: ignore[operator]
        raise ParameterError(
            f"{rule}: {name} must be a share from 0 up to but not including {below:g}: {value!r}"
        )
    return float(value)  # type: ignore[arg-type]
