"""What scores promise: bounds on weights and on the error of the result. See docs/theory.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedimmune.errors import InputError, ParameterError
from fedimmune.validation import check_fraction, check_int, check_open_fraction

__all__ = [
    "Range",
    "attacker_weights",
    "attackers_together",
    "benign_kept_up_to",
    "benign_weights",
    "best_case",
    "conservative_c",
    "error_bound",
    "holds_in_most",
    "needed_score_error",
    "score_error",
    "spread_and_margin",
    "spread_bound",
    "surely_truncated_below",
]

_OWNER = "bounds"
_SHARPEST = 300.0
"""Beyond it e^{−2c}, the least that a client can have, leaves the range of floating point."""
_LARGEST_ERROR = 2.0
"""This score error allows every score."""


def _clients(n: int, m: int) -> tuple[int, int]:
    """Check the numbers of clients and attackers; return those of honest clients and attackers."""
    n, m = check_int(_OWNER, "n", n, 1), check_int(_OWNER, "m", m, 0)
    if m >= n:
        raise ParameterError(f"{_OWNER}: m must be below n, one client is honest: {m} of {n}")
    return n - m, m


def _scale(c: float) -> float:
    return _within("c", c, 0.0, _SHARPEST)


def _score_error(error: float) -> float:
    return _within("score_error", error, 0.0, _LARGEST_ERROR)


def _positive(name: str, value: float) -> float:
    return _within(name, value, 0.0, 1e300)


def _threshold(eps: float, n: int) -> float:
    return check_open_fraction(_OWNER, "eps", eps, 1.0) / n


def _within(name: str, value: float, least: float, most: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise ParameterError(
            f"{_OWNER}: {name} must be a number from {least:g} to {most:g}: {value!r}"
        )
    return float(value)


class Range(NamedTuple):
    """The lowest and the highest value that something can have."""

    lowest: float
    highest: float


class _Extremes(NamedTuple):
    """The ends of e^{c(s − t)}, to which a client's weight is proportional.

    Here t is the highest score of an honest client, whose value is therefore 1. The least of an
    attacker is that of the score −1.
    """

    benign_least: float
    attacker_most: float
    attacker_least: float


def _extremes(score_error: float, c: float) -> _Extremes:
    error = _score_error(score_error)
    return _extremes_of_spread(error, 2 - error, c)


def _extremes_of_spread(spread: float, margin: float, c: float) -> _Extremes:
    c = _scale(c)
    spread, margin = _within("spread", spread, 0.0, 2.0), _within("margin", margin, -2.0, 2.0)
    return _Extremes(exp(-c * spread), exp(-c * margin), exp(-2 * c))


def benign_weights(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Bound the weight of an honest client, before truncation.

    The highest is 1 / (1 + (n−m−1)e^{−cε′} + m·e^{−2c}), if all others score as low as they can;
    the lowest 1 / (1 + (n−m−1)e^{cε′} + m·e^{−2c(1−ε′)}), if all others score as high.

    Parameters
    ----------
    score_error
        ε′, from 0 to 2.
    n, m
        Numbers of clients and, among them, of attackers.
    c
        How sharply weights follow scores.
    """
    honest, m = _clients(n, m)
    ends = _extremes(score_error, c)
    least = ends.benign_least
    return Range(
        least / (least + (honest - 1) + m * ends.attacker_most),
        1 / (1 + (honest - 1) * least + m * ends.attacker_least),
    )


