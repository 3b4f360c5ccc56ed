"""Groups of clients, and groups of groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, Verdict, rules
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.hierarchy import GroupedAggregation, Hierarchy
from fedimmune.rules import Rule
from tests.rounds import SHAPES, as_states, as_vector, complete, matrices, rule_for

PLAIN = [
    *("mean", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "foolsgold"),
    *("adaptive", "centered-clipping", "residual", "fltrust", "norm-bound", "meamed"),
]


def aggregated(rule: Hierarchy, given: object) -> GroupedAggregation:
    found = rule.aggregate(given)
    assert isinstance(found, GroupedAggregation)
    return found


@pytest.mark.parametrize("name", PLAIN)
@given(matrix=matrices(least=7))
def test_one_group_of_all_is_the_plain_rule(name: str, matrix: Tensor) -> None:
    def made() -> Rule:
        return rule_for(name, range(len(matrix)), SHAPES)

    updates = complete(made(), Updates.from_states(as_states(matrix)))
    plain = made().aggregate(updates)
    together = dict.fromkeys(range(len(matrix)), "all")
    found = aggregated(Hierarchy(rules=[made(), "mean"], groups=together), updates)
    torch.testing.assert_close(as_vector(found.update), as_vector(plain.update))
    if plain.skipped:
        return
    assert found.verdicts == plain.verdicts
    assert (found.weights is None) == (plain.weights is None)
    assert found.weights == pytest.approx(plain.weights)
    assert [one.client for one in found.groups[0]] == ["all"]
    # And the plain rule above groups of one.
    alone = Hierarchy(rules=["mean", made()], groups={n: n for n in range(len(matrix))})
    found = aggregated(alone, updates)
    torch.testing.assert_close(as_vector(found.update), as_vector(plain.update))


@given(matrix=matrices(least=12, most=12), size=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_mean_of_equal_groups_is_the_mean(matrix: Tensor, size: int) -> None:
    for sums_only in (False, True):
        rule = Hierarchy(rules=["mean", "mean"], groups=size, sums_only=sums_only)
        found = aggregated(rule, matrix)
        torch.testing.assert_close(found.update, matrix.mean(0))
        assert found.weights == pytest.approx(dict.fromkeys(range(12), 1 / 12))
        assert sum(one.weight or 0 for one in found.groups[0]) == pytest.approx(1)
    nested = Hierarchy(rules=["mean"] * 3, groups=[2, 3])
    torch.testing.assert_close(nested(matrix), matrix.mean(0))
    assert [len(level) for level in aggregated(nested, matrix).groups] == [6, 2]


@given(matrix=matrices(least=8, most=12))
@pytest.mark.parametrize("name", ["geometric-median", "krum", "median", "foolsgold"])
def test_the_mean_of_drawn_groups_is_bucketing(name: str, matrix: Tensor) -> None:
    """An independent way to the same rows; lots differ, so sizes have to divide evenly."""
    matrix = matrix[: len(matrix) // 2 * 2]
    rule = Hierarchy(rules=["mean", name], groups=2)
    found = aggregated(rule, matrix)
    rows = torch.stack(
        [
            torch.stack([matrix[c] for c in range(len(matrix)) if found.members[c][0] == group])
            for group in (one.client for one in found.groups[0])
        ]
    ).mean(1)
    torch.testing.assert_close(found.update, rules.get(name)(rows))


@given(matrix=matrices(least=9), seed=st.integers(0, 100))
@pytest.mark.parametrize("pair", [("multi-krum", "median"), ("geometric-median", "multi-krum")])
def test_the_order_of_clients_changes_rounding_only(
    pair: tuple[str, str], matrix: Tensor, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(matrix))
    for groups in (3, {n: n % 3 for n in range(len(matrix))}):
        rule = Hierarchy(rules=pair, groups=groups)
        plain = rule.aggregate(Updates.from_vectors(matrix))
        moved = rule.aggregate(Updates.from_vectors(matrix[order], clients=order.tolist()))
        torch.testing.assert_close(moved.update, plain.update)
        assert moved.verdicts == plain.verdicts
        assert moved.weights == (None if plain.weights is None else pytest.approx(plain.weights))


@given(matrix=matrices(least=9, most=12))
def test_weights_multiply_and_make_the_result(matrix: Tensor) -> None:
    groups = {n: "ab"[n % 2] for n in range(len(matrix))}
    found = aggregated(
        Hierarchy(rules=["geometric-median", "mean"], groups=groups), Updates.of(matrix)
    )
    assert found.weights is not None
    weights = torch.tensor([found.weights[n] for n in range(len(matrix))], dtype=torch.float64)
    assert float(weights.sum()) == pytest.approx(1)
    torch.testing.assert_close(found.update, weights @ matrix)
    for one in found.groups[0]:
        members = [n for n, group in groups.items() if group == one.client]
        assert float(weights[members].sum()) == pytest.approx(one.weight)


def round_of(n: int = 12) -> Tensor:
    return torch.randn(n, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


GROUPS = {n: f"edge-{n // 4}" for n in range(12)}
REGIONS = {"edge-0": "north", "edge-1": "north", "edge-2": "south"}


def test_a_client_that_is_not_valid_is_named_and_the_others_count() -> None:
    matrix = round_of()
    matrix[5, 7] = torch.nan
    found = aggregated(Hierarchy(rules=["median", "mean"], groups=GROUPS), matrix)
    assert found.verdicts[5] is Verdict.REJECTED
    assert "NaN" in found.rejected[5]
    assert found.verdicts[4] is Verdict.TRUSTED
    expected = torch.stack(
        [
            matrix[[n for n in range(12) if n // 4 == edge and n != 5]].quantile(0.5, dim=0)
            for edge in range(3)
        ]
    ).mean(0)
    torch.testing.assert_close(found.update, expected)


def test_of_sums_nobody_is_named() -> None:
    matrix = round_of()
    matrix[5, 7] = torch.nan
    rule = Hierarchy(rules=["mean", "mean"], groups=GROUPS, sums_only=True)
    found = aggregated(rule, matrix)
    kept = [n for n in range(12) if n // 4 != 1]
    torch.testing.assert_close(found.update, matrix[kept].mean(0))
    assert found.rejected == {}
    assert {found.verdicts[n] for n in (4, 5, 6, 7)} == {Verdict.UNUSED}
    assert found.groups[0][1].verdict is Verdict.REJECTED
    assert found.weights is not None
    assert found.weights[5] == 0


def test_an_accused_group_does_not_accuse_its_members() -> None:
    matrix = torch.full((12, 40), 1.0) + 0.1 * round_of()
    matrix[8:] = 1e6  # all of one edge
    found = aggregated(Hierarchy(rules=["mean", "geometric-median"], groups=GROUPS), matrix)
    by_name = {one.client: one for one in found.groups[0]}
    assert any(one.verdict is Verdict.SUSPECTED for one in by_name.values())
    for client, edge in GROUPS.items():
        is_odd = by_name[edge].verdict is Verdict.SUSPECTED
        assert found.verdicts[client] is (Verdict.REDUCED if is_odd else Verdict.TRUSTED)
    assert not any(verdict is Verdict.SUSPECTED for verdict in found.verdicts.values())


def test_a_client_accused_in_its_group_is_accused() -> None:
    matrix = 1 + 0.1 * round_of()
    matrix[3] = 1e6
    found = aggregated(Hierarchy(rules=["geometric-median", "mean"], groups=GROUPS), matrix)
    assert found.verdicts[3] is Verdict.SUSPECTED
    assert found.verdicts[2] is Verdict.TRUSTED


def test_a_group_with_too_few_is_left_out_by_name() -> None:
    groups = {**GROUPS, 0: "alone"}
    found = aggregated(Hierarchy(rules=["krum", "mean"], groups=groups), round_of())
    assert found.verdicts[0] is Verdict.UNUSED
    reason = next(one.reason for one in found.clients if one.client == 0)
    assert "alone" in reason
    assert "krum needs at least 3" in reason
    assert found.warnings[0].startswith("1 of 4 groups take no part, such as alone: krum needs")
    with pytest.raises(NotEnoughClientsError, match="of groups") as caught:
        Hierarchy(rules=["krum", "mean"], groups={n: n for n in range(12)}).aggregate(round_of())
    assert set(caught.value.rejected) == set(range(12))


def test_levels_nest_and_every_level_is_told() -> None:
    matrix = round_of()
    rule = Hierarchy(rules=["median", "mean", "mean"], groups=[GROUPS, REGIONS])
    found = aggregated(rule, matrix)
    edges = torch.stack([matrix[4 * e : 4 * e + 4].quantile(0.5, dim=0) for e in range(3)])
    torch.testing.assert_close(found.update, (edges[:2].mean(0) + edges[2]) / 2)
    assert [[one.client for one in level] for level in found.groups] == [
        ["edge-0", "edge-1", "edge-2"],
        ["north", "south"],
    ]
    assert found.members[0] == ("edge-0", "north")
    told = json.loads(json.dumps(found.to_json()))
    assert [one["client"] for one in told["groups"][1]] == ["north", "south"]
    assert told["members"]["11"] == ["edge-2", "south"]


def test_rules_in_groups_remember_by_group_and_a_round_that_fails_is_not_noted(
    tmp_path: Path,
) -> None:
    matrix = round_of()

    def made() -> Hierarchy:
        each = [rules.get("foolsgold", history=True), rules.get("mean")]
        return Hierarchy(rules=each, groups=GROUPS)

    rule, other = made(), made()
    assert rule.has_history
    rule.aggregate(matrix)
    rule.save(tmp_path / "seen")
    other.restore(tmp_path / "seen")
    again = matrix.flip(0)
    assert torch.equal(rule(again), other(again))
    assert not torch.equal(rule(again), made()(again))
    top_heavy = Hierarchy(
        rules=[rules.get("foolsgold", history=True), rules.get("krum", attackers=2)], groups=GROUPS
    )
    with pytest.raises(NotEnoughClientsError):
        top_heavy.aggregate(matrix)
    assert not top_heavy._kept
    with pytest.raises(InputError, match="other rules"):
        Hierarchy(rules=[rules.get("foolsgold", history=True), "median"], groups=GROUPS).restore(
            tmp_path / "seen"
        )
    assert not Hierarchy(rules=[rules.get("foolsgold", history=True), "mean"]).has_history


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rules": ["mean"]}, "take 2 rules"),
        ({"rules": ["median", "mean"], "sums_only": True}, "has to be mean"),
        ({"groups": "north"}, "one per level"),
        ({"groups": 0}, "at least 1"),
        ({"groups": []}, "one per level"),
        ({"rules": ["mean", "meen"]}, "did you mean"),
        ({"rules": ["mean", rules.get("oracle", attackers=[1])]}, "by name"),
    ],
)
def test_what_makes_no_hierarchy_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Hierarchy(**given)  # type: ignore[arg-type]


def test_a_client_without_a_group_is_named() -> None:
    with pytest.raises(InputError, match="11 is in no group"):
        Hierarchy(groups=dict.fromkeys(range(11), 0)).aggregate(round_of())


@pytest.mark.parametrize("pair", [("mean", "median"), ("median", "median"), ("krum", "median")])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_as_many_as_it_withstands_do_no_unbounded_harm_wherever_they_are(
    pair: tuple[str, str], size: int
) -> None:
    n = 21
    honest = torch.randn(n, 8, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    rule = Hierarchy(rules=pair, groups=size)
    most = rule.withstands(n)
    where = aggregated(rule, honest).members
    together = sorted(range(n), key=lambda client: where[client])
    for chosen in (together[:most], together[::-1][:most], list(range(most))):
        matrix = honest.clone()
        matrix[chosen] = 1e12
        assert float(rule(matrix).abs().max()) < 100
    # One group's worth more, where it hurts, does harm.
    by_group = [[c for c in together if where[c] == g] for g in sorted(set(where.values()))]
    per_group = [rules.get(pair[0]).withstands(len(group)) + 1 for group in by_group]
    needed = rules.get(pair[1]).withstands(len(by_group)) + 1
    matrix = honest.clone()
    if pair[0] != "krum":  # which is not broken by one more in every placement
        for group, count in list(zip(by_group, per_group, strict=True))[:needed]:
            matrix[group[:count]] = 1e12
        assert float(rule(matrix).abs().max()) > 1e6
