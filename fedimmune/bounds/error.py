"""How far the next estimate can be from the robust mean: the corrected Lemma 1.

The robust mean has weight 1 / (n − m) for every honest client and none for attackers. An estimate
with other weights is off by at most the sum of the differences times the largest norm, and that is
reached by updates along one line. So the error is bounded by the largest such sum over all scores
that ε′ allows. docs/theory.md derives it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedimmune.bounds.checking import check_clients, check_eps, check_positive
from fedimmune.bounds.weights import Extremes

__all__ = ["best_case", "error_bound", "spread_bound"]

_ROUNDING = 1e-12
"""Who might be cut off, or kept, but for rounding, counts as if: the bound then holds anyway."""

_Numbers = npt.NDArray[np.float64]


def error_bound(
    score_error: float,
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalised: bool = True,
    largest_norm: float = 1.0,
) -> float:
    """Bound the distance of the next estimate to the robust mean, in any norm.

    Without truncation (``eps=0``) the bound is exact: some scores and updates reach it. With
    truncation it is close to that.

    Parameters
    ----------
    score_error
        ε′, from 0 to 2: honest clients score at least 1 − ε′, attackers at most −1 + ε′.
    n, m
        How many clients there are, and how many of them attack.
    c
        How sharply weights follow scores.
    eps
        A client with less than eps / n of the weight gets none.
    renormalised
        Whether the weights that are left are brought to a sum of one, as the rule does with the
        clients' updates. The algorithm box of Wan and Chen (2021) does not; nor do the passes
        before the last.
    largest_norm
        Of all clients' updates, those that are cut off among them. Where weights are renormalised,
        half the largest distance between two updates will do instead.

    Returns
    -------
    float
        At most twice `largest_norm`.
    """
    ends = Extremes.of(score_error, c)
    return check_positive("largest_norm", largest_norm) * _differences(
        ends, n, m, eps, renormalised
    )


def spread_bound(
    spread: float,
    margin: float,
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalised: bool = True,
    largest_norm: float = 1.0,
) -> float:
    """Bound the same distance by what matters alone: how scores differ, not where they lie.

    The softmax sees differences only: scores that all lie too low lose nothing. A score error ε′ is
    a spread of ε′ and a margin of 2 − ε′, counted from a score of 1.

    Parameters
    ----------
    spread
        From the highest score of an honest client down to the lowest, from 0 to 2.
    margin
        From the highest score of an honest client down to that of an attacker, from −2 to 2.
    n, m, c, eps, renormalised, largest_norm
        As for `error_bound`.
    """
    ends = Extremes.of_spread(spread, margin, c)
    return check_positive("largest_norm", largest_norm) * _differences(
        ends, n, m, eps, renormalised
    )


def best_case(
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalised: bool = True,
    largest_norm: float = 1.0,
) -> float:
    """Bound the error for perfect scores, 1 and −1. Parameters are those of `error_bound`.

    Where attackers are cut off it is 0 with weights renormalised, and else what the attackers had,
    m / (m + (n−m)e^{2c}); where they are not, twice that.
    """
    return error_bound(
        0.0, n=n, m=m, c=c, eps=eps, renormalised=renormalised, largest_norm=largest_norm
    )


def _differences(ends: Extremes, n: int, m: int, eps: float, renormalised: bool) -> float:
    """Bound the sum of the weights' differences to those of the robust mean."""
    honest, m = check_clients(n, m)
    threshold = check_eps(eps) / n
    cut = np.arange(_most_honest_cut(ends, honest, m, threshold) + 1, dtype=np.float64)
    short = np.arange(1, honest + 1, dtype=np.float64)[:, None]
    found = np.maximum(
        *(
            2 * short / honest - _had(ends, honest, m, threshold, short, cut, kept, renormalised)
            for kept in (0, _most_attackers_kept(ends, honest, m, threshold))
        )
    )
    return float(found[cut <= short].max().clip(0, 2))


def _had(
    ends: Extremes,
    honest: int,
    m: int,
    threshold: float,
    short: _Numbers,
    cut: _Numbers,
    kept: int,
    renormalised: bool,
) -> _Numbers:
    """Bound from below what lessens the differences, for each number of `short` and `cut` clients.

    Of the honest, `short` get less than their due, `cut` of them nothing; of the attackers, `kept`
    are not cut off. The differences then are twice what the short should have, less this: twice
    what they have and, where weights are not renormalised, all that was cut off.
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
    if renormalised:
        return _largest(2 * _ratio(low, low + high), 2 * _ratio(low, everything - lost), floor)
    # What was cut off counts once above and once below the line: one of its ends is the least.
    highest = threshold * (honest + m * most)
    more = cut * min(1.0, highest) + (m - kept) * min(most, highest)
    ratio = np.minimum(*(_ratio(2 * low + x, low + x + high) for x in (lost, more)))
    return _largest(ratio, _ratio(2 * low + lost, everything), floor)


def _most_honest_cut(ends: Extremes, honest: int, m: int, threshold: float) -> int:
    """How many honest clients can be cut off at once: they score lowest, all others highest."""
    cut = np.arange(1, honest + 1)
    total = cut * ends.benign_least + (honest - cut) + m * ends.attacker_most
    return int((ends.benign_least < threshold * total * (1 + _ROUNDING)).sum())


def _most_attackers_kept(ends: Extremes, honest: int, m: int, threshold: float) -> int:
    """How many attackers can be kept at once: they score highest, all others lowest."""
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