def attacker_weights(score_error: float, *, n: int, m: int, c: float = 10.0) -> Range:
    """Bound the weight of one attacker, before truncation; 0 if nobody attacks.

    The highest is e^{cε′} / ((n−m)e^{c(2−ε′)} + e^{cε′} + m − 1), the lowest
    1 / ((n−m)e^{2c} + 1 + (m−1)e^{cε′}). Parameters are those of `benign_weights`.
    """
    honest, m = _clients(n, m)
    ends = _extremes(score_error, c)
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
    honest, m = _clients(n, m)
    ends = _extremes(score_error, c)
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
        From 0 to 2; None if not even perfect scores cut attackers off.
    """
    honest, m = _clients(n, m)
    c, threshold = _scale(c), _threshold(eps, n)
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
    honest, m = _clients(n, m)
    c, threshold = _scale(c), _threshold(eps, n)
    # An honest client's lowest weight is eps / n: a quadratic equation for e^{−cε′}.
    others = threshold * (honest - 1)
    inner = others**2 + 4 * (1 - threshold) * threshold * m * exp(-2 * c)
    least = (others + sqrt(inner)) / (2 * (1 - threshold))
    if least <= exp(-2 * c):  # the lowest that any score gives, c = 0 included
        return _LARGEST_ERROR
    return min(-log(least) / c, _LARGEST_ERROR)


_ROUNDING = 1e-12
"""Who would be cut off, or kept, except for rounding, counts as if: so the bound holds anyway."""

_Numbers = npt.NDArray[np.float64]


def error_bound(
    score_error: float,
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalized: bool = True,
    largest_norm: float = 1.0,
) -> float:
    """Bound the distance of the next estimate to the robust mean, in any norm.

    Without truncation (``eps=0``) the bound is exact: some scores and updates reach it. With
    truncation it is close to that.

    Parameters
    ----------
    score_error
        ε′, from 0 to 2: honest clients score at least 1 − ε′, attackers at most −1 + ε′.
    n, m, c, eps
        As for `surely_truncated_below`.
    renormalized
        Whether the remaining weights are scaled to a sum of one, as the rule does with the clients'
        updates. The algorithm box of Wan and Chen (2021) does not; nor do the passes before the
        last.
    largest_norm
        Of all clients' updates, including those that are cut off. If weights are renormalized, half
        the largest distance between two updates will do instead.

    Returns
    -------
    float
        At most twice `largest_norm`.
    """
    error = _score_error(score_error)
    return spread_bound(
        error,
        2 - error,
        n=n,
        m=m,
        c=c,
        eps=eps,
        renormalized=renormalized,
        largest_norm=largest_norm,
    )


def spread_bound(
    spread: float,
    margin: float,
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalized: bool = True,
    largest_norm: float = 1.0,
) -> float:
    """Bound the same distance by how scores differ, wherever they lie.

    The softmax sees only differences: scores that are all too low lose nothing. A score error ε′ is
    a spread of ε′ and a margin of 2 − ε′, counted from a score of 1.

    Parameters
    ----------
    spread
        From the highest score of an honest client down to the lowest, from 0 to 2.
    margin
        From the highest score of an honest client down to that of an attacker, from −2 to 2.
    n, m, c, eps, renormalized, largest_norm
        As for `error_bound`.
    """
    ends = _extremes_of_spread(spread, margin, c)
    return _positive("largest_norm", largest_norm) * _differences(ends, n, m, eps, renormalized)


def best_case(
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalized: bool = True,
    largest_norm: float = 1.0,
) -> float:
    """Bound the error for perfect scores, 1 and −1. Parameters are those of `error_bound`.

    If attackers are cut off, it is 0 with weights renormalized, and otherwise what the attackers
    had, m / (m + (n−m)e^{2c}); if they are not, twice that.
    """
    return error_bound(
        0.0, n=n, m=m, c=c, eps=eps, renormalized=renormalized, largest_norm=largest_norm
    )


def _differences(ends: _Extremes, n: int, m: int, eps: float, renormalized: bool) -> float:
    """Bound the sum of the weights' differences to those of the robust mean."""
    honest, m = _clients(n, m)
    threshold = _threshold(eps, n)
    cut = np.arange(_most_honest_cut(ends, honest, m, threshold) + 1, dtype=np.float64)
    short = np.arange(1, honest + 1, dtype=np.float64)[:, None]
    found = np.maximum(
        *(
            2 * short / honest - _had(ends, honest, m, threshold, short, cut, kept, renormalized)
            for kept in (0, _most_attackers_kept(ends, honest, m, threshold))
        )
    )
    return float(found[cut <= short].max().clip(0, 2))


