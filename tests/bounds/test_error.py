from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedimmune import bounds
from tests.bounds.naive import Case, Numbers, cases, robust, used


def bound_of(error: float, case: Case) -> float:
    return bounds.error_bound(
        error, n=case.n, m=case.m, c=case.c, eps=case.eps, renormalized=case.renormalized
    )


@settings(max_examples=60)
@given(drawn=cases(), seed=st.integers(0, 9999))
def test_no_scores_lead_beyond_the_bound(drawn: tuple[float, Case], seed: int) -> None:
    error, case = drawn
    assert case.worst(seed) <= bound_of(error, case) + 1e-9


@given(drawn=cases(), eps=st.just(0.0))
def test_without_truncation_the_bound_is_reached(drawn: tuple[float, Case], eps: float) -> None:
    error, case = drawn
    case = Case.of(error, case.n, case.m, case.c, eps, case.renormalized)
    reached = max(map(case.differences, case.corners()))
    assert reached == pytest.approx(bound_of(error, case), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("renormalized", [True, False])
@pytest.mark.parametrize("error", [0.01, 0.1, 0.13, 0.2, 0.5, 0.9, 1.0, 1.5])
@pytest.mark.parametrize("m", [0, 1, 4])
def test_in_the_papers_setting_it_is_reached_too(m: int, error: float, renormalized: bool) -> None:
    case = Case.of(error, 10, m, 10.0, 0.5, renormalized)
    limit = bound_of(error, case)
    assert 0.98 * limit <= case.worst(seed=1, starts=1) <= limit + 1e-12


@given(
    drawn=cases(),
    norm=st.sampled_from([1, 2, np.inf]),
    seed=st.integers(0, 9999),
    line=st.booleans(),
)
def test_estimates_of_real_updates_are_within_the_bound(
    drawn: tuple[float, Case], norm: float, seed: int, line: bool
) -> None:
    """Any updates, attackers' too, and any scores; on one line the bound is used up."""
    error, case = drawn
    n, m = case.n, case.m
    random = np.random.default_rng(seed)
    scores = case.corners()[seed % len(case.corners())]
    weights, wanted = used(scores, case.c, case.eps, case.renormalized), robust(n, m)
    updates = random.normal(size=(n, 3)) * random.uniform(0, 5, size=(n, 1))
    if line:
        updates = np.sign(weights - wanted)[:, None] * np.array([[3.0, 0, 0]])
    largest = max(np.linalg.norm(update, norm) for update in updates)
    away = float(np.linalg.norm(weights @ updates - wanted @ updates, norm))
    limit = bound_of(error, case)
    assert away <= limit * largest + 1e-9
    if line:
        assert away == pytest.approx(case.differences(scores) * largest, abs=1e-9)
    if case.renormalized:
        assert away <= limit * half_the_largest_distance(updates, norm) + 1e-9


def half_the_largest_distance(updates: Numbers, norm: float) -> float:
    return max(float(np.linalg.norm(a - b, norm)) for a in updates for b in updates) / 2


@given(drawn=cases(largest=40))
def test_the_readable_form_is_never_below(drawn: tuple[float, Case]) -> None:
    error, case = drawn
    n, m, c = case.n, case.m, case.c
    share = bounds.attackers_together(error, n=n, m=m, c=c).highest
    honest = math.tanh(c * error / 4)
    found = bounds.error_bound(error, n=n, m=m, c=c, eps=0)
    assert found <= 2 * (share + (1 - share) * honest) + 1e-12
    limit = bounds.surely_truncated_below(n=n, m=m, c=c)
    if limit is not None and error < limit and error <= bounds.benign_kept_up_to(n=n, m=m, c=c):
        assert bounds.error_bound(error, n=n, m=m, c=c) <= 2 * honest + 1e-12


def test_the_readable_form_is_close_with_many_clients() -> None:
    found = bounds.error_bound(0.1, n=1000, m=0, eps=0)
    assert found == pytest.approx(2 * math.tanh(0.25), rel=1e-4)


@given(drawn=cases(), more=st.floats(0, 2))
def test_worse_scores_never_have_a_better_bound(drawn: tuple[float, Case], more: float) -> None:
    error, case = drawn
    if case.renormalized:
        assert bound_of(min(error + more, 2), case) >= bound_of(error, case) - 1e-12


@pytest.mark.parametrize(("n", "m", "c"), [(10, 4, 10.0), (10, 4, 2.0), (3, 2, 5.0), (20, 1, 4.0)])
def test_perfect_scores(n: int, m: int, c: float) -> None:
    had = m / (m + (n - m) * math.exp(2 * c))
    assert bounds.best_case(n=n, m=m, c=c) == 0
    assert bounds.best_case(n=n, m=m, c=c, renormalized=False) == pytest.approx(had, rel=1e-6)
    assert bounds.best_case(n=n, m=m, c=c, eps=0) == pytest.approx(2 * had, rel=1e-6)
    scaled = bounds.best_case(n=n, m=m, c=c, eps=0, largest_norm=7)
    assert scaled == pytest.approx(7 * 2 * had, rel=1e-6)


def test_without_scale_it_is_the_plain_mean() -> None:
    """What the mean is off by: each of m attackers has 1 / n that the others lack."""
    assert bounds.error_bound(0.3, n=10, m=4, c=0) == pytest.approx(2 * 4 / 10)


# ---------------------------------------------------------------- spread and margin


@given(drawn=cases())
def test_a_score_error_is_a_spread_and_a_margin(drawn: tuple[float, Case]) -> None:
    error, case = drawn
    n, m, c, eps = case.n, case.m, case.c, case.eps
    found = bounds.spread_bound(
        error, 2 - error, n=n, m=m, c=c, eps=eps, renormalized=case.renormalized
    )
    assert found == pytest.approx(bound_of(error, case), rel=1e-12)


@settings(max_examples=60)
@given(
    drawn=cases(largest=6),
    ends=st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(-1, 1)),
    seed=st.integers(0, 9999),
)
def test_no_scores_so_far_apart_lead_beyond_the_bound(
    drawn: tuple[float, Case], ends: tuple[float, float, float], seed: int
) -> None:
    """Attackers may even score higher than the honest."""
    _, case = drawn
    low, high = sorted(ends[:2])
    case = Case(case.n, case.m, case.c, case.eps, (low, high), (-1.0, ends[2]), case.renormalized)
    found = bounds.spread_bound(
        high - low,
        high - ends[2],
        n=case.n,
        m=case.m,
        c=case.c,
        eps=case.eps,
        renormalized=case.renormalized,
    )
    assert case.worst(seed) <= found + 1e-9
    if case.eps == 0:
        assert max(map(case.differences, case.corners())) == pytest.approx(found, abs=1e-9)
