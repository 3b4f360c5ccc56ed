"""Steps before a rule: against their definitions, and mixed rows against rows made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, rules
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.geometry import Geometry, measure
from fedimmune.results import Verdict
from fedimmune.rules import GeometryRule, find
from fedimmune.rules.preaggregation import (
    ARC,
    NNM,
    Bucketing,
    Clip,
    Mixing,
    PreAggregator,
    mixed,
    parse,
)
from tests.rounds import SHAPES, VECTOR, as_states, as_vector, complete, matrices, rule_for

TEXTS = ["nnm", "clip(at=2),nnm", "arc", "clip(at=median, times=0.5)", "bucketing", "nnm,bucketing"]
BY_NAME = {"adaptive", "oracle"}
"""Rules that know clients by name, for whom nothing is regrouped."""


def rows_of(step: PreAggregator, matrix: Tensor, attackers: int = 2, number: int = 1) -> Tensor:
    return step.mix(Geometry.from_grams(matrix @ matrix.T), attackers, number).matrix @ matrix


def has_ties(rows: Tensor) -> bool:
    """Whether two pairs of rows lie equally far apart: there may be more than one answer then."""
    apart = torch.pdist(rows).sort().values
    return bool((apart.diff() < 1e-9 * apart[-1]).any())


# -------------------------------------------------------------------- definitions


@given(matrix=matrices(), attackers=st.integers(0, 3))
def test_nnm_is_the_mean_of_the_nearest(matrix: Tensor, attackers: int) -> None:
    expected = []
    for row in matrix:
        order = sorted(matrix, key=lambda other: float((other - row).norm()))
        expected.append(torch.stack(order[: len(matrix) - attackers]).mean(0))
    torch.testing.assert_close(rows_of(NNM(), matrix, attackers), torch.stack(expected))


@pytest.mark.parametrize(
    ("rule", "f"),
    [
        *((rules.get(name), 4) for name in ("meamed", "mda", "smea", "caf", "dnc", "monna")),
        *((rules.get(name), 3) for name in ("krum", "gas", "zeno", "median", "mean")),
        (rules.get("bulyan"), 1),
        (rules.get("krum", attackers=1), 1),
        (rules.get("trimmed-mean", trim=0.2), 2),
        (rules.get("oracle", attackers=[1, 2]), 3),
    ],
)
@pytest.mark.parametrize("step", [NNM, ARC])
def test_a_step_takes_as_many_for_attackers_as_the_rule(
    rule: rules.Rule, f: int, step: type[NNM | ARC]
) -> None:
    matrix = torch.randn(10, 8, generator=torch.Generator().manual_seed(3)).double()
    geometry = Geometry.from_grams(matrix @ matrix.T)
    rule.preaggregators = (step(),)
    assert torch.equal(rule.mixing(geometry, 0).matrix, step(f).mix(geometry, 0, 0).matrix)
    rule.preaggregators = (step(2),)
    assert torch.equal(rule.mixing(geometry, 0).matrix, step().mix(geometry, 2, 0).matrix)


def test_a_step_that_is_told_of_everybody_keeps_each_update() -> None:
    matrix = torch.randn(5, 8, generator=torch.Generator().manual_seed(3)).double()
    torch.testing.assert_close(rows_of(NNM(99), matrix), matrix)
    torch.testing.assert_close(rows_of(ARC(99), matrix), rows_of(ARC(4), matrix))


@given(matrix=matrices(), attackers=st.integers(0, 4))
def test_arc_cuts_the_longest_to_the_next(matrix: Tensor, attackers: int) -> None:
    n = len(matrix)
    count = math.floor(2 * attackers / n * (n - attackers) + 1e-9)
    lengths = sorted((float(row.norm()) for row in matrix), reverse=True)
    most = lengths[count]
    expected = torch.stack([row * min(1.0, most / float(row.norm())) for row in matrix])
    torch.testing.assert_close(rows_of(ARC(), matrix, attackers), expected)


@given(matrix=matrices(), at=st.sampled_from([0.5, 3.0, "median"]), times=st.sampled_from([1, 2.5]))
def test_clip_shortens_what_is_longer(matrix: Tensor, at: float | str, times: float) -> None:
    most = times * float(matrix.norm(dim=1).quantile(0.5)) if at == "median" else float(at)
    expected = torch.stack([row * min(1.0, most / float(row.norm())) for row in matrix])
    torch.testing.assert_close(rows_of(Clip(at, times=times), matrix), expected)


@given(matrix=matrices(), size=st.integers(1, 4), number=st.integers(0, 5))
def test_bucketing_makes_means_of_disjoint_groups(matrix: Tensor, size: int, number: int) -> None:
    n = len(matrix)
    mixing = Bucketing(size).mix(Geometry.from_grams(matrix @ matrix.T), 0, number)
    members = [(mixing.owner == row).nonzero().flatten() for row in range(len(mixing.matrix))]
    assert sorted(i for group in members for i in group.tolist()) == list(range(n))
    assert [len(group) for group in members[:-1]] == [size] * (math.ceil(n / size) - 1)
    expected = torch.stack([matrix[group].mean(0) for group in members])
    torch.testing.assert_close(mixing.matrix @ matrix, expected)


def test_one_bucket_of_any_size_is_the_mean() -> None:
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(5)).double()
    torch.testing.assert_close(rows_of(Bucketing(10**20), matrix), matrix.mean(0)[None])


def test_buckets_are_drawn_anew_each_round_by_seed_and_id() -> None:
    geometry = Geometry.from_grams(torch.eye(12), [f"c{i}" for i in range(12)])
    turned = Geometry.from_grams(torch.eye(12), [f"c{i}" for i in reversed(range(12))])

    def groups(seed: int, number: int, of: Geometry = geometry) -> set[frozenset[object]]:
        owner = Bucketing(3, seed=seed).mix(of, 0, number).owner.tolist()
        return {
            frozenset(c for c, row in zip(of.clients, owner, strict=True) if row == each)
            for each in owner
        }

    assert groups(0, 1) == groups(0, 1)
    assert groups(0, 1) == groups(0, 1, turned)
    assert groups(0, 1) != groups(0, 2)
    assert groups(0, 1) != groups(1, 1)


def test_the_running_quantile_follows_the_lengths() -> None:
    rule = rules.get("mean", before="clip(at=quantile, quantile=0.5, rate=0.2)")
    matrix = torch.diag(torch.arange(1.0, 11.0)).double()
    assert rule.has_history
    (step,) = rule.preaggregators
    assert isinstance(step, Clip)
    length = 5.5
    for _ in range(3):
        answer = rule.aggregate(matrix)
        shortened = matrix * (length / matrix.norm(dim=1)).clamp(max=1)[:, None]
        torch.testing.assert_close(answer.update, shortened.mean(0))
        below = sum(value <= length for value in range(1, 11)) / 10
        length *= math.exp(-0.2 * (below - 0.5))
        assert step.length == pytest.approx(length)


# -------------------------------------------------------------------- before every rule


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", rules.available())
@given(matrix=matrices(least=8))
def test_the_rule_sees_the_mixed_rows(name: str, text: str, matrix: Tensor) -> None:
    clients = [f"c{i}" for i in range(len(matrix))]
    try:
        rule = rule_for(name, clients, before=text)
        rule.check_needs(rule.needs)
    except ParameterError:
        assert name in BY_NAME or rule.has_history
        return
    if len(matrix) // 2 < rule.clients_needed:
        return
    plain = rule_for(name, clients)
    # Measured as the rule does it: what a step makes equal, residuals tell apart by their rounding.
    geometry = measure(Updates.from_vectors(matrix, clients=clients))
    mixing = Mixing.of(torch.eye(len(matrix), dtype=torch.float64))
    for step in parse(text):
        later = step.mix(geometry, rule.attackers_of(len(geometry)), 0)
        geometry = geometry.mixed(later.matrix, later.names(geometry.clients))
        mixing = mixing.then(later)
    supplied = complete(rule, Updates.from_vectors(matrix, clients=clients))
    answer = rule.aggregate(supplied)
    assert [one.client for one in answer.clients] == clients
    # Rows that are mixed alike are equal, as they are to the rule.
    distinct, places = mixing.matrix.unique(dim=0, return_inverse=True)
    names, by_hand = mixing.names(clients), (distinct @ matrix)[places]
    weights = torch.tensor(list((answer.weights or {}).values()), dtype=torch.float64)
    agrees = torch.zeros_like(answer.update, dtype=torch.bool)
    for attempt in range(20):
        # Means that differ in one member lie equally far apart: a rule that chooses among them may
        # choose either, as rounding has it (of coordinates, in each anew), and so it does here.
        noise = torch.randn(by_hand.shape, generator=torch.Generator().manual_seed(attempt))
        rows = Updates.from_vectors(by_hand * (1 + 1e-14 * attempt * noise.double()), clients=names)
        rows = replace(rows, references=supplied.references, server_loss=supplied.server_loss)
        expected = plain.aggregate(rows)
        # Weiszfeld steps stop where weights settle, which is not where the last digit does.
        close = torch.isclose(answer.update, expected.update, rtol=1e-4, atol=1e-5)
        if expected.weights is None:
            agrees |= close
        else:
            of_rows = torch.tensor(list(expected.weights.values()), dtype=torch.float64)
            shares = mixing.shares.T @ of_rows
            agrees = close & torch.allclose(weights, shares, rtol=1e-4, atol=1e-5)
        if bool(agrees.all()):
            break
    chooses = rule.unweighted_means is Verdict.UNUSED
    assert bool(agrees.all()) or (chooses and has_ties(by_hand)), (answer, expected)
    believed = answer.weights is not None and bool(weights.any())
    assert not believed or float(weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize("text", ["nnm", "clip(at=1),arc", "bucketing(size=3)"])
@pytest.mark.parametrize(
    "name", [n for n in rules.available() if issubclass(find(n), GeometryRule) and n != "adaptive"]
)
def test_weights_from_inner_products_alone(name: str, text: str) -> None:
    matrix = torch.randn(12, 30, generator=torch.Generator().manual_seed(4)).double() + 0.5
    rule = rule_for(name, range(12), before=text)
    if rule.has_history and "bucketing" in text:
        return
    assert isinstance(rule, GeometryRule)
    supplied, names = complete(rule, Updates.from_vectors(matrix)), sorted(rule.needs)
    rows = torch.cat([matrix, *(supplied.references[each][VECTOR[0]][None] for each in names)])
    found = rule.weights_from_gram(rows @ rows.T, references=names)
    assert found.coefficients is not None
    answer = rule.aggregate(supplied)
    torch.testing.assert_close(found.weight.tolist(), list((answer.weights or {}).values()))
    torch.testing.assert_close(found.coefficients @ matrix, answer.update)


@given(matrix=matrices(least=6), shift=st.sampled_from([0.0, 1e5]))
def test_mixed_inner_products_are_exact_about_any_center(matrix: Tensor, shift: float) -> None:
    """Rows that share a large part are measured from a center; mixing must not lose it."""
    updates = Updates.from_vectors(matrix + shift)
    geometry = measure(updates.with_reference("anchor", matrix[0] + shift), ["anchor"])
    mix = torch.rand(4, len(matrix), dtype=torch.float64)
    mixed = geometry.mixed(mix, range(4))
    rows = torch.cat([mix @ (matrix + shift), matrix[:1] + shift])
    torch.testing.assert_close(mixed.grams("anchor")[0], rows @ rows.T, rtol=1e-9, atol=1e-6)


def test_state_dicts_with_buffers_and_counters_go_through() -> None:
    matrix = torch.randn(8, 36, generator=torch.Generator().manual_seed(2)).double()
    states = as_states(matrix)
    for number, state in enumerate(states):
        state["bn.running_mean"] = torch.full((2,), float(number)).double()
        state["bn.num_batches_tracked"] = torch.tensor(number)
    for buffers in ("median", "weights"):
        rule = rules.get("median", before="clip(at=0.5),nnm", buffers=buffers)
        update = rule.aggregate(states).update
        assert set(update) == set(states[0])
        expected = rules.get("median", before="clip(at=0.5),nnm").aggregate(matrix).update
        torch.testing.assert_close(as_vector({k: update[k] for k in SHAPES}), expected)
        assert 1 < float(update["bn.running_mean"][0]) < 6, "statistics are never shortened"


@given(
    n=st.integers(5, 12),
    columns=st.sampled_from([1, 7, 36, 500]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
def test_rows_that_are_mixed_alike_are_equal_to_the_bit(
    n: int, columns: int, dtype: torch.dtype, seed: int
) -> None:
    """Seen before: coordinate rules chose among them by the rounding of a product."""
    random = torch.Generator().manual_seed(seed)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for row, alike in enumerate(torch.randint(0, 3, (n,), generator=random).tolist()):
        matrix[row, alike : alike + 3] = 1 / 3
    given_ = torch.randn(n, columns, generator=random).to(dtype)
    rows = mixed(Updates.from_vectors(given_), Mixing.of(matrix))
    (block,) = rows.blocks(rows.layers, check=False, stacked=True)
    torch.testing.assert_close(block.values, matrix.to(dtype) @ given_)
    _, kinds = matrix.unique(dim=0, return_inverse=True)
    for kind in kinds.unique():
        same = block.values[kinds == kind]
        assert torch.equal(same, same[:1].expand_as(same))


# -------------------------------------------------------------------- verdicts


def test_a_group_without_weight_accuses_nobody() -> None:
    matrix = torch.ones(9, 5, dtype=torch.float64) + 0.01 * torch.randn(9, 5).double()
    matrix[0] *= -50
    verdicts = rules.get("foolsgold", before="bucketing(size=3)").aggregate(matrix).verdicts
    assert Verdict.SUSPECTED not in verdicts.values()
    verdicts = rules.get("median", before="bucketing(size=3)").aggregate(matrix).verdicts
    assert set(verdicts.values()) == {Verdict.TRUSTED}


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
@given(matrix=matrices(least=5))
def test_survival_is_the_share_of_coordinates_used(name: str, matrix: Tensor) -> None:
    rule, n = rules.get(name), len(matrix)
    answer = rule.aggregate(matrix)
    cut = (n - 1) // 2 if name == "median" else rule.withstands(n)
    used = [0] * n
    for column in matrix.T:
        for client in sorted(range(n), key=lambda i: float(column[i]))[cut : n - cut]:
            used[client] += 1
    assert list((answer.scores or {}).values()) == pytest.approx([u / 36 for u in used])


def test_the_median_says_whom_it_ignored() -> None:
    random = torch.Generator().manual_seed(1)
    matrix = torch.randn(10, 200_000, generator=random)
    matrix[:2] += 50
    answer = rules.get("median").aggregate(matrix)
    suspected = {c for c, verdict in answer.verdicts.items() if verdict is Verdict.SUSPECTED}
    assert suspected == {0, 1}
    assert "of the coordinates" in answer.clients[0].reason
    assert answer.weights is None


# -------------------------------------------------------------------- as text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("nnm", "nnm"),
        (" clip(at=2), nnm ", "clip(at=2.0),nnm"),
        ("clip(2)", "clip(at=2.0)"),
        ("clip('median')", "clip"),
        ("clip(quantile)", "clip(at=quantile)"),
        ("bucketing(3, seed=4),arc", "bucketing(size=3, seed=4),arc"),
        ("nnm(3),arc(attackers=0)", "nnm(attackers=3),arc(attackers=0)"),
        ("", ""),
    ],
)
def test_text_is_read_and_written_again(text: str, canonical: str) -> None:
    rule = rules.get("krum", before=text)
    assert rule.before == canonical
    assert rules.get("krum", before=rule.before).before == canonical
    assert rules.get("krum", before=list(parse(text))).before == canonical
    assert ("before" in repr(rule)) == bool(canonical)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ("mnn", "there are arc, bucketing, clip, nnm"),
        ("clip(at=0)", "above 0"),
        ("clip(at=none)", "a number, median or quantile"),
        ("clip(of=2)", "no parameter 'of'"),
        ("nnm(attackers=-1)", "at least 0"),
        ("clip(1, 2)", "cannot read"),
        ("clip(at=2,at=3)", "clip is given a parameter twice"),
        ("nnm,clip(2, at=3)", "clip is given a parameter twice"),
        ("clip(at=quantile, rate=1e300)", "at most 100"),
        ("clip(**{})", "cannot read"),
        ("nnm()()", "cannot read"),
        ("__import__('os').system('true')", "cannot read"),
        ("[c for c in ()]", "cannot read"),
        ("clip(at=().__class__)", "cannot read"),
        ("(" * 200, "cannot read"),
        ("nnm," * 1000, "cannot read"),
        ("bucketing(size=0)", "at least 1"),
        (3, "expected steps"),
        ([3], "is not a step"),
    ],
)
def test_nonsense_is_refused(given_: object, said: str) -> None:
    with pytest.raises(ParameterError, match=said.replace("(", r"\(")):
        rules.get("krum", before=given_)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ParameterError, match="knows clients by name"):
        rules.get("oracle", before="bucketing").aggregate(torch.eye(6))
    with pytest.raises(ParameterError, match="leave one of the two out"):
        rules.get("foolsgold", history=True, before="nnm")
    with pytest.raises(ParameterError, match="both remember"):
        rules.get("foolsgold", before="clip(at=quantile)").aggregate(torch.eye(6))


def test_too_few_groups_are_told_from_too_few_clients() -> None:
    rule = rules.get("krum", attackers=2, before="clip,bucketing(size=3)")
    rows = torch.eye(10)
    rows[4, 0] = math.nan
    said = r"7 rows; before=clip,bucketing\(size=3\) makes 3 of 9 valid clients \(1 rejected: 4"
    with pytest.raises(NotEnoughClientsError, match=said) as caught:
        rule.aggregate(Updates.from_vectors(rows).checked())
    assert set(caught.value.rejected) == {4}
    with pytest.raises(NotEnoughClientsError, match=r"makes 4 of 10 valid clients$"):
        rule.check_count(10)
    assert isinstance(rule, GeometryRule)
    with pytest.raises(NotEnoughClientsError, match="makes 4 of 10"):
        rule.weights_from_gram(torch.eye(10))
    with pytest.raises(ParameterError, match="ways"):
        rules.get("mda", attackers=4, before="bucketing").check_count(200)
    rules.get("mda", attackers=4, before="bucketing").check_count(20)
    with pytest.raises(ParameterError, match="ways"):
        rules.get("smea", attackers=4, before="nnm").check_count(60)


# -------------------------------------------------------------------- memory


def test_a_running_quantile_is_saved_and_restored(tmp_path: Path) -> None:
    matrix = torch.diag(torch.arange(1.0, 8.0)).double()
    rule = rules.get("geometric-median", before="clip(at=quantile)")
    rule.aggregate(matrix)
    rule.save(tmp_path / "h")
    again = rules.get("geometric-median", before="clip(at=quantile)")
    again.restore(tmp_path / "h")
    assert torch.equal(again.aggregate(3 * matrix).update, rule.aggregate(3 * matrix).update)
    with pytest.raises(InputError, match="of another rule"):
        rules.get("mean", before="nnm,clip(at=quantile)").restore(tmp_path / "h")
    with pytest.raises(InputError, match="keeps no history"):
        rules.get("mean", before="nnm").save(tmp_path / "i")


def test_a_round_of_zeros_does_not_fix_the_running_quantile(tmp_path: Path) -> None:
    """Seen before: a length of 0 for good, so that the model never moved again."""
    matrix = torch.diag(torch.arange(1.0, 8.0)).double()
    rule = rules.get("mean", before="clip(at=quantile)")
    assert not rule.aggregate(0 * matrix).update.any()
    rule.save(tmp_path / "h")
    again, fresh = (rules.get("mean", before="clip(at=quantile)") for _ in range(2))
    again.restore(tmp_path / "h")
    expected = fresh.aggregate(matrix).update
    assert expected.any()
    assert torch.equal(rule.aggregate(matrix).update, expected)
    assert torch.equal(again.aggregate(matrix).update, expected)


def test_a_round_that_fails_leaves_no_trace() -> None:
    rule = rules.get("krum", attackers=3, before="clip(at=quantile)")
    rule.aggregate(torch.eye(9).double())
    (step,) = rule.preaggregators
    assert isinstance(step, Clip)
    before = step.length
    with pytest.raises(NotEnoughClientsError):
        rule.aggregate(torch.full((9, 3), torch.nan))
    assert step.length == before
