"""Inner products over rounds, against updates put one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune.adaptive import history as module
from fedimmune.adaptive.history import History
from fedimmune.adaptive.reputation import Memory
from fedimmune.errors import InputError
from fedimmune.io import described, read_description

SHAPES = [(4, 5), (7,)]
KEPT = 0.9


def updates(seed: int, n: int) -> list[Tensor]:
    """Return what n clients send, by layer, with something that all have in common."""
    random = torch.Generator().manual_seed(seed)
    sizes = [20, 7]
    return [
        torch.randn(n, size, generator=random, dtype=torch.float64)
        + torch.randn(1, size, generator=random, dtype=torch.float64)
        for size in sizes
    ]


def gram(layers: list[Tensor]) -> Tensor:
    return torch.stack([rows @ rows.T for rows in layers])


def in_units(rows: Tensor) -> Tensor:
    """Scale rows to the median client's length, and shorten whoever is ten times as long."""
    lengths = rows.norm(dim=1, keepdim=True)
    usual = lengths.median()
    return rows * torch.minimum(1 / usual, 10 / lengths)


def naive(rounds: list[tuple[list[Any], list[Tensor]]], ids: list[Any]) -> Tensor:
    """Cosines of what two clients sent in the rounds that both took part in."""
    found = torch.zeros(len(SHAPES), len(ids), len(ids), dtype=torch.float64)
    for layer in range(len(SHAPES)):
        sent: dict[Any, dict[int, Tensor]] = {one: {} for one in ids}
        for number, (clients, layers) in enumerate(rounds):
            scaled = in_units(layers[layer])
            for row, one in enumerate(clients):
                if one in sent:
                    sent[one][number] = scaled[row]
        for i, one in enumerate(ids):
            for j, other in enumerate(ids):
                common = sorted(sent[one].keys() & sent[other].keys(), reverse=True)
                if common:
                    fade = [KEPT ** (age / 2) for age in range(len(common))]
                    a, b = (
                        torch.cat([f * sent[each][t] for f, t in zip(fade, common, strict=True)])
                        for each in (one, other)
                    )
                    found[layer, i, j] = a @ b / (a.norm() * b.norm())
    return found


@given(
    present=st.lists(
        st.lists(st.sampled_from("abcdef"), min_size=2, unique=True), min_size=1, max_size=6
    ),
    seed=st.integers(0, 999),
)
def test_pairs_are_compared_over_the_rounds_that_both_took_part_in(
    present: list[list[str]], seed: int
) -> None:
    history, rounds = History(), []
    for number, clients in enumerate(present):
        layers = updates(seed + number, len(clients))
        rounds.append((list(clients), layers))
        history = history.after(clients, gram(layers), SHAPES)
    last = present[-1]
    torch.testing.assert_close(
        history.cosines(last), naive(rounds, list(last)), atol=1e-5, rtol=1e-4
    )


def test_a_history_is_a_value() -> None:
    first = History().after("ab", gram(updates(1, 2)), SHAPES)
    kept = first.cosines("ab").clone()
    first.after("ab", gram(updates(2, 2)), SHAPES)
    assert torch.equal(first.cosines("ab"), kept)


def test_another_model_is_another_history() -> None:
    first = History().after("ab", gram(updates(1, 2)), SHAPES)
    again = gram(updates(2, 2))
    fresh = first.after("ab", again, [(20,), (7,)])
    assert torch.equal(fresh.cosines("ab"), History().after("ab", again, SHAPES).cosines("ab"))


def test_who_was_not_seen_for_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NUMBERS", 2 * 4**2)  # two layers, four clients
    history = History()
    for clients in ("ab", "cd", "bc", "ef"):
        history = history.after(clients, gram(updates(3, 2)), SHAPES)
    assert history.clients == ("b", "c", "e", "f")
    assert not history.after("abcde", gram(updates(3, 5)), SHAPES).clients, "too many for any"


def test_one_absurd_round_weighs_no_more_than_one_of_ten_median_lengths() -> None:
    history = History().after("abcde", gram(updates(5, 5)), SHAPES)
    absurd = [rows.clone() for rows in updates(6, 5)]
    for rows in absurd:
        rows[0] *= 1e100
    history = history.after("abcde", gram(absurd), SHAPES)
    assert bool(torch.isfinite(history.cosines("abcde")).all())
    assert float(history.squares.max()) <= 10**2 + 10**2


