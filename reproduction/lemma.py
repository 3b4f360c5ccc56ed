"""Lemma 1 as it is printed. It does not hold: use `fedimmune.bounds`; docs/theory.md says why.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, appendix "Error
bound of the robust mean estimation". Kept to compare with, and with counter-examples in the tests.
"""

from __future__ import annotations

from math import exp, expm1, log, log1p

from fedimmune.bounds import Range
from fedimmune.errors import ParameterError

__all__ = [
    "attacker_weights",
    "benign_weights",
    "best_case",
    "error_bound",
    "needed_score_error",
    "surely_truncated_below",
]


def benign_weights(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Weight of an honest client, by the display before the paper's (eq:bound_benign).

    The highest holds; the lowest does not: its denominator is that of the highest.
    """
    honest = _honest(n, m)
    total = honest * exp(-c * score_error) + m * exp(-2 * c)
    return Range(exp(-c * score_error) / total, 1 / total)


def attacker_weights(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Weight of an attacker, by the display before the paper's (eq:bound_attacker).

    The lowest holds; the highest does not: its denominator is that of the lowest, so it lacks a
    factor of up to e^{cε′}.
    """
    honest = _honest(n, m)
    if m == 0:
        return Range(0.0, 0.0)
    ends = exp(-2 * c), exp(-c * (2 - score_error))
    return Range(ends[0] / (honest + m * ends[1]), ends[1] / (honest + m * ends[1]))


def error_bound(
    score_error: float, *, n: int, m: int, c: float = 10.0, largest_kept_norm: float = 1.0
) -> float:
    """Error of the next estimate, (prove1): max(e^{cε′} − 1, n/(n−m)·e^{−c(2−ε′)}) times a norm.

    Parameters
    ----------
    score_error, n, m, c
        As for `fedimmune.bounds.error_bound`.
    largest_kept_norm
        As printed, of the clients that are not cut off.
    """
    bound = max(expm1(c * score_error), n / _honest(n, m) * exp(-c * (2 - score_error)))
    return largest_kept_norm * bound


def best_case(*, n: int, m: int, c: float = 10.0, largest_kept_norm: float = 1.0) -> float:
    """Error for perfect scores, (eq:best_case): 1 / ((1 − m/n)e^{2c} + m/n) times a norm."""
    least = exp(-2 * c)
    return largest_kept_norm * n * least / (_honest(n, m) + m * least)


def surely_truncated_below(*, n: int, m: int, c: float = 10.0, eps: float = 0.5) -> float:
    """Score error below which attackers are cut off: 2 − ln((1/ε − m/n) / (1 − m/n)) / c.

    As printed: below 0 if there is none.
    """
    _check_above_zero(c=c, eps=eps)
    return 2 - log((n / eps - m) / _honest(n, m)) / c


def needed_score_error(gamma: float, delta: float, *, n: int, m: int, c: float = 10.0) -> float:
    """Score error for an improvement by γ, (prove2).

    The smaller of ln(γδ + 1) / c and 2 − ln((1/(γδ) − m/n) / (1 − m/n)) / c. As printed: below 0
    if there is none.
    """
    _check_above_zero(c=c, gamma=gamma, delta=delta)
    honest, wanted = _honest(n, m), gamma * delta
    if n / wanted <= m:  # the second condition holds whatever the scores
        return log1p(wanted) / c
    return min(log1p(wanted) / c, 2 - log((n / wanted - m) / honest) / c)


def _honest(n: int, m: int) -> int:
    if not 0 <= m < n:
        raise ParameterError(f"of {n} clients, {m} cannot attack: at least one is honest")
    return n - m


def _check_above_zero(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ParameterError(f"{name} must be above 0: {value!r}")
