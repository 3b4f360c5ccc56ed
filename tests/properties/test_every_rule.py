"""The harness that every registered rule goes through by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, rules
from fedimmune.errors import NotEnoughClientsError
from fedimmune.results import Verdict
from fedimmune.rules import GeometryRule, WeightRule, find
from tests.rounds import (
    COLUMNS,
    SHAPES,
    VECTOR,
    as_files,
    as_states,
    as_vector,
    complete,
    in_blocks,
    matrices,
    rule_for,
    with_needs,
)

every_rule = pytest.mark.parametrize("name", rules.available())


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@every_rule
@given(matrix=matrices(), seed=st.integers(0, 1000))
def test_the_order_of_the_clients_is_of_no_influence(name: str, matrix: Tensor, seed: int) -> None:
    clients = [f"c{i}" for i in range(len(matrix))]
    order = np.random.default_rng(seed).permutation(len(matrix)).tolist()
    rule = rule_for(name, clients)
    straight = rule.aggregate(Updates.from_vectors(matrix, clients=clients))
    shuffled = rule.aggregate(
        Updates.from_vectors(matrix[order], clients=[clients[i] for i in order])
    )
    assert_near(shuffled.update, straight.update)
    if straight.weights is None:
        assert shuffled.weights is None
    else:
        assert shuffled.weights == pytest.approx(straight.weights, abs=1e-9)


@every_rule
@given(matrix=matrices(), seed=st.integers(0, 1000))
def test_translation_equivariant_where_declared(name: str, matrix: Tensor, seed: int) -> None:
    rule = rule_for(name, range(len(matrix)))
    shift = torch.from_numpy(np.random.default_rng(seed).standard_normal(COLUMNS)) * 3
    moved, expected = rule(matrix + shift), rule(matrix) + shift
    if rule.is_translation_equivariant:
        torch.testing.assert_close(moved, expected, rtol=1e-7, atol=1e-8)


@every_rule
@given(matrix=matrices(), factor=st.sampled_from([1e-6, 0.5, 2.0, 1e5]))
def test_scale_equivariant_where_declared(name: str, matrix: Tensor, factor: float) -> None:
    rule = rule_for(name, range(len(matrix)))
    if rule.is_scale_equivariant:
        assert_near(rule(matrix * factor) / factor, rule(matrix))


@pytest.mark.parametrize(
    "name", [n for n in rules.available() if issubclass(find(n), GeometryRule)]
)
@given(matrix=matrices())
def test_inner_products_are_enough(name: str, matrix: Tensor) -> None:
    clients = [f"c{i}" for i in range(len(matrix))]
    rule = rule_for(name, clients)
    assert isinstance(rule, GeometryRule)
    answer = rule.aggregate(Updates.from_vectors(matrix, clients=clients))
    names = sorted(rule.needs)
    states = [{VECTOR[0]: row} for row in matrix]
    given = with_needs(Updates.from_vectors(matrix, clients=clients), names, states)
    others = [given.references[each][VECTOR[0]][None] for each in names]
    rows = torch.cat([matrix, *others])
    found = rule.weights_from_gram((rows @ rows.T).numpy(), clients, references=names)
    weights = dict(zip(clients, found.weight.tolist(), strict=True))
    assert weights == pytest.approx(answer.weights, abs=1e-9)
    coefficients = found.weight if found.coefficients is None else found.coefficients
    assert_near(coefficients @ matrix, answer.update)


@every_rule
@given(matrix=matrices())
def test_weights_are_shares_and_make_the_update(name: str, matrix: Tensor) -> None:
    rule = rule_for(name, range(len(matrix)))
    answer = rule.aggregate(matrix)
    assert set(answer.verdicts) == set(range(len(matrix)))
    assert bool(torch.isfinite(answer.update).all())
    if answer.weights is not None:
        weights = torch.tensor(list(answer.weights.values()), dtype=torch.float64)
        assert float(weights.min()) >= 0
        if not bool(weights.any()):  # nobody is believed: the model stays as it is, and it is said
            assert not bool(answer.update.any())
            assert set(answer.verdicts.values()) <= {Verdict.SUSPECTED, Verdict.UNUSED}
            return
        assert float(weights.sum()) == pytest.approx(1)
        if rule.weights_make_result:
            assert_near(answer.update, weights @ matrix)
        if isinstance(rule, WeightRule) and name != "adaptive":
            found = rule.weigh(complete(rule, Updates.of(matrix)))
            assert found.weight.tolist() == pytest.approx(weights.tolist())
            weights = found.weight if found.coefficients is None else found.coefficients
            longer = (weights > found.weight) & ("anchor" not in rule.needs)
            assert not bool(longer.any()), "only to fit the server's own is an update made longer"
        if name == "adaptive":  # which shortens updates to the median length
            lengths = matrix.norm(dim=1)
            matrix = matrix * (lengths.quantile(0.5) / lengths).clamp(max=1)[:, None]
        if isinstance(rule, WeightRule):
            assert_near(answer.update, weights @ matrix)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept_and_input_untouched(name: str, dtype: torch.dtype) -> None:
    matrix = torch.from_numpy(np.random.default_rng(1).standard_normal((8, COLUMNS))).to(dtype)
    before = matrix.clone()
    rule = rule_for(name, range(8))
    vector = rule(matrix)
    assert vector.dtype == dtype
    assert torch.equal(matrix, before)
    states = as_states(matrix)
    state = rule_for(name, range(8), layers=SHAPES).aggregate(states).update
    assert {key: (t.dtype, tuple(t.shape)) for key, t in state.items()} == {
        key: (dtype, shape) for key, shape in SHAPES.items()
    }
    assert all(torch.equal(as_vector(s), row) for s, row in zip(states, before, strict=True))
    wide = rule(matrix.double())
    coarse = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5, torch.float64: 0}
    torch.testing.assert_close(vector.double(), wide, rtol=0, atol=coarse[dtype])


@every_rule
@given(matrix=matrices())
def test_array_tensor_list_states_and_files_agree(name: str, matrix: Tensor) -> None:
    n = len(matrix)
    rule = rule_for(name, range(n))
    expected = rule(matrix)
    assert isinstance(expected, Tensor)
    array = rule(matrix.numpy())
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float64
    assert np.array_equal(array, expected.numpy())
    of_tensors, of_arrays = rule(list(matrix)), rule(list(matrix.numpy()))
    assert isinstance(of_tensors, Tensor)
    assert isinstance(of_arrays, np.ndarray)
    of_lists = rule(matrix.tolist())
    assert isinstance(of_lists, np.ndarray)
    assert_near(of_tensors, expected)
    for vector in (torch.from_numpy(of_arrays), torch.from_numpy(of_lists)):
        assert torch.equal(vector, of_tensors)
    states = as_states(matrix)
    by_layer = rule_for(name, range(n), layers=SHAPES)
    from_states = by_layer.aggregate(states).update
    assert_near(as_vector(from_states), by_layer(Updates.from_vectors(matrix, layers=SHAPES)))
    if not rule.looks_at_layers:  # else another division is another round
        assert_near(as_vector(from_states), expected)
    with tempfile.TemporaryDirectory() as folder:
        paths = as_files(states, Path(folder))
        in_files = rule_for(name, [path.stem for path in paths], layers=SHAPES)
        answer = in_files.aggregate(Updates.from_files(paths, are_updates=True))
        assert all(torch.equal(answer.update[key], from_states[key]) for key in SHAPES)


@every_rule
@given(matrix=matrices())
def test_models_and_a_global_model_are_differences(name: str, matrix: Tensor) -> None:
    states = as_states(matrix)
    base = {key: torch.full(shape, 2.0, dtype=torch.float64) for key, shape in SHAPES.items()}
    models = [{key: base[key] + state[key] for key in SHAPES} for state in states]
    rule = rule_for(name, range(len(matrix)), layers=SHAPES)
    expected = rule.aggregate(states)
    answer = rule.aggregate(Updates.from_models(models, base))
    for key in SHAPES:
        torch.testing.assert_close(answer.update[key], expected.update[key], rtol=1e-7, atol=1e-8)
    moved = answer.apply(base)
    assert all(torch.equal(moved[key], base[key] + answer.update[key]) for key in SHAPES)


@every_rule
@pytest.mark.parametrize("source", ["matrix", "states"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_block_size_is_of_no_influence_on_any_bit(
    name: str, source: str, dtype: torch.dtype
) -> None:
    matrix = torch.from_numpy(np.random.default_rng(2).standard_normal((7, 5001))).to(dtype)
    updates = Updates.of(matrix if source == "matrix" else list(matrix))
    rule = rule_for(name, range(7))
    whole = rule.aggregate(updates)
    for columns in (1, 512, 1000, 2048):
        parts = rule.aggregate(in_blocks(updates, columns))
        assert torch.equal(parts.update, whole.update)
        assert parts.weights == whole.weights


@every_rule
def test_the_same_round_gives_the_same_bits(name: str) -> None:
    matrix = torch.from_numpy(np.random.default_rng(3).standard_normal((9, 70_000))).float()
    first = rule_for(name, range(9)).aggregate(matrix)
    again = rule_for(name, range(9)).aggregate(matrix.clone())
    assert torch.equal(first.update, again.update)
    assert first.weights == again.weights


@every_rule
@given(matrix=matrices(least=7), data=st.data())
def test_bad_clients_are_rejected_and_change_nothing(
    name: str, matrix: Tensor, data: st.DataObject
) -> None:
    n = len(matrix)
    needed = max(3, rule_for(name, range(n)).clients_needed)
    bad = data.draw(st.sets(st.integers(0, n - 2), min_size=1, max_size=n - needed))
    states = as_states(matrix)
    for client in bad:
        _spoil(states[client], data.draw(st.sampled_from(["nan", "inf", "shape", "layer", "none"])))
    clients = [f"c{i}" for i in range(n)]
    good = [i for i in range(n) if i not in bad]
    rule = rule_for(name, clients, layers=SHAPES)
    # The global model says what is right: without it the majority would, and that may be bad here.
    base = {key: torch.zeros(shape, dtype=torch.float64) for key, shape in SHAPES.items()}
    models = dict(zip(clients, states, strict=True))
    answer = rule.aggregate(Updates.from_models(models, base))
    valid = {clients[i]: as_states(matrix)[i] for i in good}
    expected = rule.aggregate(Updates.from_models(valid, base))
    assert set(answer.rejected) == {clients[i] for i in bad}
    assert all(answer.rejected.values())
    assert answer.weights == expected.weights
    assert all(torch.equal(answer.update[key], expected.update[key]) for key in SHAPES)


def _spoil(state: dict[str, Tensor], how: str) -> None:
    if how == "nan":
        state["fc.weight"][1, 2] = torch.nan
    elif how == "inf":
        state["conv.bias"][0] = -torch.inf
    elif how == "shape":
        state["conv.bias"] = torch.zeros(1, dtype=torch.float64)
    elif how == "layer":
        del state["scale"]
    else:
        state.clear()


@every_rule
@given(matrix=matrices(least=7), data=st.data())
def test_bad_rows_of_a_matrix_too(name: str, matrix: Tensor, data: st.DataObject) -> None:
    n = len(matrix)
    needed = max(3, rule_for(name, range(n)).clients_needed)
    bad = data.draw(st.sets(st.integers(0, n - 2), min_size=1, max_size=n - needed))
    spoiled = matrix.clone()
    for client in bad:
        column = data.draw(st.integers(0, COLUMNS - 1))
        spoiled[client, column] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    good = [i for i in range(n) if i not in bad]
    rule = rule_for(name, range(n))
    answer = rule.aggregate(spoiled)
    expected = rule.aggregate(Updates.from_vectors(matrix[good], clients=good))
    assert set(answer.rejected) == bad
    assert torch.equal(answer.update, expected.update)


@every_rule
def test_too_few_clients_are_named(name: str) -> None:
    rule = rule_for(name, ["x"], **({"attackers": []} if name == "oracle" else {}))
    needed = rule.clients_needed
    with pytest.raises(NotEnoughClientsError) as caught:
        rule.aggregate(torch.full((needed + 2, 3), torch.nan))
    assert str(caught.value).startswith(f"{name} needs at least {needed} valid client")
    assert "there were 0" in str(caught.value)
    assert rule(torch.ones(needed, 3)) is not None


@every_rule
def test_it_describes_itself(name: str) -> None:
    rule = find(name)
    assert rule.summary
    assert rule.paper
    assert set(rule.symbols) <= set(rule.parameters())
    assert name == rule.name


@every_rule
@pytest.mark.parametrize("n", [3, 4, 5])
def test_defaults_work_from_three_clients_on(name: str, n: int) -> None:
    matrix = torch.from_numpy(np.random.default_rng(n).standard_normal((n, 6)))
    assert bool(torch.isfinite(rule_for(name, range(n))(matrix)).all())


@every_rule
def test_identical_clients_give_their_update(name: str) -> None:
    row, rule = torch.linspace(-1, 1, 9, dtype=torch.float64), rule_for(name, range(6))
    found = rule(row.repeat(6, 1))
    if rule.keeps_common_update:
        torch.testing.assert_close(found, row)
    assert float(found.norm()) <= float(row.norm()) * (1 + 1e-9)


@every_rule
def test_zero_updates_give_zero(name: str) -> None:
    assert torch.equal(rule_for(name, range(6))(torch.zeros(6, 4)), torch.zeros(4))


@every_rule
def test_huge_finite_values_are_no_infinity(name: str) -> None:
    matrix = torch.from_numpy(np.random.default_rng(5).standard_normal((9, 8))).float() * 1e38
    answer = rule_for(name, range(9)).aggregate(matrix)
    assert not answer.rejected
    assert bool(torch.isfinite(answer.update).all())
