"""The synthetic demonstration: what is drawn, what is measured, and that the claims hold."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.decomposition import PCA

from fedimmune.adaptive.training import Examples
from fedimmune.errors import ParameterError
from reproduction.figures import save, synthetic_chart
from reproduction.synthetic import (
    Demonstration,
    demonstrate,
    draw_sets,
    importance,
    learn,
    measure,
    principal_plane,
)

seeds = st.integers(0, 2**32)


def chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def found() -> Demonstration:
    """The demonstration as it is published; seconds."""
    return demonstrate()


@pytest.fixture(scope="module")
def hasty() -> Demonstration:
    """One that has learned next to nothing."""
    return demonstrate(sets=64, epochs=1)


# ---------------------------------------------------------------- the sets


@given(seed=seeds)
def test_outliers_share_another_mean_in_the_first_third_alone(seed: int) -> None:
    sets = draw_sets(4, chance(seed), own=0.0, noise=0.0)
    features = sets.inputs["features"]
    assert features.shape == (4, 10, 30)
    assert torch.equal(features[..., 20:], torch.zeros(4, 10, 10))
    for samples, outliers in zip(features, sets.attackers, strict=True):
        assert 1 <= int(outliers.sum()) <= 4
        for kind in (outliers, ~outliers):
            assert (samples[kind] == samples[kind][0]).all(), "a kind has one mean"
        outlier, inlier = samples[outliers][0], samples[~outliers][0]
        assert (outlier[:10] != inlier[:10]).all()
        assert torch.equal(outlier[10:20], inlier[10:20])


@given(seed=seeds)
def test_chance_alone_decides(seed: int) -> None:
    one, same, other = (draw_sets(3, chance(s)) for s in (seed, seed, seed + 1))
    assert torch.equal(one.inputs["features"], same.inputs["features"])
    assert torch.equal(one.attackers, same.attackers)
    assert not torch.equal(one.inputs["features"], other.inputs["features"])


def test_no_outlier_can_be_told_by_itself() -> None:
    sets = draw_sets(6000, chance(1))
    features, outliers = sets.inputs["features"], sets.attackers
    # One sample a set, for samples of a set depend on each other.
    some = [features[torch.arange(6000), kind.int().argmax(1)] for kind in (outliers, ~outliers)]
    for samples in some:
        expected = torch.tensor([1 + 0.3**2] * 20 + [3.0**2] * 10)
        assert torch.allclose(samples.mean(0) / expected.sqrt(), torch.zeros(30), atol=0.07)
        assert torch.allclose(samples.var(0) / expected, torch.ones(30), atol=0.1)
    counts = outliers.sum(1).bincount(minlength=5) / 6000
    assert torch.allclose(counts, torch.tensor([0, 0.25, 0.25, 0.25, 0.25]), atol=0.03)
    assert torch.allclose(outliers.double().mean(0), torch.full((10,), 0.25).double(), atol=0.03)


def test_samples_of_a_kind_have_the_covariance_that_is_said() -> None:
    sets = draw_sets(6000, chance(2), own=0.5, noise=2.0)
    features, inliers = sets.inputs["features"], ~sets.attackers
    # Two inliers of each set: their difference has no mean, and twice the covariance.
    pairs = inliers.double().topk(2).indices
    first, second = (features[torch.arange(6000), pairs[:, k]] for k in range(2))
    expected = np.zeros((30, 30))
    for i in range(20):
        for j in range(20):
            expected[i, j] = 0.5**2 * 0.5 ** abs(i - j)
    expected[20:, 20:] = 2.0**2 * np.eye(10)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    measured = np.cov((first - second).T.numpy()) / 2
    assert np.abs((measured - expected) / scale).max() < 0.08


# ---------------------------------------------------------------- the measures


def naive_auroc(values: torch.Tensor, outliers: torch.Tensor) -> float:
    high: list[float] = [float(value) for value in values[outliers]]
    low: list[float] = [float(value) for value in values[~outliers]]
    return sum((h > v) + 0.5 * (h == v) for h in high for v in low) / (len(high) * len(low))


@given(seed=seeds)
def test_the_plane_is_that_of_pca(seed: int) -> None:
    features = draw_sets(2, chance(seed)).inputs["features"]
    for samples, ours in zip(features.double(), principal_plane(features), strict=True):
        theirs = torch.from_numpy(PCA(2).fit_transform(samples.numpy()))
        signs = torch.sign((ours * theirs).sum(0))
        assert torch.allclose(ours * signs, theirs, atol=1e-4)


@settings(max_examples=10)  # each takes hundreds of areas, one by one
@given(seed=seeds)
def test_measures_are_those_of_their_definitions(seed: int) -> None:
    sets = draw_sets(2, chance(seed))
    weights = torch.rand(2, 10, generator=chance(seed)).relu()
    weights[weights < 0.4] = 0
    weights[:, 0] += 0.1
    weights /= weights.sum(1, keepdim=True)
    figures = measure(weights, sets, chance(seed))
    expected: defaultdict[str, list[float]] = defaultdict(list)
    for w, x, bad in zip(weights, sets.inputs["features"], sets.attackers, strict=True):
        truth = x[~bad].mean(0)
        result = sum((w[i] * x[i] for i in range(10)), torch.zeros(30))
        median = torch.from_numpy(np.median(x.numpy(), axis=0))
        plane = torch.from_numpy(PCA(2).fit_transform(x.double().numpy()))
        # The same 90 directions, whatever signs the axes have: with each its mirror image.
        lines = [
            naive_auroc(plane @ torch.tensor([math.cos(a), math.sin(a)]).double(), bad)
            for a in np.linspace(0, math.pi, 90, endpoint=False)
        ]
        for name, value in {
            "attacker_weight": float(w[bad].sum()),
            "benign_kept": float((w[~bad] > 0).double().mean()),
            "exact": float(all((w[i] > 0) != bad[i] for i in range(10))),
            "auroc": naive_auroc(-w, bad),
            "over_half": float(w[bad].sum() > 0.5),
            "distance": float((result - truth).norm() / truth.norm()),
            "distance_of_mean": float((x.mean(0) - truth).norm() / truth.norm()),
            "distance_of_median": float((median - truth).norm() / truth.norm()),
            "median_auroc": naive_auroc((x - median).norm(dim=1), bad),
            "plane_auroc": naive_auroc(plane.norm(dim=1), bad),
            "line_auroc": max(max(line, 1 - line) for line in lines),
        }.items():
            expected[name].append(value)
    for name, values in expected.items():
        assert figures[name] == pytest.approx(sum(values) / 2, abs=1e-4), name
    assert 0.5 <= figures["line_chance"] <= 1


def test_the_limits_of_the_measures() -> None:
    sets = draw_sets(64, chance(3))
    perfect = (~sets.attackers).float()
    perfect /= perfect.sum(1, keepdim=True)
    best = measure(perfect, sets, chance(0))
    assert (best["attacker_weight"], best["exact"], best["auroc"]) == (0, 1, 1)
    assert best["distance"] == pytest.approx(0, abs=1e-6)
    alike = measure(torch.full((64, 10), 0.1), sets, chance(0))
    assert alike["auroc"] == 0.5
    assert alike["distance"] == pytest.approx(alike["distance_of_mean"], abs=1e-5)
    # Without noise PCA shows what there is to see: it is no straw man.
    clear = draw_sets(64, chance(3), noise=0.0)
    assert measure(perfect, clear, chance(0))["line_auroc"] > 0.99


def test_importance_sums_the_keys_first_layer(hasty: Demonstration) -> None:
    weight = dict(hasty.form.named_parameters())["key.0.weight"].detach()
    for i in range(30):
        assert float(importance(hasty.form)[i]) == pytest.approx(
            sum(abs(float(weight[j, i])) for j in range(len(weight))), rel=1e-5
        )


# ---------------------------------------------------------------- the claims


def test_the_network_tells_outliers(found: Demonstration) -> None:
    figures = found.figures
    assert figures["auroc"] > 0.95
    assert figures["exact"] > 0.85
    assert figures["attacker_weight"] < 0.04
    assert figures["benign_kept"] > 0.97
    assert figures["distance"] < figures["distance_of_mean"] / 3
    assert figures["distance"] < figures["distance_of_median"] / 3


def test_pca_hardly_does(found: Demonstration) -> None:
    figures = found.figures
    assert abs(figures["plane_auroc"] - 0.5) < 0.1
    assert figures["line_auroc"] - figures["line_chance"] < 0.07
    assert figures["median_auroc"] < 0.7


def test_importance_finds_the_first_ten_features(found: Demonstration) -> None:
    assert found.figures["important"] >= 9
    told, common, noise = found.importance.split(10)
    assert told.mean() > 2 * common.mean() > 4 * noise.mean()


def test_importance_finds_them_wherever_they_are() -> None:
    order = torch.randperm(30, generator=chance(5))

    def moved(count: int, seed: int) -> Examples:
        sets = draw_sets(count, chance(seed))
        return Examples({"features": sets.inputs["features"][..., order]}, sets.attackers)

    form, _ = learn(moved(1024, 1), moved(128, 2), epochs=10)
    assert int((order[importance(form).topk(10).indices] < 10).sum()) >= 9


def test_what_has_learned_nothing_tells_nothing(hasty: Demonstration) -> None:
    assert hasty.figures["auroc"] < 0.7
    assert hasty.figures["exact"] < 0.2


def test_the_same_again_to_the_bit_and_chance_of_others_untouched(hasty: Demonstration) -> None:
    before = torch.get_rng_state()
    again = demonstrate(sets=64, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.weights, hasty.weights)
    assert torch.equal(again.importance, hasty.importance)
    assert (again.figures, again.curve) == (hasty.figures, hasty.curve)
    other = demonstrate(sets=64, epochs=1, seed=2)
    assert not torch.equal(other.sets.inputs["features"], again.sets.inputs["features"])
    assert not torch.equal(other.importance, again.importance)


def test_measured_on_the_same_sets_however_many_were_learned(
    found: Demonstration, hasty: Demonstration
) -> None:
    assert torch.equal(found.sets.inputs["features"], hasty.sets.inputs["features"])
    assert found.shown == hasty.shown, "the network has no say in what is drawn"
    assert int(found.sets.attackers[found.shown].sum()) == 3


@pytest.mark.parametrize(("sets", "epochs"), [(0, 1), (1, 0)])
def test_nothing_to_learn_from_is_refused(sets: int, epochs: int) -> None:
    with pytest.raises(ParameterError, match="at least 1"):
        demonstrate(sets=sets, epochs=epochs)


# ---------------------------------------------------------------- the figure


def test_the_figure_shows_the_set_and_its_weights(hasty: Demonstration, tmp_path: Path) -> None:
    chart = synthetic_chart(hasty)
    data = [row for rows in json.loads(chart.to_json())["datasets"].values() for row in rows]
    weights = {row["number"]: row["weight"] for row in data if "weight" in row}
    shown = hasty.weights[hasty.shown].tolist()
    assert [weights[str(i)] for i in range(10)] == pytest.approx(shown)
    values = [row["value"] for row in data if "value" in row]
    assert values == pytest.approx(hasty.sets.inputs["features"][hasty.shown].flatten().tolist())
    picture, _ = save(chart, tmp_path / "synthetic")
    with Image.open(picture) as drawn:
        assert min(drawn.size) > 500
    assert picture.stat().st_size < 200_000
