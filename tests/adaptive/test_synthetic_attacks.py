"""Synthetic attacks: what is made on inner products is what updates would have been."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedimmune.adaptive import synthetic_attacks, training
from fedimmune.adaptive.synthetic_attacks import improvise, vary_honest

ROUNDS, LAYERS, N, WIDTH = 5, 3, 8, 40


def rounds(seed: int, rows: int = N + 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    shape = (ROUNDS, LAYERS, rows, WIDTH)
    return torch.randn(shape, generator=random).double() + torch.randn(
        ROUNDS, LAYERS, 1, WIDTH, generator=random
    )


def nobody() -> Tensor:
    return torch.zeros(ROUNDS, N, dtype=torch.bool)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_a_recipe_is_what_senders_would_have_sent(seed: int) -> None:
    """Against updates that are mixed one by one, with new directions as new columns."""
    updates, random = rounds(seed), torch.Generator().manual_seed(seed)
    senders = torch.rand(ROUNDS, N, generator=random) < 0.3
    senders[:, 0] = False  # somebody is honest
    parts = [torch.randn(ROUNDS, LAYERS, generator=random).double() for _ in range(6)]
    parts[3].zero_()  # the span's combination is drawn inside; it has a test of its own
    recipe = synthetic_attacks._Recipe(*parts)
    grams = updates @ updates.mT
    found = synthetic_attacks._sent(grams, senders, recipe, torch.Generator().manual_seed(1))
    for r in range(ROUNDS):
        honest = (~senders[r]).nonzero().flatten().tolist()
        for layer in range(LAYERS):
            rows = updates[r, layer]
            usual = rows[:N].norm(dim=1).square().median().sqrt()
            wide = torch.cat([rows, torch.zeros(N + 1, N + 1).double()], 1)
            mean = rows[honest].mean(0)
            candidates = []
            for copied in honest:
                sent = wide.clone()
                for i in senders[r].nonzero().flatten().tolist():
                    sent[i] = 0
                    own, of_mean, one, _, shared, private = (p[r, layer] for p in parts)
                    sent[i, :WIDTH] = own * rows[i] + of_mean * mean + one * rows[copied]
                    sent[i, WIDTH] = shared * usual
                    sent[i, WIDTH + 1 + i] = private * usual
                candidates.append(sent @ sent.T)
            assert any(torch.allclose(found[r, layer], c, atol=1e-8) for c in candidates)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), rehearsed=st.booleans())
def test_attackers_are_a_minority_and_the_honest_are_as_they_were(
    seed: int, rehearsed: bool
) -> None:
    updates, random = rounds(seed), torch.Generator().manual_seed(seed)
    grams, attackers = updates @ updates.mT, nobody()
    if rehearsed:
        attackers[:, :2] = True
    made, who = improvise(grams, attackers, random)
    assert bool((who.sum(-1) >= 1).all())
    assert bool((who.sum(-1) < N / 2).all())
    if rehearsed:
        assert torch.equal(who, attackers), "what was rehearsed is varied, by the same clients"
    rows = torch.cat([~who, torch.ones(ROUNDS, 1, dtype=torch.bool)], 1)  # the anchor's too
    kept = (rows[:, None, :, None] & rows[:, None, None, :]).expand_as(grams)
    torch.testing.assert_close(made[kept], grams[kept], atol=1e-9, rtol=1e-9)
    assert float(torch.linalg.eigvalsh(made).min()) > -1e-6 * float(made.abs().max())
    assert bool(torch.isfinite(made).all())


def test_every_round_is_changed_and_no_two_draws_are_alike() -> None:
    updates, random = rounds(1), torch.Generator().manual_seed(1)
    grams = updates @ updates.mT
    one, _ = improvise(grams, nobody(), random)
    other, _ = improvise(grams, nobody(), random)
    assert not torch.allclose(one, other)
    assert all(not torch.allclose(a, b) for a, b in zip(one, grams, strict=True))


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_odd_clients_are_honest_ones_and_within_bounds(seed: int) -> None:
    updates, random = rounds(seed), torch.Generator().manual_seed(seed)
    grams, attackers = updates @ updates.mT, nobody()
    attackers[:, 3] = True
    made = vary_honest(grams, attackers, random)
    before, after = (g.diagonal(dim1=-2, dim2=-1)[..., :N].sqrt() for g in (grams, made))
    torch.testing.assert_close(after[..., 3], before[..., 3])
    ratio = after / before
    assert float(ratio.max()) < 5 * 2.1 * 1.3 * 1.5
    assert float(ratio.min()) > 1 / (5 * 2.1 * 1.3)


def test_one_client_alone_is_left_alone() -> None:
    grams = torch.ones(2, 3, 1, 1).double()
    made, who = improvise(grams, torch.zeros(2, 1, dtype=torch.bool), torch.Generator())
    assert torch.equal(made, grams)
    assert not bool(who.any())


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_white_noise_is_as_long_as_the_median_client_and_alike_in_all_values(seed: int) -> None:
    updates, sizes = rounds(seed), [7, 300, 5_000]
    grams = updates @ updates.mT
    by_layer = grams.diagonal(dim1=-2, dim2=-1)[..., :N]
    squares = synthetic_attacks._white(grams, N, sizes) ** 2 * by_layer.median(-1).values
    torch.testing.assert_close(squares.sum(1), by_layer.sum(1).median(-1).values)
    per_value = squares / torch.tensor(sizes)
    torch.testing.assert_close(per_value, per_value[:, :1].expand_as(per_value))


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), hostile=st.integers(0, 3))
def test_a_batch_without_some_clients_is_of_rounds_of_the_others(seed: int, hostile: int) -> None:
    updates, random = rounds(seed), torch.Generator().manual_seed(seed)
    updates[:, 0, :, 0] = torch.arange(N + 1.0)  # tells who is who
    attackers = nobody()
    attackers[:, :hostile] = True
    grams = updates @ updates.mT
    found, who = training._present(grams, attackers, random)
    count = who.shape[1]
    assert 4 <= count <= N
    assert bool((2 * who.sum(-1) < count).all()), "attackers stay a minority"
    for made, whole, hostile_there, there in zip(found, grams, who, attackers, strict=True):
        lengths = whole[0].diagonal().tolist()
        rows = [lengths.index(value) for value in made[0].diagonal().tolist()]
        assert rows == sorted(set(rows))
        assert rows[-1] == N, "the anchor stays"
        assert torch.equal(made, whole[:, rows][:, :, rows])
        assert torch.equal(hostile_there, there[rows[:-1]])
