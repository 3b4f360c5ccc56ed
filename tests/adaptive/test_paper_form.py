"""The paper's form against Algorithm 1 as it is printed, and its features against the SVD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from fedimmune.adaptive.defense import make_form
from fedimmune.adaptive.models.paper import Perceptron, Principal, PrincipalSettings, coordinates
from fedimmune.adaptive.training import PRESETS
from tests.adaptive.naive import paper_passes

SIZES = (7, 3, 20)


def matrices(n: int, seed: int, scale: float = 1.0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(n, d, generator=random, dtype=torch.float64) for d in SIZES]


def grams(layers: list[Tensor]) -> Tensor:
    return torch.stack([matrix @ matrix.T for matrix in layers])[None]


def made(seed: int = 1, **settings: Any) -> Any:
    torch.manual_seed(seed)
    form = make_form("paper", {"layers": len(SIZES), **settings}).double().eval()
    with torch.no_grad():
        for parameter in form.parameters():
            parameter.mul_(2)
    return form


@given(
    n=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    preset=st.sampled_from(sorted(PRESETS)),
    settings=st.fixed_dictionaries(
        {
            "c": st.sampled_from([1.0, 10.0, 30.0]),
            "eps": st.sampled_from([0.0, 0.5, 0.9]),
            "passes": st.integers(1, 6),
        }
    ),
)
def test_it_is_algorithm_1(n: int, seed: int, preset: str, settings: dict[str, Any]) -> None:
    form = made(**PRESETS[preset] | settings)
    inputs = form.prepare(grams(matrices(n, seed)))
    features = inputs["features"][0].numpy()
    weights, estimate = paper_passes(form, features)
    weighed = form(inputs)
    np.testing.assert_allclose(weighed.weights[0].detach(), weights, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        weighed.shares[0].detach(), weights / weights.sum(), rtol=1e-8, atol=1e-10
    )
    assert weighed.scores.shape == (settings["passes"], 1, n)
    attackers = torch.arange(n) % 3 == 1
    truth = features[~attackers.numpy()].mean(0)
    off = np.abs(weights - ~attackers.numpy() / (~attackers).sum().item()).mean()
    share = form.settings.weight_term
    expected = (1 - share) * np.abs(estimate - truth).mean() + share * off
    assert share == (0.01 if preset == "authors" else 0)
    found = float(form.loss(inputs, weighed, attackers[None]).detach())
    assert found == pytest.approx(expected, rel=1e-8)


def test_some_are_cut_off_and_the_estimate_is_not_renormalized() -> None:
    """So that the test above does not pass for want of truncation."""
    form = made(c=30.0, eps=0.9)
    sums = []
    for seed in range(20):
        weighed = form(form.prepare(grams(matrices(8, seed))))
        sums.append(float(weighed.weights.detach().sum()))
        assert float(weighed.shares.detach().sum()) == pytest.approx(1)
    assert min(sums) < 0.95
    assert max(sums) <= 1 + 1e-12


@given(n=st.integers(1, 14), seed=st.integers(0, 10**6), orient=st.booleans())
def test_coordinates_are_those_of_the_svd(n: int, seed: int, orient: bool) -> None:
    layers = matrices(n, seed)
    settings = PrincipalSettings(layers=3, components=5, orient=orient)
    found = coordinates(grams(layers), settings)[0].unflatten(1, (3, 5))
    for number, matrix in enumerate(layers):
        u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
        expected = torch.zeros(n, 5, dtype=torch.float64)
        kept = min(5, len(s))
        expected[:, :kept] = (u * s)[:, :kept]
        # Signs are arbitrary, and an axis of (almost) no length is noise: √ of a rounding error.
        torch.testing.assert_close(found[:, number].abs(), expected.abs(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            found[:, number] @ found[:, number].T, expected @ expected.T, rtol=1e-6, atol=1e-6
        )
    if orient:
        assert float(found.sum(0).min()) >= -1e-9


@given(n=st.integers(2, 12), seed=st.integers(0, 10**6), preset=st.sampled_from(sorted(PRESETS)))
def test_the_order_of_the_clients_is_of_no_influence(n: int, seed: int, preset: str) -> None:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    form = made(**PRESETS[preset])
    inputs = form.prepare(grams(matrices(n, seed)))
    straight = form(inputs).shares[0]
    shuffled = form({"features": inputs["features"][:, order]}).shares[0]
    torch.testing.assert_close(shuffled, straight[order], rtol=1e-8, atol=1e-10)
    # From Gram matrices on this holds where signs are settled: the decomposition's depend on order.
    settled = made(**PRESETS[preset], components=3)
    layers = matrices(n, seed)
    straight = settled(settled.prepare(grams(layers))).shares[0]
    shuffled = settled(settled.prepare(grams([m[order] for m in layers]))).shares[0]
    torch.testing.assert_close(shuffled, straight[order], rtol=1e-6, atol=1e-8)


def test_the_perceptron_is_bound_to_number_and_order_on_purpose() -> None:
    form = made(attention=False, clients=6)
    assert isinstance(form, Perceptron)
    inputs = form.prepare(grams(matrices(6, 1)))
    weights = form(inputs).weights[0]
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    shuffled = form({"features": inputs["features"][:, order]}).weights[0]
    assert not torch.allclose(shuffled, weights[order], atol=1e-3)
    for n in (5, 7):
        with pytest.raises(RuntimeError):
            form(form.prepare(grams(matrices(n, 1))))


def test_presets_are_what_they_say() -> None:
    paper, authors = made(), made(**PRESETS["authors"])
    wide = 3 * 10
    assert [tuple(p.shape) for p in paper.parameters()] == [
        *((wide, wide), (wide,), (32, wide), (32,)),
        *((wide, wide), (wide,), (32, wide), (32,)),
    ]
    assert isinstance(paper.key[1], torch.nn.ReLU)
    assert paper.key is not paper.query
    assert [tuple(p.shape) for p in authors.parameters()] == [(2 * wide, wide), (21, 2 * wide)]
    assert isinstance(authors.key[1], torch.nn.LeakyReLU)
    assert authors.key is authors.query
    assert (paper.settings.c, paper.settings.eps, paper.settings.passes) == (10, 0.5, 5)


def test_the_newer_branch_trains_otherwise_and_the_older_one_cuts_off_later() -> None:
    newer, older = made(**PRESETS["authors"]).settings, made(**PRESETS["authors-2020"]).settings
    assert (newer.start, newer.random_start, newer.jitter, newer.limit) == ("mean", True, 0.1, 5)
    assert (newer.weight_term, newer.eps, newer.identity) == (0.01, 0.5, False)
    assert (older.start, older.random_start, older.jitter, older.limit) == (
        "median",
        False,
        0,
        None,
    )
    assert older.eps / 10 == pytest.approx(0.005)
    assert newer.chosen_by == older.chosen_by == "weights"


def test_signs_are_settled_unless_the_literal_form_is_asked_for() -> None:
    """An axis that is turned is the same axis: features must not tell."""
    assert made().settings.orient
    layers = matrices(7, 5)
    order = torch.arange(6, -1, -1)
    settled = made(components=3)
    literal = made(components=3, orient=False)
    for form, same in ((settled, True), (literal, False)):
        straight = form.prepare(grams(layers))["features"][0, order]
        turned = form.prepare(grams([matrix[order] for matrix in layers]))["features"][0]
        assert torch.allclose(straight, turned, atol=1e-8) is same
        torch.testing.assert_close(straight.abs(), turned.abs())


@given(seed=st.integers(0, 10**6), factor=st.floats(1e-3, 1e3))
def test_scaled_rounds_have_no_length(seed: int, factor: float) -> None:
    form = made(scaled=True)
    one, other = (grams(matrices(7, seed, scale)) for scale in (1.0, factor))
    found = form.prepare(one)["features"]
    torch.testing.assert_close(form.prepare(other)["features"], found, rtol=1e-5, atol=1e-7)
    # Ten axes hold all of seven clients: a row's length is the update's.
    assert float(found[0].square().sum(1).median()) == pytest.approx(1)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 8))
def test_a_random_start_is_a_convex_combination(seed: int, n: int) -> None:
    form = made(random_start=True, jitter=0.1)
    inputs = form.prepare(torch.cat([grams(matrices(n, seed + i)) for i in range(3)]))
    random = torch.Generator().manual_seed(seed)
    varied = form.augmented(inputs, random)
    features = varied["features"]
    noise = features / torch.where(inputs["features"] == 0, 1, inputs["features"]) - 1
    assert 0.03 < float(noise[inputs["features"] != 0].std()) < 0.3
    start = form.start(varied)
    assert bool((start <= features.amax(1) + 1e-9).all())
    assert bool((start >= features.amin(1) - 1e-9).all())
    again = form.augmented(inputs, random)
    assert not torch.equal(form.start(again), start), "drawn anew"
    plain = made().augmented(inputs, random)
    assert torch.equal(plain["features"], inputs["features"])
    assert torch.equal(made().start(plain), made().start(inputs))


def test_diverged_rounds_teach_nothing() -> None:
    form = made(limit=5.0)
    small, large = (grams(matrices(6, 1, scale)) for scale in (0.1, 100.0))
    both = form.prepare(torch.cat([small, large]))
    assert form.usable(both).tolist() == [True, False]
    assert made().usable(both).tolist() == [True, True]


def test_the_identity_start() -> None:
    torch.manual_seed(1)
    form = make_form("paper", {"layers": 3, "hidden": 2.0, "identity": True})
    assert isinstance(form, Principal)
    first = form.key[0].weight
    assert isinstance(first, Tensor)
    eye = torch.eye(30)
    away = (first - torch.cat([eye, -eye])).abs()
    assert 0 < float(away.detach().mean()) < 2e-3
    with pytest.raises(ValidationError, match="hidden = 2"):
        PrincipalSettings(layers=3, identity=True)


def test_the_epoch_can_be_chosen_by_the_weights() -> None:
    inputs = made().prepare(grams(matrices(6, 2)))
    attackers = torch.arange(6)[None] < 2
    form = made(chosen_by="weights")
    weighed = form(inputs)
    ideal = torch.tensor([[0, 0, 0.25, 0.25, 0.25, 0.25]])
    expected = (weighed.weights - ideal).abs().mean()
    torch.testing.assert_close(form.choosing_loss(inputs, weighed, attackers), expected)
    usual = made()
    torch.testing.assert_close(
        usual.choosing_loss(inputs, weighed, attackers), usual.loss(inputs, weighed, attackers)
    )


def test_other_starts() -> None:
    inputs = made().prepare(grams(matrices(9, 4)))
    features = inputs["features"][0]
    torch.testing.assert_close(made(start="mean").start(inputs)[0], features.mean(0))
    middle = np.median(features.numpy(), axis=0)
    torch.testing.assert_close(made().start(inputs)[0], torch.from_numpy(middle))
    found = made(start="geometric-median").start(inputs)[0]
    away = features - found
    pull = (away / away.norm(dim=1, keepdim=True)).sum(0)  # zero at the optimum
    assert float(pull.norm()) < 1e-3
    one = {"features": features[:1][None]}
    torch.testing.assert_close(made(start="geometric-median").start(one)[0], features[0])


def test_a_batch_is_its_rounds_one_by_one() -> None:
    form = made()
    each = [grams(matrices(6, seed)) for seed in range(4)]
    together = form(form.prepare(torch.cat(each))).weights
    alone = torch.cat([form(form.prepare(one)).weights for one in each])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [{"c": 0}, {"eps": 1}, {"eps": -0.1}, {"passes": 0}, {"start": "krum"}, {"width": 3}],
)
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PrincipalSettings(layers=3, **settings)


@pytest.mark.parametrize("scale", [0.0, 1e-100, 1e-20, 1e20, 1e100])
@pytest.mark.parametrize("same", [True, False])
def test_weights_are_finite_whatever_comes(scale: float, same: bool) -> None:
    layers = [m[:1].repeat(6, 1) if same else m for m in matrices(6, 3, scale)]
    form = made()
    assert isinstance(form, Principal)
    shares = form(form.prepare(grams(layers))).shares
    assert bool(torch.isfinite(shares).all())
    assert float(shares.detach().sum()) == pytest.approx(1)
