"""Where Lemma 1, as printed, fails; the corrected statements hold in the same places."""

from __future__ import annotations

import numpy as np
import pytest

from fedimmune import bounds
from fedimmune.errors import ParameterError
from reproduction import lemma
from tests.bounds.naive import Case, robust, softmax, used


def test_the_printed_formulas() -> None:
    """As in the paper, c = 10: "we require ε′ ≤ 1 % … to bound the relative error to 10 %"."""
    assert lemma.needed_score_error(0.1, 1.0, n=10, m=4) == pytest.approx(0.01, abs=5e-4)
    assert lemma.best_case(n=10, m=4) == pytest.approx(1 / (0.6 * np.exp(20) + 0.4))
    assert lemma.error_bound(0.0, n=10, m=4) == pytest.approx(np.exp(-20) / 0.6)
    assert lemma.surely_truncated_below(n=10, m=4) == pytest.approx(1.9019, abs=1e-4)
    assert lemma.attacker_weights(0.3, n=10, m=0) == (0, 0)
    assert lemma.needed_score_error(3.0, 1.0, n=10, m=4, c=1.0) == pytest.approx(np.log(4))
    for wrong in ({"c": 0}, {"eps": 0.0}):
        with pytest.raises(ParameterError, match="above 0"):
            lemma.surely_truncated_below(**{"n": 5, "m": 2, **wrong})  # type: ignore[arg-type]


def test_an_attacker_can_weigh_more_than_printed() -> None:
    """At ε′ = 1 everybody may score 0, and then everybody has 1 / n."""
    weights = softmax([0.0] * 10, c=10)
    assert weights[-1] > 1000 * lemma.attacker_weights(1.0, n=10, m=4).highest
    assert weights[-1] <= bounds.attacker_weights(1.0, n=10, m=4).highest


def test_attackers_are_not_cut_off_below_the_printed_limit() -> None:
    assert lemma.surely_truncated_below(n=10, m=4) > 1.9
    assert (used([0.0] * 10, c=10, eps=0.5, renormalized=True) > 0).all()
    limit = bounds.surely_truncated_below(n=10, m=4)
    assert limit is not None
    assert limit < 1


def test_an_honest_client_can_weigh_less_than_printed() -> None:
    """Without attackers the printed lowest weight is 1 / n: nobody could have less than anybody."""
    lowest = softmax([0.9] + [1.0] * 9, c=10)[0]
    assert lemma.benign_weights(0.1, n=10, m=0).lowest == pytest.approx(0.1)
    assert lowest < 0.05
    assert lowest >= bounds.benign_weights(0.1, n=10, m=0).lowest * (1 - 1e-12)


@pytest.mark.parametrize("renormalized", [True, False])
def test_the_norm_of_a_client_that_is_cut_off_counts(renormalized: bool) -> None:
    """An honest client far out, with a score of 0.7: it is missed, however short the others."""
    scores = [0.7] + [1.0] * 9
    weights = used(scores, c=10, eps=0.5, renormalized=renormalized)
    assert weights[0] == 0
    updates = np.array([1000.0] + [1.0] * 9)
    off = abs(weights @ updates - robust(10, 0) @ updates)
    assert off > lemma.error_bound(0.3, n=10, m=0, largest_kept_norm=1.0)
    assert off <= bounds.error_bound(0.3, n=10, m=0, renormalized=renormalized, largest_norm=1000.0)


@pytest.mark.parametrize("renormalized", [True, False])
def test_an_honest_client_that_is_cut_off_breaks_it_whatever_the_norms(renormalized: bool) -> None:
    """The proof lets truncation act on attackers alone; with a high threshold it need not."""
    case = Case.of(0.1, 10, 0, 1.0, 0.97, renormalized)
    off = case.differences([0.9] * 5 + [1.0] * 5)
    assert off > 3 * lemma.error_bound(0.1, n=10, m=0, c=1.0)
    assert off <= bounds.error_bound(0.1, n=10, m=0, c=1.0, eps=0.97, renormalized=renormalized)


def test_nearly_half_attackers_break_it_without_truncation() -> None:
    case = Case.of(0.0678, 20, 9, 1.475, 0.0, True)
    off = max(map(case.differences, case.corners()))
    assert off > 1.03 * lemma.error_bound(0.0678, n=20, m=9, c=1.475)
    assert off <= bounds.error_bound(0.0678, n=20, m=9, c=1.475, eps=0) * (1 + 1e-12)


def test_the_printed_score_error_need_not_reach_the_rate() -> None:
    error = lemma.needed_score_error(0.1069, 1.0, n=20, m=9, c=1.475)
    assert error == pytest.approx(0.0688, abs=2e-4)
    case = Case.of(error, 20, 9, 1.475, 0.0, True)
    assert max(map(case.differences, case.corners())) > 0.1069
    enough = bounds.needed_score_error(0.1069, 1.0, n=20, m=9, c=1.475, eps=0)
    assert enough is not None
    assert enough < error


def test_a_majority_of_attackers_breaks_the_printed_best_case() -> None:
    """The proof takes m/(n−m) for at most 1."""
    case = Case.of(0.0, 10, 6, 2.0, 0.0, True)
    off = case.differences([1.0] * 4 + [-1.0] * 6)
    assert off > 1.15 * lemma.best_case(n=10, m=6, c=2.0)
    assert off <= bounds.best_case(n=10, m=6, c=2.0, eps=0) * (1 + 1e-12)


def test_an_estimate_that_was_right_does_not_improve() -> None:
    """From "within δ" follows "within γδ", not an error γ times as large: here it was zero."""
    error = lemma.needed_score_error(0.1, 1.0, n=10, m=4)
    scores = [1 - error, *([1.0] * 5), *([-1.0] * 4)]
    weights = used(scores, c=10, eps=0.5, renormalized=True)
    updates = np.array([1.0] + [-1.0] * 5 + [0.0] * 4)
    off = abs(weights @ updates - robust(10, 4) @ updates)
    assert 0.1 * 0.0 < off <= 0.1


def test_in_the_papers_setting_the_corrected_bound_asks_for_half_as_much() -> None:
    ours, theirs = (module.needed_score_error(0.1, 1.0, n=10, m=4) for module in (bounds, lemma))
    assert ours is not None
    assert theirs is not None
    assert ours > 2 * theirs
