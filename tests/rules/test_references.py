"""Each rule against its definition, written naively."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import rules
from tests.rounds import matrices

Vector = npt.NDArray[np.float64]


def close(found: Tensor, expected: Vector, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


@given(matrix=matrices(least=1))
def test_mean(matrix: Tensor) -> None:
    close(rules.get("mean")(matrix), sum(matrix.numpy()) / len(matrix))


@given(matrix=matrices(least=1, most=20))
def test_median(matrix: Tensor) -> None:
    close(rules.get("median")(matrix), np.array([median(column) for column in matrix.T.tolist()]))


@given(matrix=matrices(least=3, most=20), trim=st.sampled_from([0, 0.1, 0.2, 1 / 3, 0.4, 0.49]))
def test_trimmed_mean(matrix: Tensor, trim: float) -> None:
    cut = int(trim * len(matrix) + 1e-9)
    kept = np.sort(matrix.numpy(), axis=0)[cut : len(matrix) - cut]
    close(rules.get("trimmed-mean", trim=trim)(matrix), kept.mean(0))


def krum_scores(matrix: Vector, f: int) -> list[float]:
    n = len(matrix)
    scores = []
    for i in range(n):
        squared = sorted(float(((matrix[i] - matrix[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(squared[: n - f - 2]))
    return scores


@given(matrix=matrices(least=4), data=st.data())
def test_krum(matrix: Tensor, data: st.DataObject) -> None:
    n = len(matrix)
    f = data.draw(st.none() | st.integers(0, (n - 3) // 2))
    scores = krum_scores(matrix.numpy(), (n - 3) // 2 if f is None else f)
    answer = rules.get("krum", attackers=f).aggregate(matrix)
    assert answer.scores is not None
    assert [answer.scores[i] for i in range(n)] == pytest.approx(scores)
    assert torch.equal(answer.update, matrix[int(np.argmin(scores))])


@given(matrix=matrices(least=4), data=st.data())
def test_multi_krum(matrix: Tensor, data: st.DataObject) -> None:
    n = len(matrix)
    f = data.draw(st.integers(0, (n - 3) // 2))
    keep = data.draw(st.none() | st.integers(1, n))
    best = np.argsort(krum_scores(matrix.numpy(), f))[: keep or max(1, n // 2 - 2)]
    close(rules.get("multi-krum", attackers=f, keep=keep)(matrix), matrix.numpy()[best].mean(0))


@given(matrix=matrices(least=3))
def test_geometric_median_satisfies_the_first_order_condition(matrix: Tensor) -> None:
    found = rules.get("geometric-median")(matrix)
    away = matrix - found
    lengths = away.norm(dim=1)
    if float(lengths.min()) > 1e-4:  # not at one of the updates
        assert float((away / lengths[:, None]).sum(0).norm()) < 1e-6


def test_geometric_median_at_one_of_the_updates() -> None:
    matrix = torch.tensor([[0.0, 0], [0, 0], [0, 0], [5, 1], [-3, 8]], dtype=torch.float64)
    torch.testing.assert_close(rules.get("geometric-median")(matrix), matrix[0], rtol=0, atol=1e-6)


@given(matrix=matrices(least=3), seed=st.integers(0, 99))
def test_no_other_point_has_a_smaller_sum_of_distances(matrix: Tensor, seed: int) -> None:
    found = rules.get("geometric-median")(matrix)
    best = float((matrix - found).norm(dim=1).sum())
    directions = torch.randn(30, matrix.shape[1], generator=torch.Generator().manual_seed(seed))
    for direction in directions.double():
        assert float((matrix - found - 0.01 * direction).norm(dim=1).sum()) >= best * (1 - 1e-9)


def foolsgold_weights(matrix: Vector, kappa: float) -> list[float]:
    n = len(matrix)
    unit = [row / np.linalg.norm(row) for row in matrix]
    cs = [[float(unit[i] @ unit[j]) if i != j else 0.0 for j in range(n)] for i in range(n)]
    v = [max(row) for row in cs]
    for i in range(n):
        for j in range(n):
            if v[j] > v[i]:
                cs[i][j] *= v[i] / v[j]
    alpha = [min(1.0, max(0.0, 1 - max(row))) for row in cs]
    top = max(alpha)
    weights = []
    for unlike in alpha:
        a = min(unlike / top, 0.99)
        logit = -math.inf if a == 0 else kappa * (math.log(a / (1 - a)) + 0.5)
        weights.append(min(1.0, max(0.0, logit)))
    return [w / sum(weights) for w in weights]


@given(matrix=matrices(least=2), kappa=st.sampled_from([1, 0.5, 2.0]))
def test_foolsgold(matrix: Tensor, kappa: float) -> None:
    answer = rules.get("foolsgold", confidence=kappa).aggregate(matrix)
    expected = foolsgold_weights(matrix.numpy(), kappa)
    assert answer.weights is not None
    assert list(answer.weights.values()) == pytest.approx(expected, abs=1e-9)


def residual(matrix: Vector, lam: float, delta: float) -> tuple[Vector, list[float]]:
    """Fu et al., one coordinate after the other."""
    n, d = matrix.shape
    bound = lam * math.sqrt(2 / n)
    totals = [0.0] * n
    corrected = np.empty_like(matrix)
    for column in range(d):
        y = matrix[:, column].tolist()
        x = [sum(b < a for b in y) + (sum(b == a for b in y) - 1) / 2 for a in y]
        ordered = sorted(y)
        slope = median(
            median((ordered[j] - ordered[i]) / (j - i) for j in range(n) if j != i)
            for i in range(n)
        )
        intercept = median(y) - slope * (n - 1) / 2
        line = [intercept + slope * rank for rank in x]
        r = [a - b for a, b in zip(y, line, strict=True)]
        scale = 1.4826 * (1 + 5 / (n - 1)) * median(sorted(abs(a) for a in r)[1:])
        center = (n - 1) / 2
        spread = sum((rank - center) ** 2 for rank in range(n))
        confidences = []
        for rank, a in zip(x, r, strict=True):
            leverage = 1 / n + (rank - center) ** 2 / spread
            limit = bound * math.sqrt(1 - leverage) * scale
            confidences.append(1.0 if abs(a) <= limit else limit / abs(a))
        deviation = float(np.std(confidences, ddof=1))
        for client, confidence in enumerate(confidences):
            totals[client] += confidence * deviation
            good = confidence >= delta
            corrected[client, column] = y[client] if good else line[client]
    weights = [total / sum(totals) if sum(totals) > 0 else 1 / n for total in totals]
    return np.array(weights) @ corrected, weights


@given(matrix=matrices(least=3, columns=9), lam=st.sampled_from([2, 0.5]))
def test_residual(matrix: Tensor, lam: float) -> None:
    expected, weights = residual(matrix.numpy(), lam, 0.1)
    answer = rules.get("residual", bound=lam).aggregate(matrix)
    assert answer.weights is not None
    assert list(answer.weights.values()) == pytest.approx(weights, rel=1e-7)
    close(answer.update, expected, 1e-8)


@given(rows=st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=4, max_size=8))
def test_residual_with_ties(rows: list[list[int]]) -> None:
    matrix = np.array(rows, dtype=np.float64)
    answer = rules.get("residual").aggregate(matrix)
    assert answer.weights is not None
    turned = rules.get("residual").aggregate(matrix[::-1].copy())
    np.testing.assert_allclose(answer.update, turned.update, atol=1e-9)


def test_residual_moves_an_outlying_value_onto_the_line() -> None:
    matrix = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None].repeat(1, 3)
    matrix[8, 0] = 1e6
    assert float(rules.get("residual")(matrix)[0]) < 2


@given(matrix=matrices(least=4), data=st.data())
def test_oracle(matrix: Tensor, data: st.DataObject) -> None:
    n = len(matrix)
    benign = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    expected = matrix.numpy()[benign].mean(0)
    close(rules.get("oracle", benign=benign)(matrix), expected)
    attackers = [i for i in range(n) if i not in benign]
    close(rules.get("oracle", attackers=attackers)(matrix), expected)
