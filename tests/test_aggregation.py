"""Whatever a rule does, a run has a model to go on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from fedimmune import Aggregation, Rule, Updates, rules
from fedimmune.aggregation import aggregate_files, aggregate_safely
from fedimmune.errors import InputError

Model = dict[str, Tensor]
MODEL: Model = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.float16),
    "count": torch.tensor(4),
}
VALUES = st.sampled_from([0.0, 0.1, -2.0, 1e38, -1e38, 3e4, float("nan"), float("inf")])


def moved(*values: float) -> list[Model]:
    """Clients that have moved all of the model by a value each."""
    return [
        {name: (t + v).to(t.dtype) if t.is_floating_point() else t + 1 for name, t in MODEL.items()}
        for v in values
    ]


def updates_of(*values: float) -> Updates:
    clients = {f"c{number}": state for number, state in enumerate(moved(*values))}
    return Updates.from_models(clients, MODEL)


class Odd(Rule):
    """The mean, with its answer changed by hand."""

    name = "odd"
    summary = "of a test"
    paper = "–"

    def __init__(self, change: Callable[[Aggregation], Any]) -> None:
        self._change = change

    def aggregate(self, updates: Any) -> Any:
        return self._change(rules.get("mean").aggregate(updates))

    def _attempt(self, updates: Updates) -> Aggregation:
        raise AssertionError


def with_update(**layers: Any) -> Callable[[Aggregation], Aggregation]:
    return lambda given: replace(given, update={**given.update, **layers})


def with_weight(weight: float) -> Callable[[Aggregation], Aggregation]:
    return lambda given: replace(
        given, clients=(replace(given.clients[0], weight=weight), *given.clients[1:])
    )


def stumble(_: Aggregation) -> Any:
    raise ZeroDivisionError("by nothing")


def test_a_good_round_moves_the_model_as_the_rule_does() -> None:
    updates = updates_of(0.5, 1.0, 1.5)
    outcome = aggregate_safely(rules.get("median"), updates, MODEL)
    said = rules.get("median").aggregate(updates)
    assert outcome.error is None
    assert outcome.model is not None
    expected = said.apply(MODEL)
    assert list(outcome.model) == list(MODEL)
    assert all(torch.equal(outcome.model[name], expected[name]) for name in MODEL)
    assert outcome.aggregation is not None
    assert outcome.aggregation.clients == said.clients
    assert torch.equal(MODEL["weight"], torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    ("change", "words", "is_believed"),
    [
        (stumble, "odd: ZeroDivisionError: by nothing", False),
        (lambda _: None, "odd: AttributeError", False),
        (with_update(weight=torch.ones(4)), "odd: RuntimeError", False),
        (with_update(weight=torch.ones(5, 2, 3)), "other shapes", False),
        (with_update(other=torch.ones(1)), "other layers than the update", False),
        (with_update(weight=torch.tensor(float("nan"))), "not finite", True),
        (with_update(half=torch.tensor(float("-inf"))), "not finite", True),
        (with_update(half=torch.tensor(1e6)), "not finite", True),
        (with_weight(-0.5), "weights that are not shares", False),
        (with_weight(1.5), "weights that are not shares", False),
        (with_weight(float("nan")), "weights that are not shares", False),
    ],
)
def test_what_is_no_model_is_an_error(
    change: Callable[[Aggregation], Any], words: str, is_believed: bool
) -> None:
    outcome = aggregate_safely(Odd(change), updates_of(0.5, float("nan"), 1.5), MODEL)
    assert outcome.model is None
    assert words in (outcome.error or "")
    assert (outcome.aggregation is not None) == is_believed


def test_values_whose_sum_is_too_large_are_finite_all_the_same() -> None:
    model = {"weight": torch.full((4,), 3e38)}
    client = {"weight": torch.full((4,), 2.9e38)}
    outcome = aggregate_safely(rules.get("mean"), Updates.from_models([client], model), model)
    assert outcome.error is None
    assert outcome.model is not None
    assert torch.allclose(outcome.model["weight"], client["weight"])


@given(values=st.lists(VALUES, max_size=6), least=st.integers(0, 6))
def test_there_is_a_finite_model_or_a_reason(values: list[float], least: int) -> None:
    for rule in (rules.get("mean"), rules.get("median"), rules.get("foolsgold", history=True)):
        outcome = aggregate_safely(rule, updates_of(*values), MODEL, least=least)
        assert (outcome.model is None) == (outcome.error is not None)
        finite = {
            f"c{number}": bool(torch.isfinite(state["half"]).all())
            for number, state in enumerate(moved(*values))
        }
        valid = sum(finite.values())
        assert (outcome.model is not None) <= (valid >= max(least, 1))
        assert not any(finite[client] for client in outcome.rejected)
        if outcome.model is not None:
            assert all(bool(torch.isfinite(t).all()) for t in outcome.model.values())


def test_a_round_that_is_skipped_is_not_remembered() -> None:
    rule = rules.get("foolsgold", history=True)
    aggregate_safely(rule, updates_of(0.5, 1.0, float("nan")), MODEL, least=3)
    fresh = rules.get("foolsgold", history=True)
    now = updates_of(0.5, 1.0, -1.0)
    assert rule.aggregate(now).weights == fresh.aggregate(now).weights


def test_no_file_is_written_of_a_model_that_is_not_finite(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in "abc"]
    for file in files:
        save_file({"weight": torch.ones(4)}, file)
    rule = rules.get("norm-bound", noise=1e308)
    with pytest.raises(InputError, match="norm-bound gave a model with values that are not finite"):
        aggregate_files(rule, files, are_updates=True, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
