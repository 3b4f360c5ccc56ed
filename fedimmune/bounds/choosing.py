"""What to ask of scores, and which c to use with scores that are not that good."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedimmune.bounds.checking import check_positive, check_scale
from fedimmune.bounds.error import error_bound

__all__ = ["conservative_c", "needed_score_error"]

_HALVINGS = 60
_GRID, _REFINED = 201, 21
"""How many values of c to try, over all and between the neighbours of a good one."""
_REFINEMENTS = 4
_DIPS = 4
"""How many of the grid's lowest dips to look into: truncation makes the bound jump."""
_DIGITS = 9
"""To so many digits bounds are compared, so that rounding does not choose."""


def needed_score_error(
    gamma: float,
    delta: float,
    *,
    n: int,
    m: int,
    c: float = 10.0,
    eps: float = 0.5,
    renormalised: bool = True,
) -> float | None:
    """Find the largest score error that takes an estimate from within δ to within γδ.

    Distances are to the robust mean and relative to the largest norm of an update. What shrinks is
    the bound: an estimate that was much closer than δ already need not come closer. As long as
    nothing honest is cut off, and every attacker is, (4/c)·artanh(γδ/2) is enough, about 2γδ/c.

    Parameters
    ----------
    gamma
        The rate, above 0; below 1 for an improvement.
    delta
        How far the estimate was, at most; what it is now has to be γδ at most.
    n, m, c, eps, renormalised
        As for `error_bound`.

    Returns
    -------
    float or None
        From 0 to 2; None where not even perfect scores lead there.
    """
    wanted = check_positive("gamma", gamma) * check_positive("delta", delta)

    def is_enough(error: float) -> bool:
        found = error_bound(error, n=n, m=m, c=c, eps=eps, renormalised=renormalised)
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
    renormalised: bool = True,
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
        ε′, from 0 to 2, that is to be reckoned with.
    n, m
        How many clients there are, and how many attackers to reckon with.
    eps, renormalised
        As for `error_bound`.
    largest
        The largest c to look at, such as the one that the defence was trained with. Found to about
        a millionth of it, unless a lower bound hides within half a hundredth of it.
    """

    def bound(c: float) -> float:
        found = error_bound(score_error, n=n, m=m, c=c, eps=eps, renormalised=renormalised)
        return round(found, _DIGITS)

    grid = np.linspace(0.0, check_scale(largest), _GRID)
    found = np.array([bound(c) for c in grid.tolist()])
    around = np.pad(found, 1, mode="edge")
    dips = np.flatnonzero((found <= around[:-2]) & (found <= around[2:]))
    lowest = dips[np.argsort(found[dips], kind="stable")][:_DIPS]
    return _best(bound, [_refined(bound, grid, int(dip)) for dip in lowest])


def _refined(bound: Callable[[float], float], grid: npt.NDArray[np.float64], dip: int) -> float:
    """Find the best c between the neighbours of a value of the grid."""
    best = float(grid[dip])
    for _ in range(_REFINEMENTS):
        grid = np.linspace(grid[max(dip - 1, 0)], grid[min(dip + 1, len(grid) - 1)], _REFINED)
        best = _best(bound, grid.tolist())
        dip = int(np.searchsorted(grid, best))
    return best


def _best(bound: Callable[[float], float], tried: list[float]) -> float:
    """Of several values of c the best; of those as good as it, the smallest."""
    return min(tried, key=lambda c: (bound(c), c))
