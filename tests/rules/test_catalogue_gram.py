"""Rules of the catalogue against their definitions, on whole vectors, without a Gram matrix."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Aggregation, Updates, rules
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.results import Verdict
from fedimmune.rules import GeometryRule
from tests.rounds import SHAPES, as_states, as_vector, matrices

Vector = npt.NDArray[np.float64]


def close(found: Any, expected: Vector, tolerance: float = 1e-8) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance, atol=tolerance)


def aggregate(name: str, matrix: Tensor, anchor: Tensor | None = None, **options: Any) -> Any:
    updates = Updates.from_vectors(matrix)
    if anchor is not None:
        updates = updates.with_anchor(anchor)
    return rules.get(name, **options).aggregate(updates)


def distance(one: Vector, other: Vector) -> float:
    return float(np.sqrt(((one - other) ** 2).sum()))


def drawn_attackers(data: st.DataObject, n: int, per: int = 2, besides: int = 1) -> int | None:
    return data.draw(st.none() | st.integers(0, (n - besides) // per), "f")


# -------------------------------------------------------------------- subsets


@given(matrix=matrices(least=4, most=8), data=st.data())
def test_mda_has_the_smallest_diameter(matrix: Tensor, data: st.DataObject) -> None:
    x, n = matrix.numpy(), len(matrix)
    f = drawn_attackers(data, n)
    size = n - ((n - 1) // 2 if f is None else f)

    def diameter(members: tuple[int, ...]) -> tuple[float, float]:
        apart = [distance(x[i], x[j]) for i, j in combinations(members, 2)]
        return round(max(apart, default=0.0), 9), sum(each**2 for each in apart)

    best = min(combinations(range(n), size), key=diameter)
    close(aggregate("mda", matrix, attackers=f).update, x[list(best)].mean(0))


@given(matrix=matrices(least=4, most=8), data=st.data())
def test_smea_has_the_smallest_largest_eigenvalue(matrix: Tensor, data: st.DataObject) -> None:
    x, n = matrix.numpy(), len(matrix)
    f = drawn_attackers(data, n)
    size = n - ((n - 1) // 2 if f is None else f)

    def largest(members: tuple[int, ...]) -> float:
        covariance = np.cov(x[list(members)].T, bias=True)
        return float(np.linalg.eigvalsh(covariance)[-1])

    best = min(combinations(range(n), size), key=largest)
    close(aggregate("smea", matrix, attackers=f).update, x[list(best)].mean(0))


@pytest.mark.parametrize("name", ["mda", "smea"])
def test_too_many_subsets_are_refused_before_anything_is_read(name: str) -> None:
    read: list[int] = []
    updates = Updates.from_vectors(torch.randn(30, 5))
    object.__setattr__(updates, "on_read", read.append)
    with pytest.raises(ParameterError, match=r"145,422,675 ways.*give fewer attackers"):
        rules.get(name).aggregate(updates)
    assert not read
    assert rules.get(name, attackers=2).aggregate(updates).update is not None
    assert rules.get(name, before="bucketing(size=3)").aggregate(updates).update is not None
    rule = rules.get(name)
    assert isinstance(rule, GeometryRule)
    with pytest.raises(ParameterError, match="ways"):
        rule.weights_from_gram(torch.eye(30))


# -------------------------------------------------------------------- filters


def caf(x: Vector, f: int) -> Vector:
    n = len(x)
    c, least = np.ones(n), np.inf
    best: Vector = x.mean(0)
    while c.sum() > n - 2 * f:
        mean = (c[:, None] * x).sum(0) / c.sum()
        covariance = sum(c[i] * np.outer(x[i] - mean, x[i] - mean) for i in range(n)) / c.sum()
        values, vectors = np.linalg.eigh(covariance)
        if values[-1] < least:
            least, best = values[-1], mean
        tau = np.array([float((x[i] - mean) @ vectors[:, -1]) ** 2 for i in range(n)])
        c = c * (1 - tau / max(t for t, one in zip(tau, c, strict=True) if one > 0)).clip(0)
    return best


@given(matrix=matrices(least=4), data=st.data())
def test_caf(matrix: Tensor, data: st.DataObject) -> None:
    f = drawn_attackers(data, len(matrix))
    expected = caf(matrix.numpy(), (len(matrix) - 1) // 2 if f is None else f)
    close(aggregate("caf", matrix, attackers=f).update, expected, 1e-6)


@pytest.mark.parametrize("length", [1e4, 1e30])
def test_caf_ends_although_somebody_without_weight_is_far_off(length: float) -> None:
    """With the largest τ of all clients the others' weights would hardly shrink in a step."""
    matrix = torch.randn(7, 20, generator=torch.Generator().manual_seed(1)).double()
    matrix[0] *= length
    answer = aggregate("caf", matrix, attackers=2)
    assert answer.weights[0] == 0
    assert float(answer.update.norm()) < 5


