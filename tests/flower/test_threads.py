"""A server computes with as many threads as it was told to, and leaves others theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fedimmune import Updates
from fedimmune.errors import ParameterError
from fedimmune.rules.base import ClientWeights, WeightRule
from tests.flower.federation import FakeGrid, arrays_of, first_model, group, robust

pytestmark = pytest.mark.flower


class Counting(WeightRule):
    """Weighs all alike, and notes how many threads it had."""

    name = "counting"
    summary = "of a test"
    paper = "–"

    def __init__(self) -> None:
        self.threads: list[int] = []

    def weigh(self, updates: Updates) -> ClientWeights:
        self.threads.append(torch.get_num_threads())
        return ClientWeights(torch.full((len(updates),), 1 / len(updates), dtype=torch.float64))


class Broken(Counting):
    """Raises."""

    def weigh(self, updates: Updates) -> ClientWeights:
        raise ZeroDivisionError


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("options", "expected"), [({}, 1), ({"threads": 2}, 2)])
def test_a_rule_has_the_threads_that_were_asked_for(options: dict[str, Any], expected: int) -> None:
    rule = Counting()
    strategy = robust(rule=rule, **options)
    strategy.start(FakeGrid(group(3)), arrays_of(first_model()), num_rounds=2)
    assert rule.threads == [expected] * 2
    assert torch.get_num_threads() == 3


def test_others_keep_their_threads_where_a_rule_raises() -> None:
    strategy = robust(rule=Broken())
    strategy.start(FakeGrid(group(3)), arrays_of(first_model()), num_rounds=1)
    assert strategy.last_record is not None
    assert "ZeroDivisionError" in (strategy.last_record.error or "")
    assert torch.get_num_threads() == 3


def test_what_the_user_computes_keeps_its_threads() -> None:
    seen = []

    def test(_: int, __: Any) -> None:
        seen.append(torch.get_num_threads())

    model, grid = arrays_of(first_model()), FakeGrid(group(3))
    robust().start(grid, model, num_rounds=1, evaluate_fn=test)
    assert seen == [3, 3]


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_a_number_of_threads_is_one(threads: Any) -> None:
    with pytest.raises(ParameterError, match="threads"):
        robust(threads=threads)


def test_two_threads_give_the_same_bits() -> None:
    start: dict[str, Tensor] = {"w": torch.linspace(-1, 1, 70_000)}
    found = [
        robust(rule="median", threads=threads)
        .start(FakeGrid(group(5)), arrays_of(start), num_rounds=1)
        .arrays["w"]
        .data
        for threads in (1, 2)
    ]
    assert found[0] == found[1]
