"""What a score error says about weights: their ranges, and who is cut off.

Scores go from −1 to 1. The *score error* ε′ of a round says how far from perfect they are: honest
clients have at least 1 − ε′, attackers at most −1 + ε′. Weights are the softmax of c times the
scores; one below eps / n is set to zero (Wan and Chen 2021, Algorithm 1). The ranges here are those
before that truncation. They are exact: each end is reached by scores that ε′ allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import NamedTuple

from fedimmune.bounds.checking import (
    check_clients,
    check_difference,
    check_eps,
    check_scale,
    check_score_error,
)

__all__ = [
    "Extremes",
    "Range",
    "attacker_weights",
    "attackers_together",
    "benign_kept_up_to",
    "benign_weights",
    "surely_truncated_below",
]

_LARGEST_ERROR = 2.0


class Range(NamedTuple):
    """The lowest and the highest value that something can have."""

    lowest: float
    highest: float


@dataclass(frozen=True)
class Extremes:
    """The ends of e^{c(s − t)}, to which a client's weight is proportional.

    Here t is the highest score of an honest client, who therefore has 1.

    Parameters
    ----------
    benign_least
        Of the honest client with the lowest score.
    attacker_most
        Of the attacker with the highest score.
    attacker_least
        Of an attacker with score −1, and of no one less.
    """

    benign_least: float
    attacker_most: float
    attacker_least: float

    @classmethod
    def of(cls, score_error: float, c: float) -> Extremes:
        """Find them for a score error and a scale."""
        error = check_score_error(score_error)
        return cls.of_spread(error, 2 - error, c)

    @classmethod
    def of_spread(cls, spread: float, margin: float, c: float) -> Extremes:
        """Find them for the differences of scores to the highest of an honest client."""
        c = check_scale(c)
        spread, margin = check_difference("spread", spread, 0), check_difference("margin", margin)
        return cls(exp(-c * spread), exp(-c * margin), exp(-2 * c))


def benign_weights(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Bound the weight of an honest client, before truncation.

    The highest is 1 / (1 + (n−m−1)e^{−cε′} + m·e^{−2c}), where all others score as low as they can;
    the lowest 1 / (1 + (n−m−1)e^{cε′} + m·e^{−2c(1−ε′)}), where all others score as high.

    Parameters
    ----------
    score_error
        ε′, from 0 to 2.
    n, m
        How many clients there are, and how many of them attack.
    c
        How sharply weights follow scores.
    """
    honest, m = check_clients(n, m)
    ends = Extremes.of(score_error, c)
    least = ends.benign_least
    return Range(
        least / (least + (honest - 1) + m * ends.attacker_most),
        1 / (1 + (honest - 1) * least + m * ends.attacker_least),
    )


def attacker_weights(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Bound the weight of one attacker, before truncation; nothing where nobody attacks.

    The highest is e^{cε′} / ((n−m)e^{c(2−ε′)} + e^{cε′} + m − 1), the lowest
    1 / ((n−m)e^{2c} + 1 + (m−1)e^{cε′}). Parameters are those of `benign_weights`.
    """
    honest, m = check_clients(n, m)
    ends = Extremes.of(score_error, c)
    if m == 0:
        return Range(0.0, 0.0)
    most, least = ends.attacker_most, ends.attacker_least
    return Range(
        least / (least + (m - 1) * most + honest),
        most / (most + (m - 1) * least + honest * ends.benign_least),
    )


def attackers_together(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Bound the weight of all attackers together, before truncation.

    From m / (m + (n−m)e^{2c}) to m / (m + (n−m)e^{2c(1−ε′)}): with ε′ ≥ 1 sharper weights help
    nobody but the attackers. Parameters are those of `benign_weights`.
    """
    honest, m = check_clients(n, m)
    ends = Extremes.of(score_error, c)
    least, most = m * ends.attacker_least, m * ends.attacker_most
    return Range(least / (least + honest), most / (most + honest * ends.benign_least))


def surely_truncated_below(*, n: int, m: int, c: float = 10.0, eps: float = 0.5) -> float | None:
    """Find the score error below which every attacker is cut off, whatever the scores.

    At the limit itself an attacker may have eps / n exactly, and is kept.

    Parameters
    ----------
    n, m, c
        As for `benign_weights`.
    eps
        A client with less than eps / n of the weight gets none.

    Returns
    -------
    float or None
        From 0 to 2; None where not even perfect scores cut attackers off.
    """
    honest, m = check_clients(n, m)
    c, threshold = check_scale(c), check_eps(eps) / n
    if m == 0:
        return _LARGEST_ERROR
    if attacker_weights(0.0, n=n, m=m, c=c).highest >= threshold:
        return None
    # An attacker's highest weight is eps / n: a quadratic equation for e^{cε′}, here times e^{−c}.
    others = threshold * (m - 1) * exp(-c)
    root = others + sqrt(others**2 + 4 * (1 - threshold) * threshold * honest)
    return min((c + log(root / (2 * (1 - threshold)))) / c, _LARGEST_ERROR)


def benign_kept_up_to(*, n: int, m: int, c: float = 10.0, eps: float = 0.5) -> float:
    """Find the largest score error, from 0 to 2, at which surely no honest client is cut off.

    Parameters are those of `surely_truncated_below`.
    """
    honest, m = check_clients(n, m)
    c, threshold = check_scale(c), check_eps(eps) / n
    # An honest client's lowest weight is eps / n: a quadratic equation for e^{−cε′}.
    others = threshold * (honest - 1)
    inner = others**2 + 4 * (1 - threshold) * threshold * m * exp(-2 * c)
    least = (others + sqrt(inner)) / (2 * (1 - threshold))
    if least <= exp(-2 * c):  # the lowest that any score gives, c = 0 included
        return _LARGEST_ERROR
    return min(-log(least) / c, _LARGEST_ERROR)