def _had(
    ends: _Extremes,
    honest: int,
    m: int,
    threshold: float,
    short: _Numbers,
    cut: _Numbers,
    kept: int,
    renormalized: bool,
) -> _Numbers:
    """Bound from below what lessens the differences, for each number of `short` and `cut` clients.

    Of the honest, `short` get less than their due, `cut` of them nothing; of the attackers, `kept`
    are not cut off. The differences then are twice what the short should have, less this: twice
    what they have and, if weights are not renormalized, all that was cut off.
    """
    least, most = ends.benign_least, ends.attacker_most
    per_client = 1 / threshold if threshold else np.inf  # how much more all have than one cut off
    others = honest - short
    # To cut somebody off, there has to be enough of everything else, the short ones among it.
    enough = least * (per_client - cut) - others - m * most
    low = np.where(cut > 0, np.maximum((short - cut) * least, enough), short * least)
    high = others + kept * most
    lost = cut * least + (m - kept) * ends.attacker_least
    everything = most * per_client if kept else np.inf  # more, and the attackers are cut off
    floor = 2 * (short - cut) * threshold
    if renormalized:
        return _largest(2 * _ratio(low, low + high), 2 * _ratio(low, everything - lost), floor)
    # What was cut off counts once above and once below the line: one of its ends is the least.
    highest = threshold * (honest + m * most)
    more = cut * min(1.0, highest) + (m - kept) * min(most, highest)
    ratio = np.minimum(*(_ratio(2 * low + x, low + x + high) for x in (lost, more)))
    return _largest(ratio, _ratio(2 * low + lost, everything), floor)


def _most_honest_cut(ends: _Extremes, honest: int, m: int, threshold: float) -> int:
    """Return how many honest clients can be cut off at once: the lowest, all others highest."""
    cut = np.arange(1, honest + 1)
    total = cut * ends.benign_least + (honest - cut) + m * ends.attacker_most
    return int((ends.benign_least < threshold * total * (1 + _ROUNDING)).sum())


def _most_attackers_kept(ends: _Extremes, honest: int, m: int, threshold: float) -> int:
    """Return how many attackers can be kept at once: they score highest, all others lowest."""
    kept = np.arange(1, m + 1)
    most, least = ends.attacker_most, ends.attacker_least
    total = kept * most + (m - kept) * least + honest * ends.benign_least
    return int((most * (1 + _ROUNDING) >= threshold * total).sum())


def _ratio(part: _Numbers, whole: _Numbers | float) -> _Numbers:
    """Divide, nothing by nothing being nothing."""
    return np.divide(part, whole, out=np.zeros_like(part), where=part > 0)


def _largest(*lower: _Numbers) -> _Numbers:
    largest: _Numbers = np.maximum.reduce(np.broadcast_arrays(*lower))
    return largest


_HALVINGS = 60
_GRID, _REFINED = 201, 21
"""Number of values of c to try, overall and between the neighbors of a good one."""
_REFINEMENTS = 4
_DIPS = 4
"""Number of the grid's lowest dips to refine: truncation makes the bound jump."""
_DIGITS = 9
"""Bounds are compared to this many digits, so that rounding does not choose."""


def needed_score_error(
    gamma: float,
    delta: float,
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalized: bool = True,
) -> float | None:
    """Find the largest score error that takes an estimate from within δ to within γδ.

    Distances are to the robust mean and relative to the largest norm of an update. What shrinks is
    the bound: an estimate that was much closer than δ already need not come closer. As long as
    every attacker is cut off, and nobody else, (4/c)·artanh(γδ/2) is enough, about 2γδ/c.

    Parameters
    ----------
    gamma
        The rate, above 0; below 1 for an improvement.
    delta
        The largest distance before; afterwards it has to be γδ at most.
    n, m, c, eps, renormalized
        As for `error_bound`.

    Returns
    -------
    float or None
        From 0 to 2; None if not even perfect scores are enough.
    """
    wanted = _positive("gamma", gamma) * _positive("delta", delta)

    def is_enough(error: float) -> bool:
        found = error_bound(error, n=n, m=m, c=c, eps=eps, renormalized=renormalized)
        return found <= wanted

    if not is_enough(0.0):
        return None
    if is_enough(2.0):
        return 2.0
    low, high = 0.0, 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    return low


def conservative_c(
    score_error: float,
    *,
    n: int,
    m: int,
    eps: float = 0.5,
    renormalized: bool = True,
    largest: float = 10.0,
) -> float:
    """Find the c with the lowest error bound for a score error; of several, the smallest.

    A larger c takes weight from attackers, but also makes more of differences among the honest.
    Wan and Chen (2021) recommend a "conservative" c for attacks unlike those rehearsed, and leave
    open which: this is the one that is best in the worst case. With truncation it is often the
    smallest c that still cuts every attacker off; with ε′ ≥ 1, when scores say nothing, it is 0:
    the plain mean.

    Parameters
    ----------
    score_error
        The ε′ to expect, from 0 to 2.
    n, m
        Numbers of clients and of attackers to expect.
    eps, renormalized
        As for `error_bound`.
    largest
        The largest c to try, such as the one that the defense was trained with. The result is
        exact to about a millionth of it, unless a lower bound hides between two values of a grid
        of 200.
    """

    def bound(c: float) -> float:
        found = error_bound(score_error, n=n, m=m, c=c, eps=eps, renormalized=renormalized)
        return round(found, _DIGITS)

    grid = np.linspace(0.0, _scale(largest), _GRID)
    found = np.array([bound(c) for c in grid.tolist()])
    around = np.pad(found, 1, mode="edge")
    dips = np.flatnonzero((found <= around[:-2]) & (found <= around[2:]))
    lowest = dips[np.argsort(found[dips], kind="stable")][:_DIPS]
    return _best(bound, [_refined(bound, grid, int(dip)) for dip in lowest])


