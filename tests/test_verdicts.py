"""Verdicts fit weights; odd rounds are announced; ids are text wherever they are written."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, create
from fedimmune.aggregation import Aggregation
from fedimmune.rules.base import ClientWeights, WeightRule
from fedimmune.verdicts import Judgement, Suspicion, Verdict

weights_of = st.lists(
    st.sampled_from([0.0, 1e-6, 1e-3, 0.01, 0.04, 0.06, 0.4, 0.6, 1.0, 3.0]) | st.floats(1e-200, 1),
    min_size=1,
    max_size=12,
).filter(lambda weights: sum(weights) > 0)


class Fixed(WeightRule):
    """Gives the weights that it was told."""

    name = "fixed"
    summary = "of a test"
    paper = "–"

    def __init__(self, weights: list[float]) -> None:
        self.weights = torch.tensor(weights, dtype=torch.float64)

    def weigh(self, updates: Updates) -> ClientWeights:
        return ClientWeights(self.weights / self.weights.sum())


class Picking(Fixed):
    """Picks some, and accuses nobody."""

    unweighted_means = Verdict.UNUSED


class Sure(Fixed):
    """Gives whom it suspects no weight."""

    suspects_below = 0.0


def judged(rule: WeightRule, n: int) -> Aggregation:
    return rule.aggregate(np.ones((n, 2)))


# -------------------------------------------------------------------- verdicts fit weights


@given(weights_of)
def test_verdicts_fit_weights(weights: list[float]) -> None:
    n = len(weights)
    shares = [weight / sum(weights) * n for weight in weights]
    usual = float(np.median(shares))
    for share, found in zip(shares, judged(Fixed(weights), n).judgements, strict=True):
        if share == 0 or share < 0.1 * min(1, usual) * (1 - 1e-9):
            assert found.verdict is Verdict.SUSPECTED
        elif share < 0.5 * (1 - 1e-9):
            assert found.verdict in {Verdict.REDUCED, Verdict.SUSPECTED}
            assert (found.verdict is Verdict.REDUCED) or share < 0.1 * (1 + 1e-9)
        elif share > 0.5 * (1 + 1e-9):
            assert found.verdict is Verdict.TRUSTED
        assert bool(found.reason) == (found.verdict is not Verdict.TRUSTED)
        if found.verdict is not Verdict.TRUSTED and share > 0.001:
            assert f"fixed gave it {share:.1%} of an equal share" == found.reason


@given(weights_of)
def test_rules_that_pick_or_give_suspects_nothing_suspect_nobody_for_little_weight(
    weights: list[float],
) -> None:
    n = len(weights)
    picked = judged(Picking(weights), n).judgements
    assert [j.verdict is Verdict.UNUSED for j in picked] == [weight == 0 for weight in weights]
    assert {j.verdict for j in picked} <= {Verdict.TRUSTED, Verdict.UNUSED}
    sure = judged(Sure(weights), n).judgements
    assert [j.verdict is Verdict.SUSPECTED for j in sure] == [weight == 0 for weight in weights]


def gaussian(seed: int, n: int = 9, d: int = 20) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rule", ["geometric-median", "residual"])
@given(seed=st.integers(0, 999), size=st.floats(200, 1e6))
def test_who_is_far_away_is_suspected_and_honest_clients_are_trusted(
    rule: str, seed: int, size: float
) -> None:
    honest = gaussian(seed)
    assert {j.verdict for j in create(rule).aggregate(honest).judgements} == {Verdict.TRUSTED}
    attacked = torch.cat([honest, honest[:1] - size])
    verdicts = create(rule).aggregate(attacked).verdicts
    assert verdicts[9] is Verdict.SUSPECTED
    assert {verdicts[client] for client in range(9)} == {Verdict.TRUSTED}


@given(st.integers(0, 999))
def test_who_is_in_the_middle_makes_no_suspects_of_the_rest(seed: int) -> None:
    around = gaussian(seed, n=4)
    round_ = torch.cat([around, -around, torch.zeros(1, 20)])  # the last is the geometric median
    found = create("geometric-median").aggregate(round_)
    assert found.weights is not None
    assert found.weights[8] > 0.99
    assert {found.verdicts[client] for client in range(8)} == {Verdict.REDUCED}
    assert any("client 8 has" in warning for warning in found.warnings)


@given(st.lists(st.integers(0, 10_000), min_size=3, max_size=9))
def test_few_samples_are_no_accusation(samples: list[int]) -> None:
    updates = Updates.from_vectors(np.ones((len(samples), 2)), samples=samples)
    found = create("mean", by_samples=True).aggregate(updates)
    assert set(found.verdicts.values()) <= {Verdict.TRUSTED, Verdict.UNUSED}


# -------------------------------------------------------------------- odd rounds


def reference(verdicts: list[str], weights: list[float]) -> tuple[bool, bool]:
    valid = [(v, w) for v, w in zip(verdicts, weights, strict=True) if v != "rejected"]
    if len(valid) < 3:
        return False, False
    suspected = sum(v == "suspected" for v, _ in valid) > len(valid) / 2
    takes_all = max(w for _, w in valid) > 0.5 and "unused" not in verdicts
    return suspected, takes_all


@given(st.lists(st.tuples(st.sampled_from([*Verdict]), st.floats(0, 1)), max_size=9))
def test_warnings_are_of_most_suspected_and_of_most_weight(
    given_: list[tuple[Verdict, float]],
) -> None:
    total = sum(weight for _, weight in given_) or 1.0
    weights = [weight / total for _, weight in given_]
    judgements = tuple(
        Judgement(n, verdict, None if verdict is Verdict.REJECTED else weight)
        for n, ((verdict, _), weight) in enumerate(zip(given_, weights, strict=True))
    )
    found = Aggregation("r", None, {}, None, {}, judgements)
    wanted = reference([str(verdict) for verdict, _ in given_], weights)
    said = " ".join(found.warnings)
    assert ("are suspected" in said, "of the weight" in said) == wanted
    assert found.to_json()["warnings"] == list(found.warnings)


def test_an_odd_round_is_logged_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    agreeing = gaussian(1, n=1).repeat(9, 1)
    with caplog.at_level(logging.WARNING, logger="fedimmune"):
        found = create("foolsgold").aggregate(torch.cat([agreeing, -agreeing[:1]]))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "foolsgold: 9 of 10 valid clients are suspected" in caplog.text
    assert "foolsgold: client 9 has 100.0% of the weight" in caplog.text
    assert "warning: client 9 has 100.0% of the weight" in repr(found)


@pytest.mark.parametrize(("rule", "n"), [("krum", 7), ("mean", 2), ("geometric-median", 1)])
def test_nothing_is_said_of_picks_and_of_few_clients(
    rule: str, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(rule).aggregate(gaussian(3, n=n)).warnings == ()
    assert not caplog.records


# -------------------------------------------------------------------- ids and kinds in JSON


def in_javascript(number: str) -> Any:
    """Read a number as JavaScript and jq do."""
    return float(number)


@given(st.sets(st.integers(0, 2**64 - 1), min_size=3, max_size=5))
def test_ids_survive_programs_that_round_numbers(ids: set[int]) -> None:
    clients = sorted(ids)
    found = create("median").aggregate(
        Updates.from_vectors(np.ones((len(ids), 2)), clients=clients)
    )
    facts = json.loads(json.dumps(found.to_json()), parse_int=in_javascript)
    assert [client["id"] for client in facts["clients"]] == [str(client) for client in clients]
    told = [notice.to_json()["client"] for notice in found.notices().values()]
    assert sorted(told) == sorted(str(client) for client in clients)


def test_a_kind_is_a_guess_with_a_runner_up() -> None:
    assert str(Suspicion("omniscient", 0.71, 2, "backdoor", 0.2)) == (
        "looks most like omniscient (71%), then backdoor (20%)"
    )
    assert str(Suspicion("omniscient", 0.71)) == "looks most like omniscient (71%)"
    assert str(Suspicion("unknown", 0.3, None, "backdoor", 0.45)) == (
        "looks like no kind that was rehearsed, nearest backdoor (45%)"
    )
