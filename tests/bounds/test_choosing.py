from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedimmune import bounds
from fedimmune.errors import ParameterError
from tests.bounds.naive import Case


@given(
    wanted=st.floats(1e-6, 2),
    n=st.integers(1, 12),
    share=st.floats(0, 0.9),
    c=st.floats(0.1, 20),
    eps=st.sampled_from([0.0, 0.5, 0.9]),
    renormalized=st.booleans(),
)
def test_the_needed_score_error_is_enough_and_no_more_is(
    wanted: float, n: int, share: float, c: float, eps: float, renormalized: bool
) -> None:
    m = min(int(share * n), n - 1)

    def bound(error: float) -> float:
        return bounds.error_bound(error, n=n, m=m, c=c, eps=eps, renormalized=renormalized)

    found = bounds.needed_score_error(
        wanted / 0.5, 0.5, n=n, m=m, c=c, eps=eps, renormalized=renormalized
    )
    if found is None:
        assert bound(0) > wanted / 0.5 * 0.5
    else:
        assert bound(found) <= wanted + 1e-12
        assert found == 2 or bound(min(found + 1e-9, 2)) > wanted - 1e-12


@pytest.mark.parametrize("wanted", [0.01, 0.1, 0.4])
def test_as_long_as_truncation_is_right_a_short_formula_is_enough(wanted: float) -> None:
    short = 4 / 10 * math.atanh(wanted / 2)
    assert short < bounds.benign_kept_up_to(n=10, m=4)
    found = bounds.needed_score_error(wanted, 1.0, n=10, m=4)
    assert found is not None
    assert short <= found <= 1.03 * short


def test_where_perfect_scores_are_not_enough_there_is_none() -> None:
    assert bounds.needed_score_error(0.1, 1e-9, n=10, m=4, eps=0) is None
    assert bounds.needed_score_error(0.1, 1e-9, n=10, m=4) is not None


@settings(max_examples=12)
@given(
    error=st.floats(0, 2),
    n=st.integers(2, 12),
    share=st.floats(0, 0.9),
    eps=st.sampled_from([0.0, 0.5]),
)
def test_no_other_c_has_a_clearly_lower_bound(
    error: float, n: int, share: float, eps: float
) -> None:
    m = min(int(share * n), n - 1)
    c = bounds.conservative_c(error, n=n, m=m, eps=eps, largest=8)
    here = bounds.error_bound(error, n=n, m=m, c=c, eps=eps)
    assert 0 <= c <= 8
    others = [*np.linspace(0, 8, 101), *np.linspace(max(c - 0.03, 0), min(c + 0.03, 8), 101)]
    assert here <= 1e-5 + min(
        bounds.error_bound(error, n=n, m=m, c=float(other), eps=eps) for other in others
    )


@pytest.mark.parametrize("error", [0.1, 0.3, 0.5])
def test_it_is_good_against_the_worst_scores(error: float) -> None:
    """By the adversary's own search: better than the paper's c and than the plain mean."""
    c = bounds.conservative_c(error, n=6, m=2)
    here, sharp, mean = (
        Case.of(error, 6, 2, scale, 0.5, True).worst(seed=1) for scale in (c, 10.0, 0.0)
    )
    assert here < sharp
    assert here < mean


def test_worse_scores_ask_for_a_plain_mean_at_last() -> None:
    assert bounds.conservative_c(1.0, n=10, m=4) == 0
    assert bounds.conservative_c(1.7, n=10, m=4) == 0
    assert bounds.conservative_c(0.2, n=10, m=0) == 0, "nobody to take weight from"


def test_of_several_the_smallest() -> None:
    """With perfect scores nothing is left to win once attackers are cut off."""
    c = bounds.conservative_c(0.0, n=10, m=4)
    assert bounds.error_bound(0.0, n=10, m=4, c=c) == 0
    assert bounds.surely_truncated_below(n=10, m=4, c=c) is not None
    assert bounds.surely_truncated_below(n=10, m=4, c=c - 1e-4) is None


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ParameterError, match="gamma"):
        bounds.needed_score_error(-1.0, 1.0, n=5, m=2)
    with pytest.raises(ParameterError, match="c must"):
        bounds.conservative_c(0.1, n=5, m=2, largest=1000)