def dnc(x: Vector, removed: int) -> set[int]:
    centered = x - x.mean(0)
    direction = np.linalg.svd(centered, full_matrices=False)[2][0]
    scores = [float(row @ direction) ** 2 for row in centered]
    return set(np.argsort(scores)[: len(x) - removed].tolist())


@given(matrix=matrices(least=4), c=st.sampled_from([0.5, 1, 1.5]), data=st.data())
def test_dnc_on_all_coordinates(matrix: Tensor, c: float, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (len(matrix) - 1) // 2))
    answer = aggregate("dnc", matrix, attackers=f, filter=c)
    kept = dnc(matrix.numpy(), int(c * f))
    close(answer.update, matrix.numpy()[sorted(kept)].mean(0))
    assert {client for client, weight in answer.weights.items() if weight > 0} == kept
    assert Verdict.SUSPECTED not in answer.verdicts.values()


@given(matrix=matrices(least=5))
def test_dnc_with_every_coordinate_sampled_is_dnc(matrix: Tensor) -> None:
    exact, sampled = aggregate("dnc", matrix), aggregate("dnc", matrix, sample=999, iterations=3)
    close(sampled.update, exact.update.numpy())
    assert list(sampled.scores.values()) == pytest.approx(list(exact.scores.values()), rel=1e-6)


def test_dnc_looks_at_the_sampled_coordinates_alone() -> None:
    matrix = torch.randn(9, 36, generator=torch.Generator().manual_seed(3)).double()
    # Whatever is drawn: that many coordinates, other ones for another seed or round.
    rule = rules.get("dnc", sample=7, iterations=4)
    drawn = rule._drawn(Updates.from_vectors(matrix), 7)  # type: ignore[attr-defined]
    assert len(drawn) == 4
    centered = matrix - matrix.mean(0)
    for values in drawn:
        assert values.shape == (9, 7)
        at = [
            [torch.allclose(column, each) for each in centered.T].index(True) for column in values.T
        ]
        assert len(set(at)) == 7
    kept = set.intersection(*(dnc(values.numpy(), 4) for values in drawn))
    answer = rule.aggregate(matrix)
    weights = answer.weights or {}
    assert {client for client, weight in weights.items() if weight > 0} == kept
    split = Updates.from_states(as_states(matrix))
    assert rules.get("dnc", sample=7, iterations=4).aggregate(split).weights == weights
    with pytest.raises(ParameterError, match="more than inner products"):
        rule.weights_from_gram(matrix @ matrix.T)  # type: ignore[attr-defined]


def test_dnc_that_leaves_everybody_out_keeps_the_model() -> None:
    # One coordinate a draw: sooner or later everybody is the farthest out in one of them.
    matrix = torch.eye(5).double() * 9 + torch.randn(5, 5).double() * 1e-3
    answer = aggregate("dnc", matrix, attackers=2, sample=1, iterations=200)
    assert torch.equal(answer.update, torch.zeros(5).double())
    assert set(answer.weights.values()) == {0.0}
    assert all("the model stays as it is" in each.reason for each in answer.clients)


def test_a_second_attacker_hides_from_dnc_behind_the_first() -> None:
    """Why it says that it withstands one."""
    matrix = torch.randn(10, 20, generator=torch.Generator().manual_seed(1)).double()
    matrix[0], matrix[1] = 0, 0
    matrix[0, 0], matrix[1, 1] = 1e12, 1e5
    weights = aggregate("dnc", matrix, attackers=2).weights
    assert weights[0] == 0
    assert weights[1] > 0
    assert rules.get("dnc").withstands(10) == 1
    assert rules.get("dnc", attackers=0).withstands(10) == 0
    assert rules.get("dnc", sample=5).withstands(10) == 0


# -------------------------------------------------------------------- around an anchor


@given(matrix=matrices(least=4), data=st.data())
def test_monna_is_the_mean_of_the_nearest_to_the_anchor(
    matrix: Tensor, data: st.DataObject
) -> None:
    x, n = matrix.numpy(), len(matrix)
    f = drawn_attackers(data, n)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    anchor = np.asarray(random.standard_normal(x.shape[1]))
    order = sorted(range(n), key=lambda i: distance(x[i], anchor))
    kept = order[: n - ((n - 1) // 2 if f is None else f)]
    answer = aggregate("monna", matrix, torch.from_numpy(anchor), attackers=f)
    close(answer.update, x[kept].mean(0))
    assert list(answer.scores.values()) == pytest.approx([distance(row, anchor) for row in x])


@given(matrix=matrices(least=2), seed=st.integers(0, 99))
def test_fltrust(matrix: Tensor, seed: int) -> None:
    x, anchor = matrix.numpy(), np.random.default_rng(seed).standard_normal(matrix.shape[1]) + 0.3
    own = float(np.linalg.norm(anchor))
    trust = [max(0.0, float(row @ anchor / (np.linalg.norm(row) * own))) for row in x]
    answer = aggregate("fltrust", matrix, torch.from_numpy(anchor))
    assert list(answer.scores.values()) == pytest.approx(trust)
    if sum(trust) == 0:
        assert not answer.update.any()
        return
    scaled = [t * own / np.linalg.norm(row) * row for t, row in zip(trust, x, strict=True)]
    close(answer.update, sum(scaled) / sum(trust))
    assert float(answer.update.norm()) <= own * (1 + 1e-9)
    for client, one in zip(answer.clients, trust, strict=True):
        assert (client.verdict is Verdict.SUSPECTED) == (one == 0)


def test_fltrust_without_trust_keeps_the_model_and_says_so() -> None:
    matrix = -torch.ones(4, 5) + 0.1 * torch.randn(4, 5)
    answer = aggregate("fltrust", matrix, torch.ones(5))
    assert torch.equal(answer.update, torch.zeros(5))
    assert set(answer.weights.values()) == {0.0}
    assert {one.verdict for one in answer.clients} == {Verdict.SUSPECTED}
    assert "the model stays as it is" in answer.clients[0].reason


def test_buffers_follow_the_shares_and_are_not_shortened() -> None:
    states = as_states(torch.ones(4, 36).double() * 100)
    for number, state in enumerate(states):
        state["bn.running_mean"] = torch.full((2,), float(number)).double()
    answer = rules.get("norm-bound", bound=1, buffers="weights").aggregate(states)
    assert answer.update["bn.running_mean"].tolist() == pytest.approx([1.5, 1.5])
    assert float(as_vector({k: answer.update[k] for k in SHAPES}).norm()) == pytest.approx(1)


# -------------------------------------------------------------------- clipping


@given(matrix=matrices(least=1), bound=st.sampled_from([0.5, 3.0, "median"]), times=st.just(1.5))
def test_norm_bound(matrix: Tensor, bound: float | str, times: float) -> None:
    x = matrix.numpy()
    lengths = [float(np.linalg.norm(row)) for row in x]
    most = times * median(lengths) if isinstance(bound, str) else bound
    expected = sum(row * min(1, most / length) for row, length in zip(x, lengths, strict=True))
    answer = aggregate("norm-bound", matrix, bound=bound, times=times)
    close(answer.update, expected / len(x))
    assert set(answer.verdicts.values()) == {Verdict.TRUSTED}


def test_weak_privacy_is_noise_on_the_mean_drawn_anew_each_round() -> None:
    matrix = torch.randn(10, 20_000, generator=torch.Generator().manual_seed(1))
    updates = Updates.from_vectors(matrix)
    later = Updates.from_vectors(matrix)
    object.__setattr__(later, "round", 1)
    rule, plain = rules.get("norm-bound", noise=0.25), rules.get("norm-bound")
    first = rule.aggregate(updates).update
    noise = first - plain.aggregate(updates).update
    assert float(noise.std()) == pytest.approx(0.25, rel=0.03)
    assert abs(float(noise.mean())) < 0.01
    assert torch.equal(rule.aggregate(updates).update, first)
    assert not torch.equal(rule.aggregate(later).update, first)
    other = rules.get("norm-bound", noise=0.25, seed=1).aggregate(updates).update
    assert not torch.equal(other, first)
    split = [{"a": row[:100], "b": row[100:]} for row in matrix]
    parts = rule.aggregate(split).update
    assert float((parts["b"] - plain.aggregate(split).update["b"]).std()) == pytest.approx(
        0.25, 0.03
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_noise_reaches_every_value(dtype: torch.dtype, form: torch.memory_format) -> None:
    # More values than are drawn at a time, in whatever order they lie in memory.
    layers = {
        "w": torch.ones(64, 16, 9, 9).to(dtype, memory_format=form),
        "b": torch.ones(5).to(dtype),
    }
    noisy = rules.get("norm-bound", bound=1e6, noise=0.5).aggregate([layers] * 3).update
    for name, layer in layers.items():
        noise = noisy[name].double() - layer.double()
        assert noise.count_nonzero() > 0.99 * noise.numel()
    assert float((noisy["w"].double() - 1).std()) == pytest.approx(0.5, rel=0.02)
    assert len(noisy["w"].unique()) > 1000, "no draw is used twice"
    huge = rules.get("norm-bound", bound=1e300, noise=1e100).aggregate(torch.ones(3, 9).double())
    assert bool(torch.isfinite(huge.update).all())


def clipped(x: Vector, v: Vector, tau: float | str, times: float, iterations: int) -> Vector:
    for _ in range(iterations):
        lengths = [distance(row, v) for row in x]
        limit = times * median(lengths) if isinstance(tau, str) else tau
        moves = [(row - v) * min(1, limit / d) for row, d in zip(x, lengths, strict=True)]
        v = v + sum(moves) / len(x)
    return v


@given(
    matrix=matrices(least=3),
    tau=st.sampled_from([1.0, 100.0, "median"]),
    times=st.sampled_from([1.0, 0.5]),
    iterations=st.integers(1, 4),
    layered=st.booleans(),
)
def test_centered_clipping_over_rounds(
    matrix: Tensor, tau: float | str, times: float, iterations: int, layered: bool
) -> None:
    rule = rules.get("centered-clipping", tau=tau, times=times, iterations=iterations)
    v = np.zeros(matrix.shape[1])
    for number in range(4):
        rows = matrix + 0.1 * number * matrix.roll(1, 0)
        v = clipped(rows.numpy(), v, tau, times, iterations)
        found = rule.aggregate(as_states(rows) if layered else rows).update
        close(as_vector(found) if layered else found, v)


@pytest.mark.parametrize("kind", ["tensor", "arrays", "states", "layers"])
def test_the_last_result_is_saved_and_restored(tmp_path: Path, kind: str) -> None:
    matrix = torch.randn(5, 36, generator=torch.Generator().manual_seed(6)).double()
    states = as_states(matrix)
    for state in states:
        state["bn.num_batches_tracked"] = torch.tensor(3)
    given_: Any = {
        "tensor": matrix,
        "arrays": [[row[:10].numpy(), row[10:].numpy()] for row in matrix],
        "states": states,
        "layers": Updates.from_vectors(matrix, layers=SHAPES),
    }[kind]
    rule = rules.get("centered-clipping", tau=1)
    rule.aggregate(given_)
    rule.save(tmp_path / "h")
    again = rules.get("centered-clipping", tau=1)
    again.restore(tmp_path / "h")
    first, second = rule.aggregate(given_), again.aggregate(given_)
    assert str(first.update) == str(second.update)
    assert str(rules.get("centered-clipping", tau=1).aggregate(given_).update) != str(first.update)
    with pytest.raises(InputError, match="the memory of earlier rounds"):
        again.aggregate(torch.ones(5, 7))


def test_a_round_that_fails_moves_nothing() -> None:
    rule = rules.get("centered-clipping")
    rule.aggregate(torch.eye(5))
    before = dict(rule.memory)  # type: ignore[attr-defined]
    with pytest.raises(NotEnoughClientsError):
        rule.aggregate(torch.full((5, 5), torch.nan))
    assert rule.memory == before  # type: ignore[attr-defined]


def test_what_centered_clipping_remembers_is_its_own(tmp_path: Path) -> None:
    """It is written over every round: nothing that was given away may be a part of it."""
    rows = torch.randn(5, 2, 40, generator=torch.Generator().manual_seed(2)).transpose(0, 1)
    rule, twin = rules.get("centered-clipping"), rules.get("centered-clipping")
    first = rule.aggregate(rows[0])
    kept, (known, _) = first.update.clone(), rule.remembered()  # type: ignore[attr-defined]
    given_ = {name: values.clone() for name, values in known.items()}
    twin.recall(given_, {})  # type: ignore[attr-defined]
    second = rule.aggregate(rows[1]).update
    assert torch.equal(twin.aggregate(rows[1]).update, second)
    for lasting in (first.update, known["update"], given_["update"]):
        assert torch.equal(lasting, kept)
    second.zero_()
    rule.save(tmp_path / "memory")
    twin.save(tmp_path / "same")
    assert (tmp_path / "memory").read_bytes() == (tmp_path / "same").read_bytes()


def test_buckets_may_come_before_centered_clipping() -> None:
    """It remembers no client, only its own last result; the authors use both together."""
    rule = rules.get("centered-clipping", before="bucketing")
    for _ in range(2):
        assert rule.aggregate(torch.eye(6)).update is not None


# -------------------------------------------------------------------- coordinates


def near_median(column: list[float], keep: int) -> tuple[float, set[int]]:
    middle = median(column)
    order = sorted(range(len(column)), key=lambda i: (abs(column[i] - middle), column[i]))
    return sum(column[i] for i in order[:keep]) / keep, set(order[:keep])


@given(matrix=matrices(least=3), data=st.data())
def test_meamed(matrix: Tensor, data: st.DataObject) -> None:
    n = len(matrix)
    f = drawn_attackers(data, n)
    found = [near_median(c, n - ((n - 1) // 2 if f is None else f)) for c in matrix.T.tolist()]
    answer = aggregate("meamed", matrix, attackers=f)
    close(answer.update, np.array([mean for mean, _ in found]))
    used = [sum(i in used for _, used in found) / len(found) for i in range(n)]
    assert list(answer.scores.values()) == pytest.approx(used)


@given(rows=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=3, max_size=9))
def test_meamed_with_ties_does_not_depend_on_the_order(rows: list[list[int]]) -> None:
    matrix = torch.tensor(rows, dtype=torch.float64)
    expected = [near_median(c, len(rows) - (len(rows) - 1) // 2)[0] for c in matrix.T.tolist()]
    close(aggregate("meamed", matrix).update, np.array(expected))
    close(aggregate("meamed", matrix.flip(0)).update, np.array(expected))


def krum_winner(x: Vector, left: list[int], f: int) -> int:
    def score(i: int) -> tuple[float, float]:
        squared = sorted(distance(x[i], x[j]) ** 2 for j in left if j != i)
        nearest = sum(squared[: max(1, len(left) - f - 2)])
        return round(nearest, 9), sum(squared)

    return min(left, key=score)


def bulyan(x: Vector, f: int) -> tuple[Vector, list[float]]:
    n = len(x)
    left, chosen = list(range(n)), list[int]()
    while len(chosen) < n - 2 * f:
        chosen.append(krum_winner(x, left, f))
        left.remove(chosen[-1])
    result, used = [], [0] * n
    for column in x.T.tolist():
        mean, kept = near_median([column[i] for i in chosen], n - 4 * f)
        result.append(mean)
        for place in kept:
            used[chosen[place]] += 1
    return np.array(result), [one / x.shape[1] for one in used]


@given(matrix=matrices(least=3, most=15), data=st.data())
def test_bulyan(matrix: Tensor, data: st.DataObject) -> None:
    n = len(matrix)
    f = drawn_attackers(data, n, per=4, besides=3)
    expected, used = bulyan(matrix.numpy(), (n - 3) // 4 if f is None else f)
    answer = aggregate("bulyan", matrix, attackers=f)
    close(answer.update, expected)
    assert list(answer.scores.values()) == pytest.approx(used)
    unused = {i for i, share in enumerate(used) if share == 0}
    assert {c for c, verdict in answer.verdicts.items() if verdict is Verdict.UNUSED} == unused


def test_bulyan_needs_four_f_and_three() -> None:
    with pytest.raises(NotEnoughClientsError, match="bulyan needs at least 11"):
        aggregate("bulyan", torch.eye(10), attackers=2)
    assert rules.get("bulyan").withstands(11) == 2


# -------------------------------------------------------------------- layers


@pytest.mark.parametrize("base", ["krum", "bulyan"])
@given(matrix=matrices(least=7, most=11), data=st.data())
def test_gas_over_layers(base: Any, matrix: Tensor, data: st.DataObject) -> None:
    n = len(matrix)
    f = drawn_attackers(data, n, per=2 if base == "krum" else 4, besides=3)
    told = (n - 3) // (2 if base == "krum" else 4) if f is None else f
    scores, start = [0.0] * n, 0
    for shape in SHAPES.values():
        part = matrix.numpy()[:, start : start + int(np.prod(shape))]
        start += part.shape[1]
        result = part[krum_winner(part, list(range(n)), told)]
        if base == "bulyan":
            result = bulyan(part, told)[0]
        scores = [s + distance(row, result) for s, row in zip(scores, part, strict=True)]
    kept = sorted(range(n), key=scores.__getitem__)[: n - told]
    answer: Aggregation = rules.get("gas", base=base, attackers=f).aggregate(as_states(matrix))
    close(as_vector(answer.update), matrix.numpy()[kept].mean(0))
    assert list((answer.scores or {}).values()) == pytest.approx(scores, rel=1e-6)


def test_gas_over_bulyan_is_the_same_in_blocks_and_behind_a_step() -> None:
    matrix = torch.randn(8, 3000, generator=torch.Generator().manual_seed(9))
    updates = Updates.from_vectors(matrix, layers={"a": (2000,), "b": (1000,)})
    small = Updates.from_vectors(matrix, layers={"a": (2000,), "b": (1000,)})
    object.__setattr__(small, "block_columns", 512)
    rule = rules.get("gas", base="bulyan")
    assert rule.aggregate(updates).scores == rule.aggregate(small).scores
    assert rules.get("gas", base="bulyan", before="nnm").aggregate(updates).update is not None
    with pytest.raises(ParameterError, match="more than inner products"):
        rule.weights_from_gram(torch.eye(8))  # type: ignore[attr-defined]


# -------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("mda", {"attackers": -1}, "at least 0"),
        ("dnc", {"filter": 0}, "above 0"),
        ("dnc", {"sample": 0}, "at least 1"),
        ("dnc", {"iterations": 0}, "at least 1"),
        ("gas", {"base": "median"}, "krum or bulyan"),
        ("norm-bound", {"bound": "mean"}, "a number or median"),
        ("norm-bound", {"bound": 0}, "above 0"),
        ("norm-bound", {"noise": -0.1}, "at least 0"),
        ("norm-bound", {"noise": float("nan")}, "at least 0"),
        ("centered-clipping", {"tau": "quantile"}, "a number or median"),
        ("centered-clipping", {"iterations": 0}, "at least 1"),
    ],
)
def test_nonsense_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        rules.get(name, **options)


@pytest.mark.parametrize("name", ["fltrust", "monna"])
def test_a_missing_anchor_is_said(name: str) -> None:
    with pytest.raises(ParameterError, match=f"{name} needs the server's own update"):
        rules.get(name).aggregate(torch.eye(5))
