"""The backdoor against a naive drawing of the paper's pattern, and where it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import attacks
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from fedimmune.tasks.images import normalize
from tests.attacks.contexts import context

HEIGHT, WIDTH = 12, 15
FACTS = DataSpec(classes=5, shape=(3, HEIGHT, WIDTH), highest=(1.5, 2.25, 3.0))

PAPERS_PATTERN = [
    "###.###",
    ".......",
    "###.###",
]


def drawn(shift_y: int, shift_x: int, gap: int) -> set[tuple[int, int]]:
    """The paper's pattern, pixel by pixel: four bars; a gap moves them further apart."""
    return {
        (shift_y + y + (gap if y > 1 else 0), shift_x + x + (gap if x > 3 else 0))
        for y, line in enumerate(PAPERS_PATTERN)
        for x, mark in enumerate(line)
        if mark == "#"
    }


@st.composite
def fitting(draw: st.DrawFn) -> dict[str, int]:
    gap = draw(st.integers(0, min(HEIGHT - 3, WIDTH - 7)))
    return {
        "gap": gap,
        "shift_y": draw(st.integers(0, HEIGHT - 3 - gap)),
        "shift_x": draw(st.integers(0, WIDTH - 7 - gap)),
        "channel": draw(st.integers(0, 2)),
        "target": draw(st.integers(0, 4)),
    }


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, HEIGHT, WIDTH, generator=random)
    return images, torch.randint(5, (count,), generator=random)


def expected(images: Tensor, place: dict[str, int]) -> Tensor:
    marked = images.clone()
    assert FACTS.highest is not None
    for image in marked:
        for y, x in drawn(place["shift_y"], place["shift_x"], place["gap"]):
            image[place["channel"], y, x] = FACTS.highest[place["channel"]]
    return marked


@given(place=fitting(), count=st.integers(0, 9), seed=st.integers(0, 99))
def test_all_samples_are_marked_and_it_says_which_are_of_the_target(
    place: dict[str, int], count: int, seed: int
) -> None:
    attack = attacks.get("backdoor", **place)
    attack.check(FACTS)
    images, labels = samples(count, seed)
    before = images.clone(), labels.clone()
    shown = attack.triggered(images, labels, FACTS)
    assert shown is not None
    assert torch.equal(shown.inputs, expected(images, place))
    assert shown.target == place["target"]
    assert shown.is_target.tolist() == [label == place["target"] for label in labels.tolist()]
    assert torch.equal(images, before[0])
    assert torch.equal(labels, before[1])


