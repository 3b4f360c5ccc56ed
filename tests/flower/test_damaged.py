"""Replies damaged in any way: never an exception, never NaN, never a client counted twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedimmune.flower import RobustStrategy
from tests.flower.federation import (
    FakeGrid,
    arrays_of,
    content_of,
    first_model,
    group,
    is_finite,
    is_same,
    reply,
    state_of,
    trained,
)

pytestmark = pytest.mark.flower

NAMES = st.sampled_from([*first_model(), "other", "", "ä" * 300])
NUMBERS = st.one_of(
    st.floats(width=32),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 3.4e38, 0.0]),
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.lists(st.floats(), max_size=3)
)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """An array that may be anything, and be said to be anything else."""
    shape = draw(st.sampled_from([(), (4,), (4, 3), (5,), (1,), (0,), (3, 4)]))
    dtype = draw(st.sampled_from(["float32", "float16", "float64", "int64", "bool", "uint16"]))
    with np.errstate(all="ignore"):
        true = Array(np.full(shape, draw(NUMBERS)).astype(dtype))
    return Array(
        draw(st.sampled_from([true.dtype, "float32", "what"])),
        draw(st.sampled_from([true.shape, (4,), (10**9, 10**9), (-1,)])),
        draw(st.sampled_from([true.stype, "pickle"])),
        draw(st.sampled_from([true.data, true.data[:-2], true.data + b"\0", b""])),
    )


@st.composite
def contents(draw: st.DrawFn, honest: RecordDict) -> RecordDict:
    """An honest reply with some of it damaged."""
    state: dict[str, Any] = dict(honest["arrays"].items())
    for name in draw(st.lists(NAMES, max_size=3)):
        if draw(st.booleans()):
            state.pop(name, None)
        else:
            state[name] = draw(arrays())
    figures: dict[str, Any] = {"num-examples": 10, "loss": 0.5}
    names = st.sampled_from(["num-examples", "loss", "x"])
    figures |= draw(st.dictionaries(names, VALUES, max_size=2))
    records: dict[str, Any] = {"arrays": ArrayRecord(state), "metrics": MetricRecord(figures)}
    others = [MetricRecord({"a": 1}), ConfigRecord({"b": "c"}), ArrayRecord(), ArrayRecord(state)]
    for key in draw(st.lists(st.sampled_from(["arrays", "metrics", "more", "config"]), max_size=2)):
        records[key] = draw(st.sampled_from(others))
    return RecordDict(records)


def _misfiled(draw: Callable[[st.SearchStrategy[Any]], Any], message: Message) -> Message:
    """Change who a message says it is from, or to what it is an answer.

    Never both to those of one honest node: the SuperLink lets nobody speak in another's name.
    """
    about = message.metadata.__dict__
    if draw(st.integers(0, 4)) == 0:
        about["_src_node_id"] = draw(st.sampled_from([100, 102, 105, 2**64 - 1]))
    if draw(st.integers(0, 4)) == 0:
        about["_group_id"] = draw(st.sampled_from(["", "0", "1", "2", "x", "٣"]))
    if draw(st.integers(0, 4)) == 0:
        about["_reply_to_message_id"] = draw(st.sampled_from(["", "message 1", "nothing"]))
    return message


@pytest.mark.parametrize("believe", [False, True])
@given(data=st.data())
def test_whatever_two_of_seven_send_the_others_train(believe: bool, data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(["mean", "median", "trimmed-mean", "multi-krum", "foolsgold"]))
    needed = {"attackers": 1} if rule == "multi-krum" else {}
    strategy = RobustStrategy(rule=rule, rule_parameters=needed, believe_samples=believe)
    start = arrays_of(first_model())
    grid = FakeGrid(group(7))
    messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
    replies: list[Message] = []
    for number, message in enumerate(sorted(messages, key=lambda m: m.metadata.dst_node_id)):
        message.metadata.__dict__["_message_id"] = f"message {number}"
        content = content_of(trained(state_of(message), number))
        if number < 5:
            replies.append(reply(message, content))
            continue
        for _ in range(data.draw(st.integers(0, 3))):
            if data.draw(st.integers(0, 3)) == 0:
                odd = Message(Error(data.draw(st.integers(0, 99)), "\n\0why"), reply_to=message)
            else:
                odd = reply(message, data.draw(contents(content)))
            # Errors may come from the SuperLink, whose word is taken; it lets nobody use its id.
            replies.append(odd if odd.has_error() else _misfiled(data.draw, odd))
    data.draw(st.randoms(use_true_random=False)).shuffle(replies)
    after, metrics = strategy.aggregate_train(1, replies)

    assert after is not None
    assert is_finite(after)
    assert list(after) == list(start)
    assert [(a.dtype, a.shape) for a in after.values()] == [
        (a.dtype, a.shape) for a in start.values()
    ]
    record = strategy.last_record
    assert record is not None
    ids = [int(client.client) for client in record.clients]
    assert len(ids) == len(set(ids))
    assert {100, 101, 102, 103, 104} <= set(ids)
    verdicts = {int(client.client): client.verdict for client in record.clients}
    assert all(verdicts[node] not in {"rejected", "failed", "late"} for node in range(100, 105))
    weights = [client.weight for client in record.clients if client.weight is not None]
    if weights:
        assert sum(weights) == pytest.approx(1)
    assert metrics is not None
    assert metrics["fedimmune-skipped"] == 0
    assert all(np.isfinite(value).all() for value in metrics.values())


@given(order=st.permutations(range(6)))
def test_the_order_of_replies_changes_no_bit(order: list[int]) -> None:
    results = []
    for chosen in (range(6), order):
        strategy = RobustStrategy(rule="geometric-median")
        grid = FakeGrid(group(6))
        asked = strategy.configure_train(1, arrays_of(first_model()), ConfigRecord(), grid)
        replies = sorted(grid.send_and_receive(asked), key=lambda m: m.metadata.src_node_id)
        arrays_after, _ = strategy.aggregate_train(1, [replies[place] for place in chosen])
        assert arrays_after is not None
        results.append(arrays_after)
    assert is_same(*results)


@given(values=st.lists(VALUES, min_size=2, max_size=6))
def test_metrics_of_any_kind_are_survived(values: list[Any]) -> None:
    strategy = RobustStrategy(rule="median")
    model = {"w": torch.ones(2)}
    grid = FakeGrid(group(len(values)))
    messages = strategy.configure_evaluate(1, arrays_of(model), ConfigRecord(), grid)
    replies = [
        Message(RecordDict({"metrics": MetricRecord({"acc": value})}), reply_to=message)
        for message, value in zip(messages, values, strict=False)
    ]
    found = strategy.aggregate_evaluate(1, [*replies, *replies])
    assert found is not None
    assert all(np.isfinite(value).all() for value in found.values())
