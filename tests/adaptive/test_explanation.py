"""Why a client was suspected: twins that could exist, blame that adds up, the layer at fault."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import factorial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune.adaptive.defense import Defense, DefenseAbout, make_form
from fedimmune.adaptive.explanation import Explanation, _shapley, explain, with_twin
from fedimmune.errors import InputError
from tests.adaptive.rehearsed import LAYERS, grams_of, honest_round, negated

N = 8


def a_round(seed: int, n: int = N, odd: Sequence[int] = ()) -> list[dict[str, Tensor]]:
    sent = honest_round(n, torch.Generator().manual_seed(seed))
    return [negated(state) if i in odd else state for i, state in enumerate(sent)]


# -------------------------------------------------------------------- twins


def gram_with_real_twin(rows: Tensor, i: int, j: int) -> Tensor:
    """Make the twin as a vector: the part of j within the others' span, and as much elsewhere."""
    others = [k for k in range(len(rows)) if k not in {i, j}]
    span = rows[others].T
    within = span @ torch.linalg.lstsq(span, rows[j]).solution if others else 0 * rows[j]
    room = torch.cat([rows, torch.zeros(len(rows), 1, dtype=rows.dtype)], 1)
    left = (rows[j] - within).norm()
    room[i] = torch.cat([within, left[None]])
    return room @ room.T


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 7),
    size=st.sampled_from([9, 40]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_a_twin_is_one_of_real_vectors(seed: int, n: int, size: int, scale: float) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = scale * torch.randn(n, size, generator=random, dtype=torch.float64)
    i, j = torch.randperm(n, generator=random)[:2].tolist()
    gram = rows @ rows.T
    found = with_twin(gram[None], i, j)[0]
    torch.testing.assert_close(
        found / scale**2, gram_with_real_twin(rows, i, j) / scale**2, atol=1e-8, rtol=1e-8
    )
    least = float(torch.linalg.eigvalsh(found)[0])
    assert least > -1e-9 * float(found.diagonal().max())
    rest = [k for k in range(n) if k != i]
    assert torch.equal(found[rest][:, rest], gram[rest][:, rest]), "nobody else is touched"


def test_where_the_others_span_everything_a_twin_is_a_copy() -> None:
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    copied = rows.clone()
    copied[0] = rows[4]
    found = with_twin((rows @ rows.T)[None], 0, 4)[0]
    torch.testing.assert_close(found, copied @ copied.T)


def test_twins_of_nothing() -> None:
    zeros = torch.zeros(2, 4, 4, dtype=torch.float64)
    assert torch.equal(with_twin(zeros, 1, 2), zeros)


# -------------------------------------------------------------------- blame


def naive_shares(values: dict[frozenset[int], float], layers: int) -> list[float]:
    """The mean gain over all orders, one after the other."""
    shares = [0.0] * layers
    for order in itertools.permutations(range(layers)):
        there: frozenset[int] = frozenset()
        for layer in order:
            shares[layer] += values[there | {layer}] - values[there]
            there |= {layer}
    return [share / factorial(layers) for share in shares]


@given(seed=st.integers(0, 1000), layers=st.integers(1, 5))
def test_blame_is_the_mean_over_all_orders(seed: int, layers: int) -> None:
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2**layers, generator=random, dtype=torch.float64)

    def value(sets: Tensor) -> Tensor:
        return drawn[(sets.long() * 2 ** torch.arange(layers)).sum(1)]

    every = [
        torch.tensor([[k >> bit & 1 for bit in range(layers)]]).bool() for k in range(len(drawn))
    ]
    by_set = {frozenset(one[0].nonzero().flatten().tolist()): float(value(one)) for one in every}
    found = _shapley(value, layers, 0)
    assert found == pytest.approx(naive_shares(by_set, layers))


def test_with_many_layers_orders_are_drawn_and_blame_still_adds_up() -> None:
    layers = 30
    parts = torch.linspace(-1, 2, layers, dtype=torch.float64)

    def additive(sets: Tensor) -> Tensor:
        return (sets * parts).sum(1)

    assert _shapley(additive, layers, 8) == pytest.approx(parts.tolist())

    def together(sets: Tensor) -> Tensor:
        return (sets[:, 3] & sets[:, 20]).double()

    found = _shapley(together, layers, 8)
    assert sum(found) == pytest.approx(1)
    assert found[3] == pytest.approx(0.5), "forwards and backwards, each is last as often"
    assert found[20] == pytest.approx(0.5)


# -------------------------------------------------------------------- whole explanations


