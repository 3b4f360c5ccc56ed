"""Rules of clusters, signs, layers, history and server loss, against their definitions."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, rules
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.results import Verdict
from fedimmune.rules import AFA, LASA, AlignIns, ClippedClustering, SignGuard
from tests.rounds import SHAPES, as_states, as_vector, matrices

Vector = npt.NDArray[np.float64]


def close(found: Tensor, expected: Vector) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)


def cosine(a: Vector, b: Vector) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def cut(rows: Vector, most: float) -> Vector:
    return np.array([row * min(1.0, most / float(np.linalg.norm(row))) for row in rows])


def lengths_of(rows: Vector) -> list[float]:
    return [float(np.linalg.norm(row)) for row in rows]


# -------------------------------------------------------------------- clusters by cosine


def two_parts(n: int) -> list[tuple[list[int], list[int]]]:
    """All ways to cut n clients in two."""
    return [
        (list(some), [i for i in range(n) if i not in some])
        for size in range(1, n // 2 + 1)
        for some in itertools.combinations(range(n), size)
    ]


@given(matrix=matrices(least=3, most=9))
def test_cosine_clustering_minimizes_the_largest_cosine_across(matrix: Tensor) -> None:
    x = matrix.numpy()

    def across(parts: tuple[list[int], list[int]]) -> float:
        return max(cosine(x[i], x[j]) for i in parts[0] for j in parts[1])

    parts = min(two_parts(len(x)), key=across)
    if len(parts[0]) != len(parts[1]):
        answer = rules.get("cosine-clustering").aggregate(matrix)
        close(answer.update, x[parts[1]].mean(0))
        assert all(answer.verdicts[i] is Verdict.UNUSED for i in parts[0])


def agglomerated(distance: Vector, linkage: Any) -> tuple[list[int], list[int]]:
    """Join the two nearest clusters until two are left; the larger last."""
    clusters = [[i] for i in range(len(distance))]
    while len(clusters) > 2:
        pairs = list(itertools.combinations(range(len(clusters)), 2))
        a, b = min(
            pairs,
            key=lambda pair: linkage(
                [distance[i, j] for i in clusters[pair[0]] for j in clusters[pair[1]]]
            ),
        )
        clusters[a] += clusters.pop(b)
    first, second = sorted(clusters, key=len)
    return first, second


def cosine_distances(x: Vector) -> Vector:
    return np.array([[1 - cosine(a, b) for b in x] for a in x])


@given(matrix=matrices(least=3))
def test_complete_linkage_is_another_partition(matrix: Tensor) -> None:
    x = matrix.numpy()
    small, large = agglomerated(cosine_distances(x), max)
    if len(small) != len(large):
        close(rules.get("cosine-clustering", linkage="complete")(matrix), x[large].mean(0))


def test_of_equal_clusters_the_one_that_agrees_more_is_taken_in_any_order() -> None:
    tight, loose = [[1.0, 0.01], [1.0, -0.01]], [[-1.0, 0.4], [-1.0, -0.4]]
    for rows in (tight + loose, loose + tight):
        assert float(rules.get("cosine-clustering")(torch.tensor(rows))[0]) == pytest.approx(1)


@given(rounds=st.lists(matrices(least=3), min_size=1, max_size=3))
def test_clipped_clustering_by_all_lengths_so_far(rounds: list[Tensor]) -> None:
    rule, seen = rules.get("clipped-clustering"), []
    for matrix in rounds:
        x = matrix.numpy()
        seen += lengths_of(x)
        small, large = agglomerated(cosine_distances(x), lambda d: sum(d) / len(d))
        answer = rule.aggregate(matrix)
        if len(small) != len(large):
            close(answer.update, cut(x, float(np.median(seen)))[large].mean(0))


def test_lengths_are_kept_in_a_file_and_only_of_rounds_that_succeed(tmp_path: Path) -> None:
    rule = ClippedClustering()
    rule.save(tmp_path / "none")
    rule.aggregate(torch.eye(4))
    rule.weights_from_gram(torch.eye(3) * 100)
    with pytest.raises(NotEnoughClientsError):
        rule.aggregate(torch.ones(2, 4))
    assert rule.lengths.tolist() == [1.0] * 4
    rule.save(tmp_path / "lengths")
    again = ClippedClustering()
    again.restore(tmp_path / "lengths")
    assert torch.equal(again.lengths, rule.lengths)
    again.restore(tmp_path / "none")
    assert not len(again.lengths)
    with pytest.raises(InputError):
        rules.get("afa").restore(tmp_path / "lengths")
    with pytest.raises(InputError, match="no lengths"):
        again.recall({"lengths": -torch.ones(2)}, {})


# -------------------------------------------------------------------- FLAME


def densest(distance: Vector) -> list[int]:
    """HDBSCAN with one cluster of more than half: peel off by the longest edge while that is left.

    A cluster is what hangs together over edges up to a length; the length shrinks until no part
    has ⌊n/2⌋ + 1 members.
    """
    n = len(distance)
    kept = list(range(n))
    for bound in sorted(set(distance[np.triu_indices(n, 1)]), reverse=True):
        parts: list[set[int]] = []
        for i in kept:
            linked = [p for p in parts if any(distance[i, j] < bound for j in p)]
            parts = [p for p in parts if p not in linked] + [{i}.union(*linked)]
        largest = max(parts, key=len)
        if len(largest) < n // 2 + 1:
            return kept
        kept = sorted(largest)
    return kept


@given(matrix=matrices(least=3, most=12))
def test_the_first_majority_is_the_cluster_of_hdbscan(matrix: Tensor) -> None:
    from sklearn.cluster import HDBSCAN  # noqa: PLC0415

    updates = Updates.from_vectors(matrix).with_reference("model", torch.zeros(matrix.shape[1]))
    answer = rules.get("flame", noise=0).aggregate(updates)
    n = len(matrix)
    clustering = HDBSCAN(
        n // 2 + 1, min_samples=1, metric="precomputed", allow_single_cluster=True, copy=True
    )
    labels = clustering.fit_predict(cosine_distances(matrix.double().numpy()))
    kept = {client for client, weight in (answer.weights or {}).items() if weight}
    assert kept == set(np.flatnonzero(labels >= 0).tolist())


@given(matrix=matrices(least=3), far=st.sampled_from([0.0, 1.0, 1e4]))
def test_flame(matrix: Tensor, far: float) -> None:
    x = matrix.numpy()
    model = far * np.random.default_rng(len(x)).standard_normal(x.shape[1])
    kept = densest(cosine_distances(model + x))
    usual = float(np.median(lengths_of(x)))
    updates = Updates.from_vectors(matrix).with_reference("model", torch.from_numpy(model))
    answer = rules.get("flame", noise=0).aggregate(updates)
    if far < 1e4:  # else the naive distances are rounded away
        close(answer.update, cut(x, usual)[kept].mean(0))
    blurred = rules.get("flame", noise=0.01).aggregate(updates).update - answer.update
    assert float(blurred.std()) == pytest.approx(0.01 * usual, rel=0.6)


def test_distances_of_models_keep_their_digits() -> None:
    """Updates a hundred million times shorter than the model still cluster by direction."""
    model = torch.zeros(50, dtype=torch.float64)
    model[0] = 1e8
    random = torch.Generator().manual_seed(1)
    honest = torch.randn(6, 50, generator=random, dtype=torch.float64) * 0.1 + 1
    rows = torch.cat([honest, -honest[:4]])
    updates = Updates.from_vectors(rows).with_reference("model", model)
    weights = rules.get("flame", noise=0).aggregate(updates).weights or {}
    assert [weights[client] for client in range(6, 10)] == [0] * 4


def test_noise_is_of_the_seed_and_the_round() -> None:
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(3))
    updates = Updates.from_vectors(rows).with_reference("model", torch.ones(30))
    first, again = (rules.get("flame", noise=0.1).aggregate(updates).update for _ in range(2))
    other = rules.get("flame", noise=0.1, seed=1).aggregate(updates).update
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# -------------------------------------------------------------------- SignGuard


def signguard(x: Vector, part: slice, extra: list[float] | None = None) -> Vector:
    from sklearn.cluster import MeanShift, estimate_bandwidth  # noqa: PLC0415

    lengths = lengths_of(x)
    usual = float(np.median(lengths))
    counts = [[sum(row[part] > 0), sum(row[part] == 0), sum(row[part] < 0)] for row in x]
    columns = [[c / max(1, *column) for c in column] for column in zip(*counts, strict=True)]
    features = np.array([*columns, *([extra] if extra is not None else [])]).T
    bandwidth = estimate_bandwidth(features, quantile=0.5)
    if bandwidth == 0:
        pytest.skip("most are the same")
    labels = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False).fit(features)
    sizes = [int(sum(labels.labels_ == k)) for k in range(max(labels.labels_) + 1)]
    chosen = sizes.index(max(sizes))
    kept = [
        i
        for i in range(len(x))
        if labels.labels_[i] == chosen and 0.1 * usual <= lengths[i] <= 3 * usual
    ]
    return cut(x, usual)[kept].mean(0) if kept else np.zeros(x.shape[1])


def some_round(seed: int, n: int = 10) -> Tensor:
    """Return clients that agree somewhat, and two that do not."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 400, generator=random, dtype=torch.float64) + 0.5
    rows[:2] *= -1.5
    return rows[torch.randperm(n, generator=random)]


