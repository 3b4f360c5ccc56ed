"""The sample of recordings in a defense's file: what is drawn, round trip, damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune.adaptive import train
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.adaptive.replay import pack, sample, unpack
from fedimmune.adaptive.split import Split, hold_out
from fedimmune.errors import InputError
from fedimmune.io import described, read_description
from tests.adaptive.rehearsed import LAYERS, recording, recordings


def rounds_of(found: tuple[Recording, ...]) -> int:
    return sum(len(each) for each in found)


# -------------------------------------------------------------------- what is drawn

LENGTHS = st.lists(
    st.tuples(st.sampled_from(["none", "backdoor", "omniscient"]), st.integers(1, 9)),
    min_size=1,
    max_size=8,
)


def of_lengths(lengths: list[tuple[str, int]]) -> tuple[Recording, ...]:
    """Recordings whose rounds can be told apart by their medians: recording × 1000 + round."""
    found = []
    for number, (attack, rounds) in enumerate(lengths):
        one = recording(number, attackers=2, n=3, rounds=rounds, attack=attack, layers={"w": (2,)})
        one.median_distances[:] = 1000 * number + torch.arange(rounds)
        found.append(one)
    return tuple(found)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 40))
def test_rounds_are_drawn_evenly(lengths: list[tuple[str, int]], limit: int) -> None:
    every = of_lengths(lengths)
    drawn = sample(Split(every, every), to_train=limit, to_validate=limit).to_train
    assert rounds_of(drawn) == min(limit, rounds_of(every)), "as many as there may be"
    taken = {each.about.run: each for each in drawn}
    kinds: dict[str, tuple[int, int]] = {}
    for number, (attack, rounds) in enumerate(lengths):
        had, got = kinds.get(attack, (0, 0))
        kinds[attack] = (had + rounds, got + len(taken.get(number, ())))
    # Whoever got less than another, by more than one round, had no more to give.
    for had, got in kinds.values():
        assert got == had or all(got >= other - 1 for _, other in kinds.values())
    for attack in kinds:
        alike = [i for i, (kind, _) in enumerate(lengths) if kind == attack]
        shares = {i: len(taken.get(i, ())) for i in alike}
        for i in alike:
            assert shares[i] == lengths[i][1] or shares[i] >= max(shares.values()) - 1
    for number, one in taken.items():
        rows = (one.median_distances - 1000 * number).long()
        assert torch.equal(rows, rows.unique()), "each round once, in their order"
        assert torch.equal(one.grams, every[number].grams[rows])
        assert torch.equal(one.attackers, every[number].attackers[rows])
        gaps = torch.diff(rows, prepend=rows[:1], append=rows[-1:])
        assert int(gaps.max()) <= -(-len(every[number]) // len(rows)), "from all over it"


def test_runs_that_are_kept_apart_stay_apart() -> None:
    drawn = sample(hold_out(recordings(rounds=30)), to_train=40, to_validate=20)
    assert {each.about.run for each in drawn.to_train} == {0, 1}
    assert {each.about.run for each in drawn.to_validate} == {2}
    assert (rounds_of(drawn.to_train), rounds_of(drawn.to_validate)) == (40, 20)
    again = sample(drawn, to_train=40, to_validate=20)
    assert digest_of(again.every) == digest_of(drawn.every), "a sample of the size is itself"


def test_a_defense_carries_at_most_so_many_rounds_of_what_it_learned() -> None:
    found = [
        recording(run, attackers=count, n=3, rounds=130, attack=attack, layers={"w": (2,)})
        for run in range(3)
        for count, attack in ((0, "none"), (1, "omniscient"), (1, "backdoor"))
    ]
    made = train(found, attacks=["omniscient"], epochs=1, settings={"hidden": 8})
    assert rounds_of(made.replay.to_train) == 240
    assert rounds_of(made.replay.to_validate) == 120
    assert made.replay.kinds == {"omniscient"}, "what it did not learn is none of its own"
    assert {each.about.attack for each in made.replay.every} == {"none", "omniscient"}


# -------------------------------------------------------------------- round trip


def naive_triangle(grams: Tensor) -> Tensor:
    """The bound on what packing may change: a float32's rounding of a cosine."""
    lengths = grams.diagonal(dim1=-2, dim2=-1).sqrt()
    return 1e-7 * lengths[..., :, None] * lengths[..., None, :]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(1, 9),
    st.lists(st.integers(-140, 140), min_size=10, max_size=10),
    st.booleans(),
)
def test_cosines_survive_whatever_the_lengths(
    seed: int, n: int, powers: list[int], anchor: bool
) -> None:
    made = recording(seed, attackers=min(2, n), n=n, rounds=2, anchor=anchor)
    scales = 10.0 ** torch.tensor(powers, dtype=torch.float64)[: n + anchor]
    grams = made.grams * scales[:, None] * scales[None, :]
    grams[0, 0, 0, :] = grams[0, 0, :, 0] = 0  # somebody sent nothing there
    given_ = Recording(made.about, grams, made.attackers, made.median_distances)
    again = unpack(*pack(Split((given_,)), LAYERS), LAYERS).to_train[0]
    assert torch.equal(again.grams.diagonal(dim1=-2, dim2=-1), grams.diagonal(dim1=-2, dim2=-1))
    assert torch.equal(again.grams, again.grams.mT)
    assert bool(((again.grams - grams).abs() <= naive_triangle(grams)).all())