# -------------------------------------------------------------------- who goes against the others


def played(n: int, against: set[int], count: int, seed: int) -> History:
    """Play rounds of clients that have a direction in common; some send the opposite."""
    history = History()
    signs = torch.tensor([-1.0 if i in against else 1.0 for i in range(n)]).double()
    for number in range(count):
        layers = [signs[:, None] * rows for rows in updates(seed + number, n)]
        history = history.after(range(n), gram(layers), SHAPES)
    return history


@given(data=st.data(), n=st.integers(5, 12), seed=st.integers(0, 999))
def test_a_minority_that_sends_the_opposite_goes_against_the_others(
    data: st.DataObject, n: int, seed: int
) -> None:
    against = data.draw(st.sets(st.integers(0, n - 1), max_size=(n - 1) // 2))
    found = played(n, against, 8, seed).agreement(range(n), torch.ones(n, dtype=torch.bool))
    if not bool(found.any()):
        return  # too little in common: nobody is accused
    assert all((float(found[i]) < 0) == (i in against) for i in range(n))


def test_nobody_is_said_to_in_the_first_rounds_or_among_few() -> None:
    everyone = torch.ones(8, dtype=torch.bool)
    for count in range(1, 5):
        assert not played(8, {1, 2}, count, 3).agreement(range(8), everyone).any()
    assert bool((played(8, {1, 2}, 5, 3).agreement(range(8), everyone)[[1, 2]] < -0.5).all())
    assert not played(4, {1}, 9, 3).agreement(range(4), everyone[:4]).any()


@given(seed=st.integers(0, 999), scale=st.floats(0.1, 1e6))
def test_a_minority_of_the_trusted_cannot_frame_anybody(seed: int, scale: float) -> None:
    """They send the opposite of one client's update, as long as they like."""
    n, victim, liars = 9, 0, [5, 6, 7, 8]
    history = History()
    for number in range(8):
        layers = updates(seed + number, n)
        for rows in layers:
            rows[liars] = -scale * rows[victim]
        history = history.after(range(n), gram(layers), SHAPES)
    found = history.agreement(range(n), torch.ones(n, dtype=torch.bool))
    assert float(found[victim]) >= 0


@given(order=st.permutations(range(7)), seed=st.integers(0, 99))
def test_the_order_of_clients_does_not_matter(order: list[int], seed: int) -> None:
    history, everyone = played(7, {2, 5}, 7, seed), torch.ones(7, dtype=torch.bool)
    found = history.agreement(range(7), everyone)
    torch.testing.assert_close(history.agreement(order, everyone), found[order])


# -------------------------------------------------------------------- kept in a file


def saved(path: Path) -> Memory:
    history = History().after(["a", 7, "c"], gram(updates(1, 3)), SHAPES)
    memory = Memory({"a": -0.5}, rounds=3, history=history)
    memory.save(path)
    return memory


def test_it_is_saved_with_the_memory(tmp_path: Path) -> None:
    history = saved(tmp_path / "memory").history
    found = Memory.load(tmp_path / "memory").history
    assert (found.clients, found.shapes) == (history.clients, history.shapes)
    for name in ("products", "squares", "rounds"):
        assert torch.equal(getattr(found, name), getattr(history, name))


@pytest.mark.parametrize("name", ["products", "squares", "rounds"])
@pytest.mark.parametrize("damage", [torch.nan, torch.inf, -1e9, 1e9, None, "shape"])
def test_a_damaged_one_is_refused(tmp_path: Path, name: str, damage: float | str | None) -> None:
    path = tmp_path / "memory"
    saved(path)
    about = read_description(path)
    tensors = load(path.read_bytes())
    if damage is None:
        del tensors[f"history.{name}"]
    elif isinstance(damage, str):
        tensors[f"history.{name}"] = tensors[f"history.{name}"][..., :-1].contiguous()
    else:
        tensors[f"history.{name}"].view(-1)[1] = damage
    kind = about.pop("format")
    save_file(tensors, path, described(tensors, format=kind, **about))
    with pytest.raises(InputError, match="earlier rounds"):
        Memory.load(path)
