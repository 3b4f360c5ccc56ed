"""The relational form: read from raw updates by the definition, and what must not change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune.adaptive.models.relational import Relational, RelationalSettings
from tests.adaptive.naive import among_clients, relational_weights, robust_start, to_estimate

SIZES = (12, 1, 30)


@st.composite
def rounds(draw: st.DrawFn, least: int = 1, most: int = 11) -> list[Tensor]:
    """One (n + 1, d) matrix a layer, the anchor last; a common direction and some who oppose it."""
    n, seed = draw(st.integers(least, most)), draw(st.integers(0, 10**6))
    odd, factor = draw(st.integers(0, n // 3)), draw(st.sampled_from([-1.0, -3.0, 8.0]))
    random = torch.Generator().manual_seed(seed)
    layers = []
    for d in SIZES:
        rows = torch.randn(1, d, generator=random, dtype=torch.float64)
        rows = rows + torch.randn(n + 1, d, generator=random, dtype=torch.float64)
        rows[:odd] *= factor
        layers.append(rows)
    return layers


def made(anchor: bool, **settings: Any) -> Relational:
    torch.manual_seed(3)
    form = Relational(RelationalSettings(layers=len(SIZES), anchor=anchor, hidden=16, **settings))
    with torch.no_grad():
        for parameter in form.parameters():
            parameter.mul_(3)
    return form.double().eval()


def grams(layers: list[Tensor], anchor: bool) -> Tensor:
    kept = [rows if anchor else rows[:-1] for rows in layers]
    return torch.stack([rows @ rows.T for rows in kept])[None]


@torch.no_grad()
def shares(form: Relational, layers: list[Tensor]) -> Tensor:
    found: Tensor = form(form.prepare(grams(layers, form.settings.anchor))).shares[0]
    return found


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


both = pytest.mark.parametrize("anchor", [True, False])


@pytest.mark.parametrize("anchor", [False, True])
def test_without_differences_to_the_median_it_reads_the_rest(anchor: bool) -> None:
    random = torch.Generator().manual_seed(2)
    layers = [torch.randn(7, d, generator=random, dtype=torch.float64) for d in SIZES]
    whole, part = made(anchor), made(anchor, relative=False)
    shape = (1, 6, len(SIZES), -1)
    every = whole.prepare(grams(layers, anchor))["among_clients"].view(shape)
    some = part.prepare(grams(layers, anchor))["among_clients"].view(shape)
    assert torch.equal(every[..., : some.shape[-1]], some)
    assert part.key.in_features == len(SIZES) * (6 + anchor)
    assert bool(torch.isfinite(part(part.prepare(grams(layers, anchor))).shares).all())


@both
@given(layers=rounds(), passes=st.integers(1, 5), eps=st.sampled_from([0.0, 0.5]))
def test_it_is_its_definition(anchor: bool, layers: list[Tensor], passes: int, eps: float) -> None:
    form = made(anchor, passes=passes, eps=eps)
    clients = [rows[:-1].numpy() for rows in layers]
    own = [rows[-1].numpy() for rows in layers] if anchor else None
    expected, scores = relational_weights(form, clients, own)
    with torch.no_grad():
        weighed = form(form.prepare(grams(layers, anchor)))
    np.testing.assert_allclose(weighed.scores[:, 0], np.stack(scores), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(weighed.shares[0], expected, rtol=1e-7, atol=1e-8)


def test_a_features_place_is_where_it_is_looked_for() -> None:
    """A network that reads one number alone has that number as its score."""
    random = torch.Generator().manual_seed(9)
    layers = [torch.randn(7, d, generator=random, dtype=torch.float64) + 0.5 for d in SIZES]
    form: Any = made(True, passes=1)
    assert form.query.in_features == len(SIZES) * 2
    assert form.key.in_features == len(SIZES) * 13
    clients = [rows[:-1].numpy() for rows in layers]
    anchor = [rows[-1].numpy() for rows in layers]
    start = robust_start(clients)
    of_estimate = [to_estimate(clients, start, i) for i in range(6)]
    of_clients = [among_clients(clients, i, anchor) for i in range(6)]
    for first, read in ((form.query, of_estimate), (form.key, of_clients)):
        for place in range(first.in_features):
            with torch.no_grad():
                for parameter in form.parameters():
                    parameter.zero_()
                first.weight[0, place], first.weight[1, place] = 1, -1
                form.perceptron[1].weight[0, 0], form.perceptron[1].weight[1, 1] = 1, 1
                form.perceptron[3].weight[0, 0], form.perceptron[3].weight[0, 1] = 1, -1
                scores = form(form.prepare(grams(layers, True))).scores[0, 0]
            expected = [values[place] for values in read]
            np.testing.assert_allclose(scores, np.tanh(expected), atol=1e-9)


@both
@given(layers=rounds(least=2), seed=st.integers(0, 1000))
def test_a_rotation_within_a_layer_changes_nothing(
    anchor: bool, layers: list[Tensor], seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    turned = []
    for rows in layers:
        square = torch.randn(rows.shape[1], rows.shape[1], generator=random, dtype=torch.float64)
        turned.append(rows @ torch.linalg.qr(square).Q)
    form = made(anchor)
    near(shares(form, turned), shares(form, layers))


@both
@given(layers=rounds(), factor=st.sampled_from([1e-30, 1e-6, 3.0, 1e9, 1e30]))
def test_scaling_all_updates_changes_nothing(
    anchor: bool, layers: list[Tensor], factor: float
) -> None:
    form = made(anchor)
    near(shares(form, [factor * rows for rows in layers]), shares(form, layers))


@both
@given(layers=rounds(least=3), seed=st.integers(0, 100), factor=st.sampled_from([1e-9, 1e-3, 1e6]))
def test_scaling_changes_nothing_where_most_clients_stand_still_in_a_layer(
    anchor: bool, layers: list[Tensor], seed: int, factor: float
) -> None:
    """As where a unit is dead: the median client's length is no unit there."""
    n = len(layers[0]) - 1
    still = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: n // 2 + 1]
    layers[0][still] = 0
    form = made(anchor)
    near(shares(form, [factor * rows for rows in layers]), shares(form, layers))


