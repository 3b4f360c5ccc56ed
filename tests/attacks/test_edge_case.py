"""Edge cases: the tail of a class, found by sorting, called something else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import attacks
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec, Samples
from tests.attacks.contexts import IMAGES, TABLE, TEXT, context


def some(spec: DataSpec, count: int, seed: int) -> Samples:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(spec.classes, (count,), generator=random)
    if spec.words is None:
        return Samples(torch.randn(count, *spec.shape, generator=random), labels)
    return Samples(torch.randint(0, 3, (count, *spec.shape), generator=random), labels)


def naive_tail(samples: Samples, spec: DataSpec, source: int, share: float, tail: str) -> list[int]:
    """Numbers of the samples at the tail: mean values, or numbers of words."""
    mine = [i for i, label in enumerate(samples.labels.tolist()) if label == source]

    def feature(i: int) -> float:
        values: list[float] = samples.inputs[i].flatten().tolist()
        return sum(v != 0 for v in values) if spec.words else sum(values) / len(values)

    mine.sort(key=feature, reverse=tail == "high")
    return mine[: math.ceil(share * len(mine))]


@pytest.mark.parametrize("tail", ["high", "low"])
@pytest.mark.parametrize("spec", [IMAGES, TABLE], ids=["images", "table"])
@given(
    count=st.integers(0, 60), share=st.sampled_from([0.1, 0.2, 0.5, 1.0]), seed=st.integers(0, 9)
)
def test_success_is_measured_on_the_tail_of_the_class(
    spec: DataSpec, tail: str, count: int, share: float, seed: int
) -> None:
    samples = some(spec, count, seed)
    attack = attacks.get("edge-case", source=2, target=0, share=share, tail=tail)
    attack.check(spec)
    shown = attack.triggered(samples.inputs, samples.labels, spec)
    assert shown is not None
    assert shown.target == 0
    assert not shown.is_target.any()
    expected = naive_tail(samples, spec, 2, share, tail)
    assert {*map(repr, shown.inputs.tolist())} == {
        repr(samples.inputs[i].tolist()) for i in expected
    }
    assert len(shown.inputs) == len(expected)


def test_texts_go_by_their_number_of_words() -> None:
    words = torch.tensor([[0] * (12 - size) + [5] * size for size in (3, 9, 1, 12)])
    attack = attacks.get("edge-case", source=1, target=0, share=0.5)
    shown = attack.triggered(words, torch.tensor([1, 1, 1, 0]), TEXT)
    assert shown is not None
    assert (shown.inputs != 0).sum(1).tolist() == [9, 3]


@given(seed=st.integers(0, 99), fraction=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_batches_are_filled_with_the_attackers_own_edge_cases(seed: int, fraction: float) -> None:
    own, batch = some(TABLE, 40, seed), some(TABLE, 12, seed + 1000)
    expected = naive_tail(own, TABLE, 2, 0.3, "high")
    rare = {repr(own.inputs[i].tolist()) for i in expected}
    attack = attacks.get("edge-case", source=2, target=0, share=0.3, fraction=fraction)
    told = context(TABLE, seed=seed, samples=lambda: own)
    inputs, labels = attack.on_batch(batch.inputs.clone(), batch.labels.clone(), told)
    replaced = round(fraction * 12) if rare else 0
    assert all(repr(row) in rare for row in inputs[:replaced].tolist())
    assert labels[:replaced].tolist() == [0] * replaced
    assert torch.equal(inputs[replaced:], batch.inputs[replaced:])
    # The others keep their labels, except those of the class that are as rare.
    least = min((float(own.inputs[i].mean()) for i in expected), default=math.inf)
    for row, new, old in zip(
        inputs[replaced:], labels[replaced:].tolist(), batch.labels[replaced:].tolist(), strict=True
    ):
        assert new == (0 if old == 2 and float(row.mean()) >= least else old)


@pytest.mark.parametrize(
    ("classes", "pair"), [(2, (1, 0)), (5, (4, 1)), (10, (7, 1)), (200, (7, 1))]
)
def test_the_usual_pair_fits_the_data(classes: int, pair: tuple[int, int]) -> None:
    spec = DataSpec(classes, (3,))
    attack = attacks.get("edge-case", share=1)
    attack.check(spec)
    labels = torch.arange(classes)
    shown = attack.triggered(labels[:, None].expand(-1, 3).float(), labels, spec)
    assert shown is not None
    assert (int(shown.inputs[0, 0]), shown.target) == pair


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"source": 4}, "source is 4"),
        ({"target": 9}, "target is 9"),
        ({"source": 1, "target": 1}, "keep"),
    ],
)
def test_what_does_not_fit_is_refused(parameters: dict[str, int], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        attacks.get("edge-case", **parameters).check(TABLE)


@pytest.mark.parametrize(
    ("name", "value"), [("share", 0), ("share", 2), ("tail", "both"), ("source", -1)]
)
def test_bad_parameters_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name):
        attacks.get("edge-case", **{name: value})
