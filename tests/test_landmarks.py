"""Rounds of many clients: landmarks instead of everybody with everybody."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedimmune.adaptive.rule
import fedimmune.rules.base
import fedimmune.rules.geometric_median
from fedimmune import Aggregation, Updates, Verdict, measure, rules
from fedimmune.landmarks import COUNT, LARGE, measure_landmarks
from fedimmune.rules.selection import landmark_rows
from tests.rounds import as_files, as_states, matrices

N = LARGE + 44
LAYERS = {"a": (20, 30), "b": (700,), "c": (1100,)}
COLUMNS = 600 + 700 + 1100


def many(kind: str = "none", share: float = 0.2, seed: int = 0) -> tuple[Updates, Tensor, int]:
    """A round of many clients, of whom the first few attack."""
    random = torch.Generator().manual_seed(seed)
    common = torch.randn(COLUMNS, generator=random)
    matrix = common + 2 * torch.randn(N, COLUMNS, generator=random)
    attackers = 0 if kind == "none" else int(share * N)
    if kind == "flip":
        matrix[:attackers] *= -1
    elif kind == "same":
        matrix[:attackers] = 0.1 * torch.randn(COLUMNS, generator=random) - common
    elif kind == "long":
        matrix[:attackers] *= 30
    elif kind == "immense":
        matrix[:attackers] = 1e30
    return Updates.from_vectors(matrix, layers=LAYERS), matrix, attackers


def everybody(name: str, updates: Updates, monkeypatch: pytest.MonkeyPatch) -> Aggregation:
    """Compare everybody with everybody, however many there are."""
    with monkeypatch.context() as patched:
        for module in (
            fedimmune.adaptive.rule,
            fedimmune.rules.base,
            fedimmune.rules.geometric_median,
        ):
            patched.setattr(module, "LARGE", 10 * N)
        return rules.get(name).aggregate(updates)


@given(matrix=matrices(least=8), k=st.integers(1, 8), seed=st.integers(0, 99))
def test_what_is_measured_is_what_everybody_compared_would_be(
    matrix: Tensor, k: int, seed: int
) -> None:
    updates = Updates.from_states(as_states(matrix)).with_anchor(as_states(matrix[:1])[0])
    random = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(matrix), generator=random)[:k].sort().values
    marks = measure_landmarks(updates, rows.tolist(), ["anchor"])
    grams = measure(updates, ["anchor"]).grams("anchor")
    n = len(matrix)
    close: Any = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(marks.squares, grams.diagonal(dim1=1, dim2=2)[:, :n], **close)
    torch.testing.assert_close(marks.products[..., :k], grams[:, :n][:, :, rows], **close)
    torch.testing.assert_close(marks.products[..., k], grams[:, :n, n], **close)
    torch.testing.assert_close(marks.references[:, 0], grams[:, n, n], **close)
    weights = torch.rand(n, generator=random, dtype=torch.float64)
    torch.testing.assert_close(marks.multiply(weights), grams[:, :n, :n] @ weights, **close)
    away = (matrix - weights @ matrix).square().sum(1)
    torch.testing.assert_close(marks.distances_to_sum(weights), away, **close)
    kept = torch.arange(1, n)
    some = marks.only(kept)
    torch.testing.assert_close(some.squares, marks.squares[:, 1:])
    assert [some.clients[row] for row in some.rows] == [
        marks.clients[row] for row in marks.rows if row > 0
    ]
    torch.testing.assert_close(
        some.multiply(weights[1:]), grams[:, 1:n, 1:n] @ weights[1:], **close
    )


@pytest.mark.parametrize("kind", ["none", "flip", "same", "long", "immense"])
def test_the_geometric_median_streams_to_the_same_weights(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates, _, attackers = many(kind)
    found = rules.get("geometric-median").aggregate(updates)
    exact = everybody("geometric-median", updates, monkeypatch)
    assert found.weights is not None
    assert exact.weights is not None
    assert found.weights == pytest.approx(exact.weights, abs=0.002 / N)
    torch.testing.assert_close(found.update, exact.update, rtol=0.01, atol=0.01)
    if kind == "immense":
        assert all(found.verdicts[row] is Verdict.SUSPECTED for row in range(attackers))


@pytest.mark.parametrize("kind", ["none", "flip", "same", "long", "immense"])
def test_adaptive_gives_nearly_the_same_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, _, attackers = many(kind)
    found = rules.get("adaptive").aggregate(updates)
    exact = everybody("adaptive", updates, monkeypatch)
    assert found.weights is not None
    assert exact.weights is not None
    assert found.skipped == exact.skipped == ""
    differ = sum(abs(found.weights[row] - exact.weights[row]) for row in range(N))
    assert differ < 0.05
    theirs = [sum(each[row] for row in range(attackers)) for each in (found.weights, exact.weights)]
    assert theirs[0] == pytest.approx(theirs[1], abs=0.02)
    relative = (found.update - exact.update).norm() / exact.update.norm()
    assert relative < 0.05


def test_with_the_servers_own_update_too(monkeypatch: pytest.MonkeyPatch) -> None:
    updates, matrix, attackers = many("flip")
    anchored = updates.with_anchor(
        {"a": matrix[-1, :600].view(20, 30), "b": matrix[-1, 600:1300], "c": matrix[-1, 1300:]}
    )
    rule = rules.get("adaptive", anchor=True)
    found = rule.aggregate(anchored)
    assert found.weights is not None
    assert sum(found.weights[row] for row in range(attackers)) < 0.02
    monkeypatch.setattr(fedimmune.adaptive.rule, "LARGE", 10 * N)
    exact = rules.get("adaptive", anchor=True).aggregate(anchored)
    assert exact.weights is not None
    assert sum(abs(found.weights[row] - exact.weights[row]) for row in range(N)) < 0.05


@pytest.mark.parametrize("name", ["adaptive", "geometric-median"])
def test_the_same_bits_again_in_other_blocks_and_another_order_but_for_rounding(name: str) -> None:
    updates, matrix, _ = many("flip")
    first = rules.get(name)(updates)
    assert torch.equal(rules.get(name)(updates), first)
    assert torch.equal(rules.get(name)(replace(updates, block_columns=512)), first)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    moved = Updates.from_vectors(matrix[order], layers=LAYERS, clients=order.tolist())
    torch.testing.assert_close(rules.get(name)(moved), first, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["adaptive", "geometric-median", "krum", "foolsgold", "median"])
def test_who_is_not_valid_is_named_among_many(name: str) -> None:
    updates, matrix, _ = many()
    matrix[7, 5] = torch.nan
    matrix[9, 1500] = torch.inf
    found = rules.get(name).aggregate(updates)
    assert set(found.rejected) == {7, 9}


@pytest.mark.parametrize("name", ["adaptive", "geometric-median"])
def test_a_common_part_does_not_cancel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, matrix, _ = many("flip")
    shifted = Updates.from_vectors(1e4 + 1e-2 * matrix, layers=LAYERS)
    found, exact = rules.get(name).aggregate(shifted), everybody(name, shifted, monkeypatch)
    torch.testing.assert_close(found.update, exact.update, rtol=1e-5, atol=1e-3)
    if name == "geometric-median":
        assert found.weights == pytest.approx(exact.weights, abs=0.01 / N)


def test_all_the_same() -> None:
    matrix = torch.ones(N, 40)
    for name in ("adaptive", "geometric-median"):
        torch.testing.assert_close(rules.get(name)(matrix), torch.ones(40))


@pytest.mark.parametrize("name", ["krum", "multi-krum", "foolsgold", "cosine-clustering", "dnc"])
def test_sums_over_layers_give_the_same_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, _, _ = many("flip")
    assert measure(updates, by_layer=False).about_center.shape == (1, N, N)
    found, exact = rules.get(name).aggregate(updates), everybody(name, updates, monkeypatch)
    assert found.weights == pytest.approx(exact.weights, abs=1e-9)


@given(matrix=matrices(), pairs=st.booleans())
def test_sums_over_layers_are_sums(matrix: Tensor, pairs: bool) -> None:
    for shift in (0, 1e7):
        updates = Updates.from_states(as_states((matrix + shift).float()))
        whole, merged = (measure(updates, pairs=pairs, by_layer=each) for each in (True, False))
        # Single precision rounds to a share of the lengths; farther out it is not used.
        squares = float(whole.norms().square().max())
        some = 0 if shift else 4 * torch.finfo(torch.float32).eps * squares
        near = partial(torch.testing.assert_close, rtol=1e-7, atol=1e-7 + some, equal_nan=True)
        near(merged.gram(), whole.gram())
        near(merged.squared_distances(), whole.squared_distances())
        torch.testing.assert_close(merged.norms(), whole.norms())


def test_landmarks_are_drawn_by_id_anew_in_every_round() -> None:
    updates, matrix, _ = many()
    rows = landmark_rows(updates)
    assert len(rows) == COUNT
    assert rows == sorted(set(rows))
    assert rows != landmark_rows(replace(updates, round=2))
    backwards = Updates.from_vectors(matrix.flip(0), clients=list(range(N))[::-1])
    assert {backwards.clients[row] for row in landmark_rows(backwards)} == {
        updates.clients[row] for row in rows
    }


def test_many_files(tmp_path: Path) -> None:
    """As from memory; and a file that changes between two reads is noticed."""
    _, matrix, _ = many("flip")
    states = [{"a": row[:600].view(20, 30).clone(), "b": row[600:].clone()} for row in matrix]
    files = as_files(states, tmp_path)
    from_files = Updates.from_files(files, are_updates=True)
    memory = Updates.from_states(states, clients=from_files.clients)
    for name in ("adaptive", "geometric-median", "median"):
        found, expected = (rules.get(name).aggregate(each) for each in (from_files, memory))
        assert found.verdicts == expected.verdicts
        torch.testing.assert_close(found.update, expected.update)