@pytest.mark.parametrize("seed", range(12))
def test_signguard(seed: int) -> None:
    matrix = some_round(seed)
    close(rules.get("signguard", sample=1)(matrix), signguard(matrix.numpy(), slice(None)))


def test_a_tenth_of_the_coordinates_that_the_round_and_the_seed_draw() -> None:
    matrix = some_round(1)
    found = rules.get("signguard").aggregate(matrix)
    expected = [signguard(matrix.numpy(), slice(k, k + 40)) for k in range(361)]
    assert any(np.allclose(found.update.numpy(), each) for each in expected)
    states = [rules.get("signguard", seed=seed).aggregate(matrix).scores for seed in range(8)]
    assert any(each != states[0] for each in states)


@pytest.mark.parametrize("variant", ["sim", "dist"])
@pytest.mark.parametrize("seed", range(4))
def test_the_variants_of_signguard_compare_with_the_last_result(variant: str, seed: int) -> None:
    rule, last = rules.get("signguard", variant=variant, sample=1), None
    for number in range(3):
        matrix = some_round(10 * seed + number)
        x, n = matrix.numpy(), len(matrix)
        if variant == "sim":
            if last is None:
                like = [
                    np.median([cosine(x[i], x[j]) for j in range(n) if j != i]) for i in range(n)
                ]
            else:
                like = [cosine(row, last) for row in x]
            middle = float(np.median(like))
            extra = [min(max(0.0, float(c)), middle) / (5 * middle) for c in like]
        else:
            apart = [[float(np.linalg.norm(a - b)) for b in x] for a in x]
            away = [sum(sorted(row)[1 : n // 2 + 1]) for row in apart]
            if last is not None:
                away = [float(np.linalg.norm(row - last)) for row in x]
            extra = [0.2 if d >= 1.1 * np.median(away) else 0.0 for d in away]
        found = rule(matrix)
        close(found, signguard(x, slice(None), extra))
        last = found.numpy()


def test_the_last_result_is_kept_in_a_file_and_must_fit_the_model(tmp_path: Path) -> None:
    rule = SignGuard(variant="sim")
    rule.aggregate(some_round(1))
    rule.save(tmp_path / "last")
    again = SignGuard(variant="sim")
    again.restore(tmp_path / "last")
    assert torch.equal(again(some_round(2)), rule(some_round(2)))
    with pytest.raises(InputError, match="another model"):
        again.aggregate(torch.randn(5, 7))
    with pytest.raises(InputError, match="variant"):
        SignGuard(variant="dist").restore(tmp_path / "last")
    with pytest.raises(InputError, match="keeps no history"):
        SignGuard().save(tmp_path / "plain")
    assert not SignGuard().has_history


# -------------------------------------------------------------------- signs and layers


@given(matrix=matrices(least=1), threshold=st.none() | st.integers(0, 12))
def test_rlr(matrix: Tensor, threshold: int | None) -> None:
    x, n = matrix.numpy(), len(matrix)
    threshold = None if threshold is None else min(threshold, n)
    theta = math.ceil(0.4 * n) if threshold is None else threshold
    expected = [column.mean() * (1 if abs(sum(np.sign(column))) >= theta else -1) for column in x.T]
    close(rules.get("rlr", threshold=threshold)(matrix), np.array(expected))


@pytest.mark.parametrize("threshold", [11, 1e300])
def test_rlr_refuses_more_votes_than_there_are(threshold: int) -> None:
    """Seen before: minus the mean, and beyond 2⁶³ an OverflowError."""
    close(rules.get("rlr", threshold=10)(torch.ones(10, 3).double()), np.ones(3))
    with pytest.raises(ParameterError, match="10 votes are all there are"):
        rules.get("rlr", threshold=threshold).aggregate(torch.ones(10, 3))
    with pytest.raises(ParameterError, match="5 votes"):
        rules.get("rlr", threshold=6, before="bucketing").check_count(10)


def usual(values: list[float], bound: float) -> set[int]:
    middle, deviation = np.median(values), np.std(values)
    if deviation == 0:  # the papers divide by it; whoever is like all others is usual
        return set(range(len(values)))
    return {i for i, v in enumerate(values) if abs(v - middle) < bound * deviation * (1 - 1e-9)}


@given(matrix=matrices(least=5), bound=st.sampled_from([0.5, 1.0, 2.0]))
def test_alignins(matrix: Tensor, bound: float) -> None:
    x = matrix.numpy()
    n, d = x.shape
    model = np.random.default_rng(n).standard_normal((d,))
    principal = np.sign(np.sign(x).sum(0))
    signs = []
    for row in x:
        top = np.argsort(-np.abs(row))[: int(0.3 * d)]
        signs.append(float(np.mean(np.sign(row[top]) == principal[top])))
    kept = sorted(usual([cosine(row, model) for row in x], bound) & usual(signs, bound))
    updates = Updates.from_vectors(matrix).with_reference("model", torch.from_numpy(model))
    answer = AlignIns(direction=bound, signs=bound).aggregate(updates)
    assert list((answer.scores or {}).values()) == pytest.approx(signs)
    if kept:
        close(answer.update, cut(x, float(np.median(lengths_of(x[kept]))))[kept].mean(0))
    else:
        assert not bool(answer.update.any())
        assert not any((answer.weights or {}).values())


def lasa(states: list[dict[str, Vector]], sparsity: float, bound: float) -> dict[str, Vector]:
    whole = [np.concatenate([t.reshape(-1) for t in state.values()]) for state in states]
    most = float(np.median([np.linalg.norm(row) for row in whole]))
    sparse = []
    for state, row in zip(states, whole, strict=True):
        least = np.sort(np.abs(row))[::-1][int((1 - sparsity) * len(row)) - 1]
        factor = min(1.0, most / float(np.linalg.norm(row)))
        sparse.append({k: np.where(abs(t) >= least, t, 0) * factor for k, t in state.items()})
    found: dict[str, Vector] = {}
    for name in states[0]:
        layers = [state[name] for state in sparse]
        purity = []
        for layer in layers:
            count = float(abs(np.sign(layer)).sum())
            share = float(np.sign(layer).sum()) / count if count else 0.0
            purity.append(0.5 * (1 + (1 - sparsity) * share))
        norms = [float(np.linalg.norm(layer)) for layer in layers]
        kept = usual(norms, bound) & usual(purity, bound)
        chosen = sorted(kept) or range(len(layers))
        found[name] = np.mean([layers[i] for i in chosen], axis=0)
    return found


@given(matrix=matrices(least=5), sparsity=st.sampled_from([0.0, 0.3, 0.7]))
def test_lasa(matrix: Tensor, sparsity: float) -> None:
    states = as_states(matrix)[:]
    for state in states:
        del state["scale"]  # of one value: all purities are 0, ½ or 1, and ties are many
    naive = lasa([{k: t.numpy() for k, t in state.items()} for state in states], sparsity, 1.0)
    answer = LASA(sparsity=sparsity).aggregate(states)
    for name, expected in naive.items():
        close(answer.update[name], expected)


def test_lasa_says_in_how_many_layers_a_client_was_kept() -> None:
    states = as_states(some_round(5)[:, : sum(math.prod(s) for s in SHAPES.values())])
    states[0]["conv.weight"] *= 40
    answer = LASA().aggregate(states)
    assert answer.weights is None
    assert answer.scores is not None
    assert {round(4 * score) / 4 for score in answer.scores.values()} == set(answer.scores.values())
    assert float(as_vector(answer.update).norm()) < 10
    wide = [
        {name: tensor.repeat(9, *[1] * tensor.ndim) for name, tensor in state.items()}
        for state in states
    ]
    said = {one.client: one.reason for one in LASA().aggregate(wide).clients}
    assert "of the layers" in said[0]


# -------------------------------------------------------------------- AFA


def afa(
    x: Vector, belief: list[float], xi: float = 2.0, step: float = 0.5
) -> tuple[Vector, set[int]]:
    good = set(range(len(x)))
    while True:
        total = sum(belief[i] for i in good)
        mean: Vector = sum((belief[i] * x[i] for i in sorted(good)), np.zeros(x.shape[1])) / total
        s = {i: cosine(mean, x[i]) for i in good}
        values = list(s.values())
        middle, deviation = float(np.median(values)), float(np.std(values))
        if np.mean(values) < middle:
            bad = {i for i in good if s[i] < middle - xi * deviation}
        else:
            bad = {i for i in good if s[i] > middle + xi * deviation}
        if not bad:
            return mean, good
        good, xi = good - bad, xi + step


@given(rounds=st.lists(matrices(least=8, most=8), min_size=1, max_size=4))
def test_afa_over_rounds(rounds: list[Tensor]) -> None:
    rule, counts = AFA(), [[3, 3] for _ in range(8)]
    for matrix in rounds:
        belief = [a / (a + b) for a, b in counts]
        mean, good = afa(matrix.numpy(), belief)
        answer = rule.aggregate(matrix)
        close(answer.update, mean)
        for i in range(8):
            counts[i][0 if i in good else 1] += 1
            assert answer.verdicts[i] is not Verdict.TRUSTED or i in good
        assert {i: (a - 3, b - 3) for i, (a, b) in enumerate(counts)} == rule.rounds


def mostly_bad(good: int, bad: int) -> float:
    """Integrate the density of Beta(good, bad) up to a half."""
    p = np.linspace(0, 1, 100_001)
    density = p ** (good - 1) * (1 - p) ** (bad - 1)
    return float(density[p < 0.5].sum() / density.sum())


def test_who_is_bad_too_often_is_blocked_for_good(tmp_path: Path) -> None:
    rule = AFA()
    rows = torch.ones(8, 5, dtype=torch.float64) + 0.01 * torch.eye(8, 5).double()
    rows[3] = -1
    needed = next(k for k in range(50) if mostly_bad(3, 3 + k) > 0.95)
    for number in range(needed):
        assert not rule.is_blocked(3)
        answer = rule.aggregate(rows)
        assert answer.verdicts[3] is Verdict.SUSPECTED, number
    assert rule.is_blocked(3)
    answer = rule.aggregate(torch.ones(8, 5))
    assert (answer.weights or {})[3] == 0
    assert "blocked" in next(one.reason for one in answer.clients if one.client == 3)
    assert rule.rounds[3] == (0, needed)
    rule.save(tmp_path / "rounds")
    again = AFA()
    again.restore(tmp_path / "rounds")
    assert again.rounds == rule.rounds
    with pytest.raises(NotEnoughClientsError):
        again.aggregate(Updates.from_vectors(torch.ones(1, 5), clients=[3]))
    for counts in (torch.ones(1, 3), torch.full((1, 2), 0.5), -torch.ones(1, 2)):
        with pytest.raises(InputError):
            again.recall({"rounds": counts}, {"clients": ["x"]})
    assert again.rounds == rule.rounds


# -------------------------------------------------------------------- Zeno


@given(matrix=matrices(least=4), attackers=st.none() | st.integers(0, 3))
def test_zeno(matrix: Tensor, attackers: int | None) -> None:
    x, n = matrix.numpy(), len(matrix)
    target = np.random.default_rng(n).standard_normal(x.shape[1])
    b = max(0, (n - 3) // 2) if attackers is None else attackers

    def loss(update: Any) -> float:
        return float(np.abs(np.asarray(update) - target).sum())

    scores = [loss(0 * row) - loss(row) - 0.0005 * float(row @ row) for row in x]
    kept = np.argsort(scores)[::-1][: n - b]
    answer = rules.get("zeno", attackers=attackers).aggregate(
        Updates.from_vectors(matrix).with_server_loss(loss)
    )
    close(answer.update, x[kept].mean(0))
    assert list((answer.scores or {}).values()) == pytest.approx(scores)


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])

    def loss(update: Any) -> float:
        return math.nan if float(update[0]) == 2 else (math.inf if float(update[0]) == 3 else 0.0)

    answer = rules.get("zeno", attackers=2).aggregate(Updates.of(rows).with_server_loss(loss))
    assert [client for client, weight in (answer.weights or {}).items() if not weight] == [1, 2]
    assert all(math.isfinite(score) for score in (answer.scores or {}).values())


# -------------------------------------------------------------------- all of them


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cosine-clustering", {"linkage": "ward"}),
        ("flame", {"noise": -0.1}),
        ("flame", {"seed": -1}),
        ("signguard", {"variant": "best"}),
        ("signguard", {"longest": 1}),
        ("rlr", {"threshold": -1}),
        ("alignins", {"sparsity": 2}),
        ("alignins", {"signs": 0}),
        ("lasa", {"sparsity": 1}),
        ("lasa", {"length": 0}),
        ("afa", {"certainty": 1}),
        ("afa", {"good": 0}),
        ("afa", {"good": 1001}),
        ("afa", {"bad": 1e300}),
        ("afa", {"certainty": 0.4}),  # everybody would be blocked before the first round
        ("afa", {"bad": 10}),
        ("zeno", {"attackers": -1}),
        ("zeno", {"penalty": 0}),
    ],
)
def test_parameters_are_checked_when_it_is_made(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(parameters))):
        rules.get(name, **parameters)


def test_lists_say_what_a_rule_looks_at_and_needs() -> None:
    kinds = {name: rules.find(name).kind() for name in rules.available()}
    assert kinds["krum"] == "Gram"
    assert kinds["flame"] == "Gram, model"
    assert kinds["afa"] == "Gram, history"
    assert kinds["median"] == kinds["rlr"] == "coordinate"
    assert kinds["zeno"] == "other, server loss"
    assert kinds["residual"] == kinds["lasa"] == "other"
