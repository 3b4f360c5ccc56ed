"""What `train` says about scores: measured as the definition has it, and kept by the weights."""

from __future__ import annotations

import statistics

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedimmune.adaptive import train
from fedimmune.adaptive.evaluation import promises
from fedimmune.adaptive.models.base import FormSettings
from tests.adaptive.rehearsed import recordings


def rounds_of(seed: int, m: int, n: int = 7, count: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    attackers = torch.zeros(count, n, dtype=torch.bool)
    for row in attackers:
        row[torch.randperm(n, generator=random)[:m]] = True
    noise = torch.rand(count, n, generator=random, dtype=torch.float64) ** 4
    scores = torch.where(attackers, -1 + noise, 1 - noise)
    return scores, attackers


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4), st.floats(1, 30), st.sampled_from([0.0, 0.5]))
def test_in_half_of_the_rounds_the_error_is_within_the_bound(
    seed: int, m: int, c: float, eps: float
) -> None:
    scores, attackers = rounds_of(seed, m)
    found = promises(scores, attackers, FormSettings(c=c, eps=eps, layers=1))
    errors, score_errors = [], []
    for row, bad in zip(scores.tolist(), attackers.tolist(), strict=True):
        pairs = list(zip(row, bad, strict=True))
        score_errors.append(max((s + 1 if b else 1 - s) for s, b in pairs))
        kept = torch.softmax(c * torch.tensor(row, dtype=torch.float64), 0)
        kept = torch.where(kept < eps / len(row), 0.0, kept)
        weights = (kept / kept.sum()).tolist()
        honest = bad.count(False)
        # Updates of length 1 along one line, as bad as can be: the sum of the differences.
        wanted = [0 if b else 1 / honest for b in bad]
        errors.append(sum(abs(w - x) for w, x in zip(weights, wanted, strict=True)))
    assert found["score_error"] == statistics.median_high(score_errors)
    assert found["score_error_most"] >= found["score_error"]
    for name in ("bound", "bound_by_spread"):
        assert statistics.median_low(errors) <= found[name] + 1e-9
    assert found["bound_by_spread"] <= found["bound"] + 1e-9, "it knows more"


def test_where_c_is_too_large_there_is_a_score_error_and_no_bound() -> None:
    found = promises(*rounds_of(1, 2), FormSettings(c=1000.0, layers=1))
    assert found["score_error"] > 0
    assert found["bound"] is None


def test_a_defense_carries_them() -> None:
    made = train(recordings(2, rounds=2), epochs=1)
    for row in made.about.validation:
        assert 0 <= row["score_error"] <= 2
        assert 0 <= row["bound_by_spread"] <= 2