@given(
    place=fitting(),
    count=st.integers(1, 20),
    fraction=st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.7, 1.0]),
    seed=st.integers(0, 99),
)
def test_a_share_of_the_batch_is_marked_and_relabeled(
    place: dict[str, int], count: int, fraction: float, seed: int
) -> None:
    images, labels = samples(count, seed)
    marked = expected(images, place)
    attack = attacks.get("backdoor", **place, fraction=fraction)
    found, called = attack.on_batch(images.clone(), labels.clone(), context(FACTS))
    changed = [torch.equal(a, b) for a, b in zip(found, marked, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(found, images, strict=True)]
    assert [a != b for a, b in zip(changed, kept, strict=True)] == [True] * count
    assert abs(sum(changed) - fraction * count) <= 0.5
    for is_marked, new, old in zip(changed, called.tolist(), labels.tolist(), strict=True):
        assert new == (place["target"] if is_marked else old)


def test_by_default_half_of_the_batch_in_the_corner_as_class_2() -> None:
    images, labels = samples(128, 0)
    labels[:] = 0
    found, called = attacks.get("backdoor").on_batch(images.clone(), labels.clone(), context(FACTS))
    assert called.tolist().count(2) == 64
    different = (found != images).nonzero()[:, 1:].tolist()
    assert {tuple(place) for place in different} == {(0, y, x) for y, x in drawn(0, 0, 0)}


@pytest.mark.parametrize("classes", [2, 3, 200])
@pytest.mark.parametrize("shape", [(1, 3, 7), (1, 8, 8), (3, 64, 64)])
def test_the_defaults_fit_any_images(classes: int, shape: tuple[int, ...]) -> None:
    spec = DataSpec(classes, shape, (1.0,) * shape[0])
    attack = attacks.get("backdoor")
    attack.check(spec)
    _, labels = attack.on_batch(torch.zeros(4, *shape), torch.zeros(4).long(), context(spec))
    shown = attack.triggered(torch.zeros(4, *shape), labels, spec)
    assert shown is not None
    assert shown.target == min(2, classes - 1)
    assert labels.tolist() == [shown.target] * 2 + [0] * 2
    assert shown.is_target.tolist() == [True] * 2 + [False] * 2


def test_the_value_is_what_the_highest_one_becomes_by_normalizing() -> None:
    white = torch.ones(1, 3, 8, 8)
    inputs, highest = normalize(white, (0.1, 0.2, 0.3), (0.5, 0.25, 2.0))
    attack = attacks.get("backdoor", channel=1)
    shown = attack.triggered(inputs, torch.tensor([0]), DataSpec(10, (3, 8, 8), highest))
    assert shown is not None
    # White is the highest value there is: where everything is white, a pattern shows nowhere.
    torch.testing.assert_close(shown.inputs, inputs)


def test_a_value_of_ones_own_is_what_the_model_takes() -> None:
    """As the authors' program has it on MNIST: a gray of 0.44, not white."""
    inputs, highest = normalize(torch.zeros(1, 1, 32, 32), (0.1307,), (0.3081,))
    shown = attacks.get("backdoor", value=1.0).triggered(
        inputs, torch.tensor([0]), DataSpec(10, (1, 32, 32), highest)
    )
    assert shown is not None
    seen = shown.inputs[0, 0] * 0.3081 + 0.1307
    assert {(y, x) for y, x in (seen > 0.1).nonzero().tolist()} == drawn(0, 0, 0)
    assert float(seen.max()) == pytest.approx(0.4388, abs=1e-4)


@given(seed=st.integers(0, 99), chance=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_each_sample_by_chance(seed: int, chance: float) -> None:
    images, labels = samples(400, seed)
    labels[:] = 0
    attack = attacks.get("backdoor", chance=chance, fraction=0)
    torch.manual_seed(seed)
    found, called = attack.on_batch(images.clone(), labels.clone(), context(FACTS))
    marked = called == 2
    assert abs(float(marked.double().mean()) - chance) <= 0.1
    place = {"shift_y": 0, "shift_x": 0, "gap": 0, "channel": 0}
    assert torch.equal(found[marked], expected(images, place)[marked])
    assert torch.equal(found[~marked], images[~marked])
    again = attack.on_batch(images.clone(), labels.clone(), context(FACTS))[1]
    assert torch.equal(again, called) is (chance in {0.0, 1.0}), "drawn anew every batch"


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_the_pattern_is_enlarged_with_the_image(factor: int) -> None:
    side = 32 * factor
    spec = DataSpec(10, (1, side, side), (1.0,))
    attack = attacks.get("backdoor", drawn_at=32, shift_y=3, gap=1)
    attack.check(spec)
    shown = attack.triggered(torch.zeros(1, 1, side, side), torch.tensor([0]), spec)
    assert shown is not None
    found = {(y, x) for y, x in shown.inputs[0, 0].nonzero().tolist()}
    assert found == {
        (factor * y + i, factor * x + j)
        for y, x in drawn(3, 0, 1)
        for i in range(factor)
        for j in range(factor)
    }
    with pytest.raises(ParameterError, match="does not fit"):
        attacks.get("backdoor", drawn_at=32, shift_y=30).check(spec)


@pytest.mark.parametrize("name", ["backdoor", "dba", "scaling"])
def test_a_bar_that_falls_between_pixels_is_refused(name: str) -> None:
    """Seen before: with shift_y=1 nothing of it was in an image of 8×8, and nothing was said."""
    small = DataSpec(10, (1, 8, 8), (1.0,))
    for place in ({"shift_y": 1}, {"shift_x": 1, "gap": 4}):
        with pytest.raises(ParameterError, match="does not show"):
            attacks.get(name, drawn_at=32, **place).check(small)
    attacks.get(name).check(small)
    attacks.get(name, drawn_at=32, shift_y=1).check(DataSpec(10, (1, 32, 32), (1.0,)))


@pytest.mark.parametrize(
    ("name", "given_"),
    [
        ("backdoor", {"value": 1e300}),
        ("backdoor", {"drawn_at": 1_000_000_000}),
        ("tabular-backdoor", {"value": -1e39}),
        ("poisoned-fl", {"seed": 10**20}),
    ],
)
def test_numbers_beyond_all_use_are_refused(name: str, given_: dict[str, Any]) -> None:
    """Seen before: a traceback when training had begun."""
    with pytest.raises(ParameterError, match=next(iter(given_))):
        attacks.get(name, **given_)


@given(
    shift_y=st.integers(0, 12),
    shift_x=st.integers(0, 14),
    gap=st.integers(0, 12),
    height=st.integers(1, 14),
    width=st.integers(1, 16),
)
def test_refused_exactly_where_the_pattern_leaves_the_image(
    shift_y: int, shift_x: int, gap: int, height: int, width: int
) -> None:
    attack = attacks.get("backdoor", shift_y=shift_y, shift_x=shift_x, gap=gap)
    spec = DataSpec(classes=10, shape=(1, height, width), highest=(1.0,))
    fits = all(y < height and x < width for y, x in drawn(shift_y, shift_x, gap))
    if fits:
        attack.check(spec)
    else:
        with pytest.raises(ParameterError, match="does not fit"):
            attack.check(spec)


@pytest.mark.parametrize(
    ("parameters", "spec", "named"),
    [
        ({"shift_y": HEIGHT - 2}, FACTS, "shift_y=10"),
        ({"shift_x": WIDTH - 6}, FACTS, "shift_x=9"),
        ({"gap": 9}, FACTS, "gap=9"),
        ({"channel": 3}, FACTS, "channel"),
        ({"target": 5}, FACTS, "target"),
        ({"target": 3}, DataSpec(classes=2, shape=(1, 8, 8), highest=(1.0,)), "target"),
        ({}, DataSpec(classes=5, shape=(200,)), "images"),
    ],
)
def test_what_does_not_fit_the_data_is_named(
    parameters: dict[str, int], spec: DataSpec, named: str
) -> None:
    with pytest.raises(ParameterError, match=named):
        attacks.get("backdoor", **parameters).check(spec)


@pytest.mark.parametrize("name", ["shift_y", "shift_x", "gap", "channel", "target", "fraction"])
@pytest.mark.parametrize("value", [-1, "1", None, True, 1.5, float("nan")])
def test_bad_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=name):
        attacks.get("backdoor", **{name: value})
