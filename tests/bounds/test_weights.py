from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import bounds
from fedimmune.errors import ParameterError
from tests.bounds.naive import Case, cases, softmax


def in_allowed(case: Case, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Scores that are allowed, half of them at an end."""
    random = np.random.default_rng(seed)
    honest = random.uniform(*case.honest, case.n - case.m)
    scores = np.concatenate([honest, random.uniform(*case.attackers, case.m)])
    ends = np.array([case.honest] * (case.n - case.m) + [case.attackers] * case.m)
    picked = ends[np.arange(case.n), random.integers(0, 2, case.n)]
    return np.where(random.random(case.n) < 0.5, picked, scores)


@given(drawn=cases(), seed=st.integers(0, 9999))
def test_no_weight_leaves_its_range(drawn: tuple[float, Case], seed: int) -> None:
    error, case = drawn
    n, m, c = case.n, case.m, case.c
    weights = softmax(in_allowed(case, seed), c)
    honest, bad = weights[: n - m], weights[n - m :]
    for ends, values in (
        (bounds.benign_weights(error, n=n, m=m, c=c), honest),
        (bounds.attacker_weights(error, n=n, m=m, c=c), bad),
        (bounds.attackers_together(error, n=n, m=m, c=c), [bad.sum()]),
    ):
        assert all(ends.lowest * (1 - 1e-9) <= w <= ends.highest * (1 + 1e-9) for w in values)


@given(drawn=cases())
def test_every_end_is_reached(drawn: tuple[float, Case]) -> None:
    error, case = drawn
    n, m, c = case.n, case.m, case.c
    (low, high), (bottom, top) = case.honest, case.attackers

    def first(own: float, honest: float, bad: float) -> float:
        return float(softmax([own] + [honest] * (n - m - 1) + [bad] * m, c)[0])

    def last(own: float, honest: float, bad: float) -> float:
        return float(softmax([honest] * (n - m) + [bad] * (m - 1) + [own], c)[-1])

    assert bounds.benign_weights(error, n=n, m=m, c=c) == pytest.approx(
        (first(low, high, top), first(high, low, bottom)), rel=1e-9
    )
    if m:
        assert bounds.attacker_weights(error, n=n, m=m, c=c) == pytest.approx(
            (last(bottom, high, top), last(top, low, bottom)), rel=1e-9
        )
        ends = softmax([high] * (n - m) + [bottom] * m, c), softmax([low] * (n - m) + [top] * m, c)
        assert bounds.attackers_together(error, n=n, m=m, c=c) == pytest.approx(
            tuple(end[n - m :].sum() for end in ends), rel=1e-9
        )


@given(
    n=st.integers(1, 30),
    share=st.floats(0, 0.99),
    c=st.floats(0.01, 40),
    eps=st.sampled_from([0.0, 0.1, 0.5, 0.99]),
)
def test_the_limits_of_truncation_are_where_the_weight_crosses_the_threshold(
    n: int, share: float, c: float, eps: float
) -> None:
    m = min(int(share * n), n - 1)

    def highest(error: float) -> float:
        return bounds.attacker_weights(error, n=n, m=m, c=c).highest

    def lowest(error: float) -> float:
        return bounds.benign_weights(error, n=n, m=m, c=c).lowest

    step = 1e-6
    limit = bounds.surely_truncated_below(n=n, m=m, c=c, eps=eps)
    if limit is None:
        assert m > 0
        assert highest(0) >= eps / n
    elif m:
        assert highest(max(limit - step, 0)) < eps / n or limit < step
        assert limit == 2 or highest(min(limit + step, 2)) > eps / n
    kept = bounds.benign_kept_up_to(n=n, m=m, c=c, eps=eps)
    assert lowest(max(kept - step, 0)) >= eps / n
    assert kept == 2 or lowest(min(kept + step, 2)) < eps / n


def test_the_papers_setting() -> None:
    """c = 10, ε = 0.5, 4 of 10: attackers go below 0.942, honest clients stay up to 0.1335."""
    assert bounds.surely_truncated_below(n=10, m=4) == pytest.approx(0.942367, abs=1e-6)
    assert bounds.benign_kept_up_to(n=10, m=4) == pytest.approx(0.133500, abs=1e-6)
    assert bounds.attacker_weights(1.0, n=10, m=4).highest == pytest.approx(1 / 7, abs=1e-4)


def test_nobody_attacks_and_nothing_is_cut_off() -> None:
    assert bounds.attacker_weights(0.5, n=5, m=0) == (0, 0)
    assert bounds.attackers_together(0.5, n=5, m=0) == (0, 0)
    assert bounds.surely_truncated_below(n=5, m=0) == 2
    assert bounds.surely_truncated_below(n=5, m=2, eps=0) is None
    assert bounds.surely_truncated_below(n=5, m=2, c=0) is None
    assert bounds.benign_kept_up_to(n=5, m=2, eps=0) == 2
    assert bounds.benign_kept_up_to(n=5, m=2, c=0) == 2
    assert bounds.benign_kept_up_to(n=1, m=0) == 2


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"score_error": -0.1}, "score_error"),
        ({"score_error": 2.1}, "score_error"),
        ({"score_error": math.nan}, "score_error"),
        ({"score_error": True}, "score_error"),
        ({"n": 0, "m": 0}, "n must"),
        ({"m": 5}, "m must be below n"),
        ({"m": -1}, "m must"),
        ({"m": 1.5}, "m must"),
        ({"c": -1}, "c must"),
        ({"c": 301}, "c must"),
        ({"c": "ten"}, "c must"),
        ({"eps": 1.0}, "eps must"),
        ({"largest_norm": -1}, "largest_norm"),
        ({"largest_norm": math.inf}, "largest_norm"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(wrong: dict[str, object], named: str) -> None:
    right: dict[str, object] = {"score_error": 0.1, "n": 5, "m": 2}
    with pytest.raises(ParameterError, match=named):
        bounds.error_bound(**{**right, **wrong})  # type: ignore[arg-type]