@both
@given(layers=rounds(least=2), seed=st.integers(0, 1000))
def test_the_order_of_the_clients_is_of_no_influence(
    anchor: bool, layers: list[Tensor], seed: int
) -> None:
    n = len(layers[0]) - 1
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    with_anchor = torch.cat([order, torch.tensor([n])])
    form = made(anchor)
    near(shares(form, [rows[with_anchor] for rows in layers]), shares(form, layers)[order])


@both
@pytest.mark.parametrize("n", [1, 2, 3, 4, 25, 100])
def test_any_number_of_clients(anchor: bool, n: int) -> None:
    random = torch.Generator().manual_seed(n)
    layers = [torch.randn(n + 1, d, generator=random, dtype=torch.float64) for d in SIZES]
    found = shares(made(anchor), layers)
    assert found.shape == (n,)
    assert float(found.sum()) == pytest.approx(1)


def test_the_anchor_changes_the_scores() -> None:
    random = torch.Generator().manual_seed(1)
    layers = [torch.randn(7, d, generator=random, dtype=torch.float64) for d in SIZES]
    form = made(True)
    first = form(form.prepare(grams(layers, True))).scores
    for rows in layers:
        rows[-1] *= -1
    assert not torch.allclose(form(form.prepare(grams(layers, True))).scores, first, atol=1e-3)


@both
@pytest.mark.parametrize("scale", [0.0, 1e-150, 1e-20, 1e20, 1e150])
@pytest.mark.parametrize("kind", ["each its own", "identical", "opposed", "one moves", "one huge"])
def test_weights_are_finite_whatever_comes(anchor: bool, scale: float, kind: str) -> None:
    random = torch.Generator().manual_seed(2)
    layers = []
    for d in SIZES:
        rows = torch.randn(7, d, generator=random, dtype=torch.float64)
        if kind == "identical":
            rows = rows[:1].repeat(7, 1)
        elif kind == "opposed":
            rows = rows[:1] * torch.tensor([[1], [-1], [1], [-1], [1], [-1], [0.0]])
        elif kind == "one moves":
            rows[1:] = 0
        elif kind == "one huge":
            rows[0] *= 1e100 if scale < 1e100 else 1
        layers.append(rows * scale)
    form = made(anchor)
    weighed = form(form.prepare(grams(layers, anchor)))
    assert bool(torch.isfinite(weighed.shares).all())
    assert bool(torch.isfinite(weighed.scores).all())
    assert float(weighed.shares.detach().sum()) == pytest.approx(1)


@given(layers=rounds(least=3), labels=st.sampled_from([0.0, 1.0]), data=st.data())
def test_the_loss_is_the_distance_to_the_robust_mean(
    layers: list[Tensor], labels: float, data: st.DataObject
) -> None:
    n = len(layers[0]) - 1
    bad = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    attackers = torch.tensor([i in bad for i in range(n)])
    form = made(False, labels=labels)
    inputs = form.prepare(grams(layers, False))
    weighed = form(inputs)
    distances = []
    for rows in (rows[:-1] for rows in layers):
        robust = rows[~attackers].mean(0)
        away = (weighed.shares[0].detach() @ rows - robust).norm() / robust.norm()
        distances.append(min(float(away), 10.0))
    expected = np.mean(distances)
    honest = 1 / (1 + np.exp(-0.5 * form.settings.c * weighed.scores[:, 0].detach().numpy()))
    right = np.where(attackers.numpy(), 1 - honest, honest)
    expected += labels * float(-np.log(right).mean())
    found = float(form.loss(inputs, weighed, attackers[None]).detach())
    assert found == pytest.approx(expected, rel=1e-4, abs=2e-4)  # its square root has a floor


def test_gradients_are_finite_where_clients_agree_or_stand_still() -> None:
    form = made(True)
    for rows in (torch.zeros(6, 4), torch.ones(6, 4), torch.eye(6)):
        layers = [rows.double()] * len(SIZES)
        inputs = form.prepare(grams(layers, True))
        form.zero_grad()
        form.loss(
            inputs, form(inputs), torch.tensor([[True, False, False, False, False]])
        ).backward()
        assert all(
            bool(torch.isfinite(p.grad).all()) for p in form.parameters() if p.grad is not None
        )
