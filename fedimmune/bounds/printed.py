"""Lemma 1 as it is printed. It does not hold: use `fedimmune.bounds`; docs/theory.md says why.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, appendix "Error
bound of the robust mean estimation". Kept to compare with, and with counter-examples in the tests.
"""

from __future__ import annotations

from math import exp, expm1, log, log1p

from fedimmune.bounds.checking import (
    check_clients,
    check_eps,
    check_positive,
    check_scale,
    check_score_error,
)
from fedimmune.bounds.weights import Range
from fedimmune.checks import number

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
    honest, m = check_clients(n, m)
    c, error = check_scale(c), check_score_error(score_error)
    total = honest * exp(-c * error) + m * exp(-2 * c)
    return Range(exp(-c * error) / total, 1 / total)


def attacker_weights(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Weight of an attacker, by the display before the paper's (eq:bound_attacker).

    The lowest holds; the highest does not: its denominator is that of the lowest, and so it lacks a
    factor of up to e^{cε′}.
    """
    honest, m = check_clients(n, m)
    c, error = check_scale(c), check_score_error(score_error)
    if m == 0:
        return Range(0.0, 0.0)
    ends = exp(-2 * c), exp(-c * (2 - error))
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
    honest, _ = check_clients(n, m)
    c, error = check_scale(c), check_score_error(score_error)
    norm = check_positive("largest_kept_norm", largest_kept_norm)
    return norm * max(expm1(c * error), n / honest * exp(-c * (2 - error)))


def best_case(*, n: int, m: int, c: float = 10.0, largest_kept_norm: float = 1.0) -> float:
    """Error for perfect scores, (eq:best_case): 1 / ((1 − m/n)e^{2c} + m/n) times a norm."""
    honest, m = check_clients(n, m)
    norm = check_positive("largest_kept_norm", largest_kept_norm)
    least = exp(-2 * check_scale(c))
    return norm * n * least / (honest + m * least)


def surely_truncated_below(*, n: int, m: int, c: float = 10.0, eps: float = 0.5) -> float:
    """Score error below which attackers are cut off: 2 − ln((1/ε − m/n) / (1 − m/n)) / c.

    As printed: below 0 where there is none.
    """
    honest, m = check_clients(n, m)
    c, eps = _above_zero("c", check_scale(c)), _above_zero("eps", check_eps(eps))
    return 2 - log((n / eps - m) / honest) / c


def needed_score_error(gamma: float, delta: float, *, n: int, m: int, c: float = 10.0) -> float:
    """Score error for an improvement by γ, (prove2).

    The smaller of ln(γδ + 1) / c and 2 − ln((1/(γδ) − m/n) / (1 − m/n)) / c. As printed: below 0
    where there is none.
    """
    honest, m = check_clients(n, m)
    c = _above_zero("c", check_scale(c))
    wanted = _above_zero("gamma", gamma) * _above_zero("delta", delta)
    if n / wanted <= m:  # the second condition holds whatever the scores
        return log1p(wanted) / c
    return min(log1p(wanted) / c, 2 - log((n / wanted - m) / honest) / c)


def _above_zero(name: str, value: float) -> float:
    return number("bounds.printed", name, value, 0)
