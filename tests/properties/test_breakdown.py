"""As many attackers as a rule says it withstands, with updates of any length, do bounded harm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import rules
from fedimmune.errors import NotEnoughClientsError, ParameterError
from fedimmune.rules import find
from tests.rounds import rule_for

BOUNDS = {
    # In honest spreads (the largest distance of an honest update to the honest mean) …
    "median": 6.0,
    "trimmed-mean": 6.0,
    "geometric-median": 25.0,
    "krum": 12.0,
    "multi-krum": 12.0,
    "residual": 60.0,
    "bulyan": 6.0,
    "caf": 12.0,
    "dnc": 12.0,
    "gas": 12.0,
    "mda": 12.0,
    "meamed": 6.0,
    "monna": 12.0,
    "smea": 12.0,
    "zeno": 12.0,
    # … but for a rule that bounds lengths: in lengths of the longest honest update.
    **{name: 2.0 for name in rules.available() if find(name).bounds_lengths},
    "adaptive": 3.0,  # the universal defense shortens to two median lengths
    "fltrust": 3.0,
}
"""How far from the honest mean a rule may end."""

COLUMNS = 40
LEAST = {"bulyan": 7}
"""Of fewer clients no one may attack."""


STEPS = ["nnm", "bucketing", "bucketing(size=3)", "bucketing,nnm", "nnm,bucketing"]


@st.composite
def attacked(
    draw: st.DrawFn, name: str, dtype: torch.dtype, before: str = ""
) -> tuple[Tensor, Tensor]:
    """Honest clients, and as many attackers as the rule withstands, alone or together."""
    n = draw(st.integers(max(5, LEAST.get(name, 5)), 12))
    # What a rule trusts besides is made of the clients here: a majority of them is honest.
    most = min(rule_for(name, range(n), before=before).withstands(n), (n - 1) // 2)
    f = draw(st.integers(1, most) if most else st.just(0))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    common = draw(st.sampled_from([0.0, 1.0, 30.0])) * torch.randn(COLUMNS, generator=random)
    honest = common + torch.randn(n - f, COLUMNS, generator=random)
    same = draw(st.booleans())
    directions = torch.randn(1 if same else f, COLUMNS, generator=random)
    most = 30 if dtype == torch.float32 else 140  # what is longer is not measured, but rejected
    powers = [draw(st.integers(-30, most)) for _ in range(1 if same else f)]
    lengths = 10.0 ** torch.tensor(powers, dtype=torch.float64)
    unit = directions.double() / directions.double().norm(dim=1, keepdim=True)
    sent = (unit * lengths[:, None]).expand(f, COLUMNS)
    if draw(st.booleans()):  # they pull both ways
        sent = sent * torch.tensor([1, -1] * f)[:f, None]
    if draw(st.booleans()):  # they hide in one coordinate
        sent = torch.where(torch.arange(COLUMNS) == 3, sent, honest.double().mean(0))
    return honest.to(dtype), sent.to(dtype)


def error(name: str, honest: Tensor, sent: Tensor, before: str = "") -> float:
    rows = torch.cat([honest, sent])
    found = rule_for(name, range(len(rows)), before=before)(rows).double()
    mean = honest.double().mean(0)
    away = honest.double() if find(name).bounds_lengths else honest.double() - mean
    return float((found - mean).norm() / away.norm(dim=1).max())


def test_every_rule_says_what_it_withstands() -> None:
    for name in rules.available():
        rule = rule_for(name, range(10))
        assert (rule.withstands(10) > 0) == (name in BOUNDS), name
        assert rule.withstands(10) < 5 or "anchor" in rule.needs, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BOUNDS)
@given(data=st.data())
def test_harm_is_bounded(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    honest, sent = data.draw(attacked(name, dtype))
    found = error(name, honest, sent)
    assert found <= BOUNDS[name], f"{found:.3g} with {len(sent)} of {len(sent) + len(honest)}"


@pytest.mark.parametrize("before", STEPS)
@pytest.mark.parametrize("name", BOUNDS)
@given(data=st.data())
def test_harm_is_bounded_behind_steps(name: str, before: str, data: st.DataObject) -> None:
    """Seen before: Krum behind groups of two, 3e6 honest spreads by the three that it named."""
    rule = rule_for(name, range(12), before=before)
    try:
        rule.check_needs(rule.needs)
    except ParameterError:
        return  # it knows clients by name
    honest, sent = data.draw(attacked(name, torch.float64, before))
    try:
        found = error(name, honest, sent, before)
    except NotEnoughClientsError:
        return  # too few groups: the model stays
    assert found <= BOUNDS[name], f"{found:.3g} with {len(sent)} of {len(sent) + len(honest)}"


@pytest.mark.parametrize("power", [9, 15, 18, 30])
@pytest.mark.parametrize("f", [1, 3, 4])
def test_the_geometric_median_keeps_the_digits_of_the_honest(power: int, f: int) -> None:
    """Seen before: 8e5 honest spreads at 1e18 with one attacker, from 2e9 on with three of ten."""
    random = torch.Generator().manual_seed(power + f)
    honest = 1 + torch.randn(10 - f, COLUMNS, generator=random, dtype=torch.float64)
    sent = torch.randn(f, COLUMNS, generator=random, dtype=torch.float64) * 10.0**power
    assert error("geometric-median", honest, sent) < 3


@pytest.mark.parametrize("away", [1.0, 1e30, 1e140])
@pytest.mark.parametrize(("n", "most"), [(3, 2), (5, 3), (10, 6), (10, 10)])
def test_what_most_clients_sent_is_the_geometric_median(n: int, most: int, away: float) -> None:
    """Seen before: 1e-8 of the way to those who sent something else."""
    rows = torch.ones(n, COLUMNS, dtype=torch.float64)
    rows[most:] += (
        away * torch.randn(n - most, COLUMNS, generator=torch.Generator().manual_seed(n)).double()
    )
    torch.testing.assert_close(rules.get("geometric-median")(rows), rows[0])


@pytest.mark.parametrize("name", ["mean", "foolsgold"])
def test_rules_that_promise_nothing_do_fall(name: str) -> None:
    assert find(name)().withstands(10) == 0
    honest = 1 + 0.1 * torch.randn(9, COLUMNS, generator=torch.Generator().manual_seed(1))
    assert error(name, honest, -1e6 * torch.ones(1, COLUMNS)) > 1e3


@pytest.mark.parametrize("attackers", [{3: 1e153}, {3: 1e152, 7: -1e152}, {0: 1e160}])
@pytest.mark.parametrize("name", rules.available())
def test_what_cannot_be_squared_is_rejected_by_name(name: str, attackers: dict[int, float]) -> None:
    """Seen before: IndexError every round, and nobody named."""
    rows = torch.randn(10, COLUMNS, generator=torch.Generator().manual_seed(2)).double()
    for client, value in attackers.items():
        rows[client, 5] = value
    answer = rule_for(name, range(10)).aggregate(rows)
    if not find(name).squares:
        assert not answer.rejected, "it squares nothing"
    else:
        assert set(answer.rejected) == set(attackers)
        assert "too large to be measured" in answer.rejected[next(iter(attackers))]
        rest = [i for i in range(10) if i not in attackers]
        assert bool(torch.isfinite(answer.update).all())
        assert answer.weights is None or set(answer.weights) == set(rest)


@pytest.mark.parametrize("value", [1e146, 1e160, 1e300])
@pytest.mark.parametrize("immense", [range(6), range(3, 10), range(10)])
@pytest.mark.parametrize("before", ["", "nnm"])
@pytest.mark.parametrize("name", [name for name in rules.available() if not find(name).needs])
def test_most_of_whom_cannot_be_squared_are_rejected_by_name(
    name: str, before: str, immense: range, value: float
) -> None:
    """Seen before: nine of ten rejected as seen from the tenth, which had all the weight."""
    rows = torch.randn(10, COLUMNS, generator=torch.Generator().manual_seed(3)).double()
    rows[list(immense)] *= value
    rule = rule_for(name, range(10), before=before)
    if not rule.squares and not before:
        return
    try:
        answer = rule.aggregate(rows)
    except NotEnoughClientsError as error:
        rejected = {*error.rejected}
    else:
        rejected = {*answer.rejected}
        assert bool(torch.isfinite(answer.update).all())
    assert rejected == set(immense)


def test_steps_before_a_rule_count() -> None:
    assert rules.get("krum", before="bucketing").withstands(10) == 1
    assert rules.get("median", before="bucketing(size=3),clip").withstands(10) == 1
    assert rules.get("median", before="nnm").withstands(10) == 3
    assert rules.get("median", before="nnm(attackers=4)").withstands(10) == 4
    assert rules.get("median", before="bucketing,nnm(attackers=0)").withstands(10) == 0
    assert rules.get("fltrust", before="arc,clip").withstands(10) == 10


def test_keeping_more_than_the_honest_is_said() -> None:
    assert rules.get("multi-krum", keep=9).withstands(10) == 1
    assert rules.get("krum", attackers=2).withstands(10) == 2
    assert rules.get("trimmed-mean", trim=0.1).withstands(10) == 1
