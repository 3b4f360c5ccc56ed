"""Label flipping against the same, one label at a time; its target pair; what is refused."""

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
from tests.attacks.contexts import context

labels_of_ten = st.lists(st.integers(0, 9), max_size=40).map(
    lambda labels: torch.tensor(labels, dtype=torch.int64)
)


def spec(classes: int) -> DataSpec:
    return DataSpec(classes=classes, shape=(1,))


def flipped(labels: Tensor, classes: int = 10, **parameters: Any) -> list[int]:
    attack = attacks.get("label-flip", **parameters)
    attack.check(spec(classes))
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    found, new = attack.on_batch(inputs.clone(), labels.clone(), context(spec(classes)))
    assert torch.equal(found, inputs)
    assert new.dtype == torch.int64
    return new.tolist()


def pairs() -> st.SearchStrategy[list[int]]:
    return st.permutations(range(10)).map(lambda order: order[:2])


@given(labels=labels_of_ten, pair=pairs())
def test_map(labels: Tensor, pair: list[int]) -> None:
    a, b = pair
    new = [b if label == a else label for label in labels.tolist()]
    assert flipped(labels, kind="map", source=a, target=b) == new
    assert flipped(labels, source=a, target=b) == new  # what it is with ten classes


@given(labels=labels_of_ten, pair=pairs())
def test_swap(labels: Tensor, pair: list[int]) -> None:
    a, b = pair
    new = [b if label == a else a if label == b else label for label in labels.tolist()]
    assert flipped(labels, kind="swap", source=a, target=b) == new


@given(labels=labels_of_ten)
def test_reverse_is_nine_minus_y(labels: Tensor) -> None:
    assert flipped(labels, kind="reverse") == [9 - label for label in labels.tolist()]


@given(labels=labels_of_ten, order=st.permutations(range(10)))
def test_permutation(labels: Tensor, order: list[int]) -> None:
    moved = [label for label in range(10) if order[label] != label]
    if moved:
        new = [order[label] for label in labels.tolist()]
        assert flipped(labels, permutation=order, source=moved[0]) == new
        assert flipped(labels, kind="permutation", permutation=tuple(order), source=moved[0]) == new


def test_defaults_are_the_papers() -> None:
    two = torch.tensor([0, 1, 1])
    assert flipped(two, classes=2) == [1, 0, 0]
    ten = torch.arange(10)
    assert flipped(ten) == [0, 7, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("classes", range(2, 12))
@pytest.mark.parametrize("kind", [None, "map", "swap", "reverse"])
def test_defaults_fit_the_data(kind: str | None, classes: int) -> None:
    for source in (None, *range(classes)):
        if kind == "reverse" and source is not None and 2 * source == classes - 1:
            continue  # the middle stays where it is
        labels = torch.arange(classes)
        new = flipped(labels, classes, kind=kind, source=source)
        assert new != labels.tolist()
        assert set(new) <= set(range(classes))
    given_source = attacks.get("label-flip", source=classes - 1)
    given_source.check(spec(classes))


def test_a_permutation_is_measured_on_a_class_that_moves() -> None:
    attack = attacks.get("label-flip", permutation=[0, 1, 3, 2])
    attack.check(spec(4))
    shown = attack.triggered(torch.randn(4, 1), torch.arange(4), spec(4))
    assert shown is not None
    assert shown.target == 3


@given(
    labels=labels_of_ten,
    source=st.integers(0, 9),
    target=st.integers(0, 9),
    kind=st.sampled_from(["map", "swap", "reverse", "permutation"]),
    order=st.permutations(range(10)),
)
def test_success_is_measured_on_the_source_class(
    labels: Tensor, source: int, target: int, kind: str, order: list[int]
) -> None:
    given_target = {"target": target} if kind in {"map", "swap"} else {}
    called = {"permutation": order[source], "reverse": 9 - source}.get(kind, target)
    permutation = {"permutation": order} if kind == "permutation" else {}
    attack = attacks.get("label-flip", kind=kind, source=source, **given_target, **permutation)
    if called == source:
        with pytest.raises(ParameterError, match="keep its label"):
            attack.check(spec(10))
        return
    attack.check(spec(10))
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    before = inputs.clone(), labels.clone()
    shown = attack.triggered(inputs, labels, spec(10))
    assert shown is not None
    assert shown.target == called
    chosen = [i for i, label in enumerate(labels.tolist()) if label == source]
    assert shown.inputs.flatten().tolist() == chosen
    assert shown.is_target.tolist() == [False] * len(chosen)
    assert torch.equal(inputs, before[0])
    assert torch.equal(labels, before[1])


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"kind": "upside-down"}, "kind"),
        ({"source": -1}, "source"),
        ({"target": 1.5}, "target"),
        ({"source": True}, "source"),
        ({"permutation": [0, 0, 1]}, "permutation"),
        ({"permutation": [1, 2, 3]}, "permutation"),
        ({"permutation": "210"}, "permutation"),
        ({"permutation": 5}, "permutation"),
        ({"permutation": [1.5, 0]}, "permutation"),
        ({"kind": "permutation"}, "permutation"),
        ({"kind": "swap", "permutation": [1, 0]}, "permutation"),
        ({"kind": "reverse", "target": 3}, "target"),
        ({"permutation": [1, 0], "target": 0}, "target"),
        ({"color": 1}, "color"),
    ],
)
def test_bad_parameters_are_refused_by_name(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        attacks.get("label-flip", **parameters)


@pytest.mark.parametrize(
    ("parameters", "classes", "named"),
    [
        ({"source": 10}, 10, "source is 10"),
        ({"target": 10}, 10, "target is 10"),
        ({"source": 12, "kind": "reverse"}, 10, "source is 12"),
        ({"source": 4, "kind": "reverse"}, 9, "keep"),
        ({"source": 1, "permutation": [2, 1, 0]}, 3, "keep"),
        ({}, 1, "source is 1"),
        ({"permutation": [1, 0, 2]}, 4, "permutation has 3"),
        ({"permutation": [1, 0, 2, 3]}, 3, "permutation has 4"),
        ({"permutation": [1, 0], "source": 2}, 10, "permutation has 2"),
        ({"permutation": [0, 1, 2]}, 3, "keep"),
        ({"source": 3, "target": 3}, 10, "keep"),
        ({"source": 5}, 2, "source is 5"),
    ],
)
def test_what_does_not_fit_the_data_is_named(
    parameters: dict[str, Any], classes: int, named: str
) -> None:
    with pytest.raises(ParameterError, match=named):
        attacks.get("label-flip", **parameters).check(spec(classes))
