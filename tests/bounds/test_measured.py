from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import bounds
from fedimmune.errors import InputError, ParameterError
from tests.bounds.naive import Case, softmax


@given(rounds=st.integers(1, 5), n=st.integers(1, 8), seed=st.integers(0, 9999))
def test_measured_by_definition(rounds: int, n: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand((rounds, n), generator=random, dtype=torch.float64) * 2 - 1
    attackers = torch.rand((rounds, n), generator=random) < 0.4
    attackers[:, 0] = False
    errors = bounds.score_error(scores, attackers)
    spreads, margins = bounds.spread_and_margin(scores, attackers)
    for row in range(rounds):
        pairs = list(zip(scores[row].tolist(), attackers[row].tolist(), strict=True))
        honest = [score for score, bad in pairs if not bad]
        others = [score for score, bad in pairs if bad]
        error = float(errors[row])
        # the smallest that holds: it does, and a little less does not
        assert all(s >= 1 - error - 1e-12 for s in honest)
        assert all(s <= -1 + error + 1e-12 for s in others)
        less = error - 1e-9
        assert any(s < 1 - less for s in honest) or any(s > -1 + less for s in others)
        assert float(spreads[row]) == pytest.approx(max(honest) - min(honest))
        margin = max(honest) - max(others) if others else 2
        assert float(margins[row]) == pytest.approx(margin)


@given(n=st.integers(2, 7), seed=st.integers(0, 9999), c=st.floats(0, 12))
def test_what_is_measured_bounds_the_very_round(n: int, seed: int, c: float) -> None:
    random = torch.Generator().manual_seed(seed)
    m = seed % n
    scores = torch.rand((1, n), generator=random, dtype=torch.float64) * 2 - 1
    attackers = torch.arange(n)[None] >= n - m
    error = float(bounds.score_error(scores, attackers))
    spread, margin = (float(x) for x in bounds.spread_and_margin(scores, attackers))
    case = Case.of(error, n, m, c, 0.5, True)
    off = case.differences(scores[0].tolist())
    assert off <= bounds.error_bound(error, n=n, m=m, c=c) + 1e-9
    assert off <= bounds.spread_bound(spread, margin, n=n, m=m, c=c) + 1e-9
    weights = softmax(scores[0].tolist(), c)
    assert weights[n - m :].sum() <= bounds.attackers_together(error, n=n, m=m, c=c).highest + 1e-9


def test_rounding_beyond_the_range_of_scores_is_none() -> None:
    scores = torch.tensor([[1.0000001, -1.0000001], [-1.0000001, 1.0000001]])
    attackers = torch.tensor([[False, True], [False, True]])
    assert bounds.score_error(scores, attackers).tolist() == [0, 2]
    assert bounds.spread_and_margin(scores, attackers)[1].tolist() == [2, -2]


def test_a_score_that_is_none_is_not_hidden() -> None:
    scores = torch.tensor([[1.0, math.nan], [1.0, -1.0]])
    found = bounds.score_error(scores, torch.tensor([[False, True], [False, True]]))
    assert math.isnan(found[0])
    assert found[1] == 0
    assert math.isnan(bounds.holds_in_most(found, 1.0))


@given(values=st.lists(st.floats(0, 2, width=32), min_size=1, max_size=30), share=st.floats(0, 1))
def test_what_holds_in_most_rounds(values: list[float], share: float) -> None:
    found = bounds.holds_in_most(torch.tensor(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    fewer = sum(value < found for value in values)
    assert fewer < share * len(values) or found == min(values)


def test_shares_that_come_out_even() -> None:
    values = torch.arange(1, 101).double()
    assert [bounds.holds_in_most(values, s) for s in (0.07, 0.9, 1.0, 0.0)] == [7, 90, 100, 1]


def test_what_cannot_be_measured_is_refused() -> None:
    scores, attackers = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(InputError, match="same shape"):
        bounds.score_error(scores, attackers[:1])
    with pytest.raises(InputError, match="same shape"):
        bounds.score_error(scores[0], attackers[0])
    with pytest.raises(InputError, match="true or false"):
        bounds.score_error(scores, attackers.int())
    with pytest.raises(InputError, match="honest"):
        bounds.spread_and_margin(scores, ~attackers)
    with pytest.raises(InputError, match="one round at least"):
        bounds.holds_in_most(torch.zeros(0))
    with pytest.raises(ParameterError, match="share"):
        bounds.holds_in_most(torch.zeros(2), 1.5)