@pytest.mark.parametrize("anchor", [True, False])
def test_it_travels_in_the_file(tmp_path: Path, anchor: bool) -> None:
    found = [
        *recordings(2, rounds=3, anchor=anchor),
        *(recording(run, n=5, rounds=2, anchor=anchor) for run in range(2)),
    ]
    found[0].median_distances[0] = torch.nan
    made = train(found, epochs=1, settings={"hidden": 8})
    made.save(tmp_path / "a.defense")
    again = Defense.load(tmp_path / "a.defense")
    for which in ("to_train", "to_validate"):
        kept, read = getattr(made.replay, which), getattr(again.replay, which)
        assert [each.about for each in read] == [each.about for each in kept]
        for one, other in zip(kept, read, strict=True):
            torch.testing.assert_close(other.grams, one.grams, rtol=1e-6, atol=1e-5)
            assert torch.equal(one.attackers, other.attackers)
            assert one.median_distances.tolist() == pytest.approx(
                other.median_distances.tolist(), nan_ok=True
            )
    again.save(tmp_path / "b.defense")
    once = load((tmp_path / "a.defense").read_bytes())
    twice = load((tmp_path / "b.defense").read_bytes())
    assert once.keys() == twice.keys()
    for name, tensor in once.items():
        torch.testing.assert_close(tensor, twice[name], rtol=0, atol=1.2e-7, equal_nan=True)


def test_other_heads_keep_their_shapes() -> None:
    other = recording(0, layers={**LAYERS, "fc.bias": (9,)})
    same = recording(1)
    tensors, descriptions = pack(Split((other,), (same,)), LAYERS)
    assert ["layers" in each["about"] for each in descriptions] == [True, False]
    again = unpack(tensors, descriptions, LAYERS)
    assert again.to_train[0].about == other.about
    assert again.to_validate[0].about == same.about


# -------------------------------------------------------------------- damage


def at(number: int, what: str, change: Callable[[Tensor], Tensor | None]) -> Any:
    def damage(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        name = f"replay/{number:03}/{what}"
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed.contiguous()

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        at(1, "squares", lambda _: None),
        at(0, "squares", lambda squares: -squares),
        at(0, "squares", lambda squares: squares[:, :, :4]),
        at(0, "squares", lambda squares: squares[:1]),
        at(0, "squares", lambda squares: squares.flatten()),
        at(0, "squares", lambda squares: squares.sum()),
        at(0, "cosines", lambda cosines: cosines * torch.nan),
        at(0, "cosines", lambda cosines: cosines[..., :-1]),
        at(0, "attackers", lambda attackers: attackers[:, :-1]),
        at(0, "attackers", lambda attackers: attackers.flatten()),
        at(0, "median_distances", lambda medians: medians[:1]),
        lambda tensors, _: tensors.update({"replay/more": torch.ones(1)}),
        lambda _, description: description.pop("replay"),
        lambda _, description: description.update(replay="all"),
        lambda _, description: description.update(replay=None),
        lambda _, description: description["replay"].pop(),
        lambda _, description: description["replay"].__setitem__(0, "one"),
        lambda _, description: description["replay"][0].pop("apart"),
        lambda _, description: description["replay"][0].update(about=3),
        lambda _, description: description["replay"][0]["about"].pop("attack"),
        lambda _, description: description["replay"][0]["about"].update(references=["anchor"]),
        lambda _, description: description["replay"][0]["about"].update(layers={"w": [1]}),
        lambda _, description: description["about"].update(lineage=[{"digest": "a"}]),
    ],
)
def test_damage_is_named_with_the_file(tmp_path: Path, trained: Path, damage: Any) -> None:
    tensors, description = load(trained.read_bytes()), read_description(trained)
    damage(tensors, description)
    save_file(tensors, tmp_path / "broken.defense", described(tensors, **description))
    with pytest.raises(InputError, match=r"broken\.defense is damaged") as caught:
        Defense.load(tmp_path / "broken.defense")
    assert "\n" not in str(caught.value)