def explained(
    defense: Defense,
    states: Sequence[dict[str, Tensor]],
    client: int,
    evidence: Tensor | None = None,
) -> Explanation:
    grams = grams_of(states, list(LAYERS))
    return explain(defense, tuple(range(N)), client, grams, evidence)


@pytest.fixture(scope="module")
def loaded(trained: Path) -> Defense:
    return Defense.load(trained)


def test_an_attacker_and_an_honest_client(loaded: Defense) -> None:
    for seed in range(5):
        states = a_round(seed, odd=(2, 5))
        guilty, honest = explained(loaded, states, 2), explained(loaded, states, 0)
        weights, scores = loaded.weigh(grams_of(states, list(LAYERS)))
        assert guilty.found.score == pytest.approx(float(scores[2]))
        assert guilty.found.weight == pytest.approx(float(weights[2]), abs=1e-12) == 0
        assert guilty.stand_in not in {2, 5}
        assert guilty.ordinary.weight > 0
        assert [one.layer for one in guilty.layers] == list(LAYERS)
        for found in (guilty, honest):
            difference = found.ordinary.score - found.found.score
            assert sum(one.blame for one in found.layers) == pytest.approx(difference)
        assert honest.found.weight > 0
        assert abs(honest.ordinary.score - honest.found.score) < 0.5
        assert not guilty.is_memory_alone
        assert guilty.held is None


def test_the_layer_at_fault_is_found(loaded: Defense) -> None:
    for seed, layer in itertools.product(range(4), LAYERS):
        states = a_round(seed)
        states[3] = {**states[3], layer: -states[3][layer]}
        found = explained(loaded, states, 3)
        worst = max(found.layers, key=lambda one: one.blame)
        assert worst.layer == layer
        # Ordinary in that layer, nothing is odd any more; odd in it alone is what it is.
        assert worst.put_right.score > found.found.score
        assert worst.alone.score < found.ordinary.score


def test_scores_if_one_layer_had_been_ordinary_follow_from_the_twin(loaded: Defense) -> None:
    states = a_round(4, odd=(2, 5))
    grams = grams_of(states, list(LAYERS))
    found = explained(loaded, states, 5)
    twin = with_twin(grams, 5, int(str(found.stand_in)))
    for place, one in enumerate(found.layers):
        right, alone = grams.clone(), twin.clone()
        right[place], alone[place] = twin[place], grams[place]
        for given_, standing in ((right, one.put_right), (alone, one.alone)):
            weights, scores = loaded.weigh(given_)
            assert standing.score == pytest.approx(float(scores[5]))
            assert standing.weight == pytest.approx(float(weights[5]))


def test_the_order_of_clients_does_not_matter(loaded: Defense) -> None:
    states = a_round(7, odd=(1, 6))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1)).tolist()
    first = explained(loaded, states, 6)
    grams = grams_of([states[k] for k in order], list(LAYERS))
    second = explain(loaded, tuple(order), 6, grams)
    assert second.stand_in == first.stand_in
    assert [one.blame for one in second.layers] == pytest.approx(
        [one.blame for one in first.layers]
    )


def test_memory_is_not_part_of_it_and_is_told_apart(loaded: Defense) -> None:
    states = a_round(9)
    without = explained(loaded, states, 3)
    evidence = torch.zeros(N, dtype=torch.float64)
    evidence[3] = -8.0
    found = explained(loaded, states, 3, evidence)
    assert without.found.weight > 0
    assert found.found == without.found
    assert found.layers == without.layers
    assert found.held == -8.0
    assert found.with_memory.weight == 0
    assert found.is_memory_alone
    assert not explained(loaded, states, 4, evidence).is_memory_alone


def test_the_papers_form_and_the_anchor_can_be_explained(anchored: Path) -> None:
    states = a_round(2, N + 1, odd=(0,))
    grams = grams_of(states, list(LAYERS))
    with_anchor = explain(Defense.load(anchored), tuple(range(N)), 0, grams)
    form = make_form("paper", {"layers": 3})
    about = DefenseAbout(task="t", layers=LAYERS, form="paper", settings=form.settings.model_dump())
    by_axes = explain(Defense(form, about), tuple(range(N)), 0, grams[:, :N, :N])
    for found in (with_anchor, by_axes):
        difference = found.ordinary.score - found.found.score
        assert sum(one.blame for one in found.layers) == pytest.approx(difference)


def test_who_cannot_be_explained(loaded: Defense) -> None:
    grams = grams_of(a_round(0), list(LAYERS))
    with pytest.raises(InputError, match="client 99 was not weighed"):
        explain(loaded, tuple(range(N)), 99, grams)
    with pytest.raises(InputError, match="no other client"):
        explain(loaded, (0,), 0, grams[:, :1, :1])
