"""Checks of what bounds are asked for."""

from __future__ import annotations

from fedimmune.checks import fraction, whole
from fedimmune.errors import ParameterError

__all__ = [
    "check_clients",
    "check_difference",
    "check_eps",
    "check_positive",
    "check_scale",
    "check_score_error",
]

_OWNER = "bounds"
_SHARPEST = 300.0
"""Beyond it e^{−2c}, the least that a client can have, leaves the range of floating point."""


def check_clients(n: int, m: int) -> tuple[int, int]:
    """Check how many clients there are and how many of them attack; give (honest, attackers)."""
    n, m = whole(_OWNER, "n", n, 1), whole(_OWNER, "m", m, 0)
    if m >= n:
        raise ParameterError(f"{_OWNER}: m must be below n, one client is honest: {m} of {n}")
    return n - m, m


def check_eps(eps: float) -> float:
    """Check the threshold of truncation."""
    return fraction(_OWNER, "eps", eps, 1.0)


def check_scale(c: float) -> float:
    """Check how sharply weights follow scores."""
    return _within("c", c, 0.0, _SHARPEST)


def check_score_error(score_error: float) -> float:
    """Check a score error; 2 allows every score."""
    return _within("score_error", score_error, 0.0, 2.0)


def check_difference(name: str, difference: float, least: float = -2.0) -> float:
    """Check a difference of two scores."""
    return _within(name, difference, least, 2.0)


def check_positive(name: str, value: float) -> float:
    """Check a finite number from 0 on."""
    return _within(name, value, 0.0, 1e300)


def _within(name: str, value: float, least: float, most: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise ParameterError(
            f"{_OWNER}: {name} must be a number from {least:g} to {most:g}: {value!r}"
        )
    return float(value)