def _refined(bound: Callable[[float], float], grid: npt.NDArray[np.float64], dip: int) -> float:
    """Find the best c between the neighbors of a value of the grid."""
    best = float(grid[dip])
    for _ in range(_REFINEMENTS):
        grid = np.linspace(grid[max(dip - 1, 0)], grid[min(dip + 1, len(grid) - 1)], _REFINED)
        best = _best(bound, grid.tolist())
        dip = int(np.searchsorted(grid, best))
    return best


def _best(bound: Callable[[float], float], tried: list[float]) -> float:
    """Return the value of c with the lowest bound; of equals, the smallest."""
    return min(tried, key=lambda c: (bound(c), c))


def score_error(scores: Tensor, attackers: Tensor) -> Tensor:
    """Measure ε′: how far scores are from 1 for the honest and −1 for attackers, at worst.

    Parameters
    ----------
    scores
        Of the pass that the weights come from, the last, (rounds, n).
    attackers
        Who attacks, (rounds, n), true or false.

    Returns
    -------
    Tensor
        (rounds,): the smallest ε′ with honest scores ≥ 1 − ε′ and attackers' ≤ −1 + ε′; NaN if a
        score is.
    """
    _check(scores, attackers)
    away = torch.where(attackers, scores + 1, 1 - scores)
    return away.amax(1).clamp(0, 2)  # a cosine may be above 1 by rounding


def spread_and_margin(scores: Tensor, attackers: Tensor) -> tuple[Tensor, Tensor]:
    """Measure how scores differ, for `fedimmune.bounds.spread_bound`.

    Parameters
    ----------
    scores, attackers
        As for `score_error`; at least one client of each round is honest.

    Returns
    -------
    tuple of Tensor
        (rounds,) each: from the highest score of an honest client down to the lowest, and down to
        the highest of an attacker, 2 if nobody attacks.
    """
    _check(scores, attackers)
    if bool(attackers.all(1).any()):
        raise InputError("spread_and_margin: there is a round without an honest client")
    beyond = torch.full_like(scores, torch.inf)
    honest = torch.where(attackers, -beyond, scores).amax(1)
    lowest = torch.where(attackers, beyond, scores).amin(1)
    highest = torch.where(attackers, scores, -beyond).amax(1)
    return (honest - lowest).clamp(0, 2), (honest - highest).clamp(-2, 2)


def holds_in_most(values: Tensor, share: float = 0.9) -> float:
    """Return what holds in a share of rounds: the smallest value that so many do not exceed.

    Parameters
    ----------
    values
        One per round, such as from `score_error`; negate what should be large.
    share
        Of rounds, from 0 to 1; 1 for all of them.
    """
    share = check_fraction("holds_in_most", "share", share)
    if values.ndim != 1 or len(values) == 0:
        raise InputError(
            "holds_in_most: expected one number per round, of one round at least: "
            f"{tuple(values.shape)}"
        )
    rank = math.ceil(share * len(values) - 1e-9)
    # Sorted, NaN comes last: a round without a number is one that is not good enough.
    return float(values.sort().values[max(rank, 1) - 1])


def _check(scores: Tensor, attackers: Tensor) -> None:
    if scores.ndim != 2 or scores.shape != attackers.shape or scores.shape[1] == 0:
        raise InputError(
            "scores and attackers must have the same shape, one row per round and one column per "
            f"client: {tuple(scores.shape)} and {tuple(attackers.shape)}"
        )
    if attackers.dtype != torch.bool or not scores.is_floating_point():
        raise InputError(
            "scores must be floating point and attackers true or false: "
            f"{scores.dtype} and {attackers.dtype}"
        )
