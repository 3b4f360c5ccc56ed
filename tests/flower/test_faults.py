"""Everything that one client can do: it is named, and the others do not notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from torch import Tensor

from fedimmune.flower import RobustStrategy
from fedimmune.results import ClientResult
from tests.flower.federation import (
    Client,
    FakeGrid,
    altering,
    answering,
    arrays_of,
    content_of,
    failing,
    first_model,
    group,
    is_finite,
    is_same,
    reply,
    silent,
    state_of,
    trained,
)

pytestmark = pytest.mark.flower

ODD = 105


def played(
    clients: dict[int, Client], **options: Any
) -> tuple[ArrayRecord, MetricRecord, dict[int, ClientResult]]:
    """Play one round by hand."""
    strategy = RobustStrategy(**{"rule": "median", **options})
    grid = FakeGrid(clients)
    messages = strategy.configure_train(1, arrays_of(first_model()), ConfigRecord(), grid)
    arrays, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert arrays is not None
    assert metrics is not None
    record = strategy.last_record
    assert record is not None
    by_id = {int(client.client): client for client in record.clients}
    assert len(by_id) == len(record.clients)  # nobody twice
    return arrays, metrics, by_id


def _set(name: str, value: Any) -> Client:
    def change(state: dict[str, Tensor]) -> None:
        state[name] = value(state[name])

    return altering(change)


def _poison(state: dict[str, Tensor], value: float, name: str = "z.weight") -> None:
    state[name].view(-1)[0] = value


def _damaged(state: dict[str, Tensor], name: str, damage: Callable[[Array], Array]) -> RecordDict:
    content = content_of(state)
    record = content.array_records["arrays"]
    record[name] = damage(record[name])
    return content


def _lie_about_shape(state: dict[str, Tensor]) -> RecordDict:
    return _damaged(state, "a.bias", lambda a: Array(a.dtype, (2, 2), a.stype, a.data))


def _truncate(state: dict[str, Tensor]) -> RecordDict:
    return _damaged(state, "z.weight", lambda a: Array(a.dtype, a.shape, a.stype, a.data[:-4]))


def _two_sets(state: dict[str, Tensor]) -> RecordDict:
    content = content_of(state)
    content["more"] = arrays_of(state)
    return content


FAULTS: dict[str, tuple[Client, str, str]] = {
    "raises": (failing(2, "ValueError:\nboom"), "failed", "raised an error: ValueError: boom"),
    "crashes": (failing(8, ""), "failed", "crashed"),
    "does not answer": (silent, "failed", "no reply"),
    "NaN": (altering(lambda s: _poison(s, float("nan"))), "rejected", "'z.weight' holds NaN"),
    "Inf": (altering(lambda s: _poison(s, float("inf"))), "rejected", "'z.weight' holds NaN"),
    "NaN in a buffer": (
        altering(lambda s: _poison(s, float("nan"), "norm.running_mean")),
        "rejected",
        "'norm.running_mean' holds NaN",
    ),
    "other shape": (_set("a.bias", lambda t: t[:3]), "rejected", "has shape (3,), expected (4,)"),
    "shape that broadcasts": (_set("a.bias", lambda t: t[:1]), "rejected", "has shape (1,)"),
    "other width": (_set("a.bias", torch.Tensor.double), "rejected", "holds float64"),
    "integers": (_set("a.bias", lambda t: t.long()), "rejected", "holds int64, expected float32"),
    "floats for a counter": (
        _set("norm.num_batches_tracked", lambda t: t.float()),
        "rejected",
        "holds float32, expected int64",
    ),
    "missing layer": (
        altering(lambda s: {n: t for n, t in s.items() if n != "scale"}),
        "rejected",
        "lacks layer 'scale'",
    ),
    "extra layer": (
        altering(lambda s: {**s, "more": torch.ones(2)}),
        "rejected",
        "a layer that the model has not: 'more'",
    ),
    "no layers": (altering(lambda _: {}), "rejected", "is empty"),
    "no arrays": (
        answering(lambda s: RecordDict({"metrics": content_of(s)["metrics"]})),
        "rejected",
        "sent no arrays",
    ),
    "empty reply": (answering(lambda _: RecordDict()), "rejected", "sent no arrays"),
    "two sets of arrays": (answering(_two_sets), "rejected", "sent 2 sets of arrays"),
    "a shape that lies": (answering(_lie_about_shape), "rejected", "is said to be"),
    "bytes cut off": (answering(_truncate), "rejected", "bytes of values"),
    "big-endian": (
        answering(
            lambda s: RecordDict(
                {
                    "arrays": ArrayRecord(
                        {
                            n: Array(t.numpy().astype(t.numpy().dtype.newbyteorder(">")))
                            for n, t in s.items()
                        }
                    ),
                    "metrics": MetricRecord({"num-examples": 1, "loss": 0.0}),
                }
            )
        ),
        "rejected",
        "holds >",
    ),
    "extra metric": (
        answering(lambda s: content_of(s, {"num-examples": 1, "loss": 0.0, "more": 1})),
        "rejected",
        "a metric that the others did not: 'more'",
    ),
    "no num-examples": (
        answering(lambda s: content_of(s, {"loss": 0.0})),
        "rejected",
        "lacks the metric 'num-examples'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rule", ["mean", "median", "geometric-median"])
def test_a_fault_is_named_and_the_others_do_not_notice(fault: str, rule: str) -> None:
    client, verdict, reason = FAULTS[fault]
    alone, _, _ = played(group(5), rule=rule)
    arrays, metrics, records = played(group(5, odd=client), rule=rule)
    assert is_same(arrays, alone)
    assert records[ODD].verdict == verdict
    assert reason in (records[ODD].reason or "")
    assert metrics[f"fedimmune-{verdict}"] == 1
    assert metrics["fedimmune-trusted"] == 5
    assert metrics["fedimmune-suspected"] == 0
    assert metrics["loss"] == 0.5


@pytest.mark.parametrize("count", [-30, 0, 10**12, float("nan"), float("inf"), [1, 2], 1e308])
def test_sample_counts_are_not_used_unless_they_are_believed(count: Any) -> None:
    claiming = answering(lambda s: content_of(s, {"num-examples": count, "loss": 0.5}))
    usual = answering(lambda s: content_of(s, {"num-examples": 10, "loss": 0.5}))
    expected, _, _ = played(group(5, odd=usual), rule="mean")
    arrays, metrics, records = played(group(5, odd=claiming), rule="mean")
    assert is_same(arrays, expected)
    assert records[ODD].verdict == "trusted"
    assert "num-examples" not in metrics


@pytest.mark.parametrize("count", [-30, 0, float("nan"), float("inf"), [1, 2]])
def test_absurd_counts_are_rejected_where_counts_are_believed(count: Any) -> None:
    claiming = answering(lambda s: content_of(s, {"num-examples": count, "loss": 0.5}))
    alone, _, _ = played(group(5), rule="mean", believe_samples=True)
    arrays, _, records = played(group(5, odd=claiming), rule="mean", believe_samples=True)
    assert is_same(arrays, alone)
    assert records[ODD].verdict == "rejected"
    assert "num-examples" in (records[ODD].reason or "")


@pytest.mark.parametrize("count", [30, 10**12, 1e300])
def test_believed_counts_are_capped(count: float) -> None:
    claiming = answering(lambda s: content_of(s, {"num-examples": count, "loss": 0.5}))
    options: dict[str, Any] = {
        "rule": "mean",
        "rule_parameters": {"cap": 1000.0},
        "believe_samples": True,
        "most_samples": 20,
    }
    _, _, records = played(group(5, odd=claiming), **options)
    assert records[ODD].weight == pytest.approx(2 / 7)  # 20 of 5 × 10 + 20


def test_an_answer_counts_once() -> None:
    def twice(message: Message) -> list[Message]:
        first = reply(message, content_of(trained(state_of(message), 9)))
        far = {name: tensor * 0 + 1 for name, tensor in state_of(message).items()}
        return [first, reply(message, content_of(far)), reply(message, content_of(far))]

    def once(message: Message) -> list[Message]:
        return twice(message)[:1]

    expected, _, _ = played(group(5, odd=once), rule="mean")
    arrays, metrics, records = played(group(5, odd=twice), rule="mean")
    assert is_same(arrays, expected)
    assert records[ODD].verdict == "trusted"
    assert "sent 3 replies" in (records[ODD].reason or "")
    assert metrics["fedimmune-trusted"] == 6


def _as(node: int | None = None, group_id: str | None = None) -> Client:
    """A client whose reply bears another sender or another round."""

    def answer(message: Message) -> list[Message]:
        given = reply(message, content_of(trained(state_of(message), 9)))
        if node is not None:
            given.metadata.__dict__["_src_node_id"] = node
        if group_id is not None:
            given.metadata.__dict__["_group_id"] = group_id
        return [given]

    return answer


def test_who_was_not_asked_is_not_heard() -> None:
    alone, _, _ = played(group(5), rule="mean")
    arrays, _, records = played(group(5, odd=_as(node=999)), rule="mean")
    assert is_same(arrays, alone)
    assert records[999].verdict == "rejected"
    assert "not asked" in (records[999].reason or "")
    assert records[ODD].verdict == "failed"


def test_nobody_fails_another() -> None:
    def accusing(message: Message) -> list[Message]:
        given = Message(Error(2, "not me"), reply_to=message)
        given.metadata.__dict__["_src_node_id"] = 100
        return [given]

    _, _, records = played(group(5, odd=accusing), rule="mean")
    assert records[100].verdict == "trusted"
    assert records[ODD].verdict == "failed"


def test_nobody_answers_for_another() -> None:
    alone, _, _ = played(group(5), rule="mean")
    arrays, _, records = played(group(5, odd=_as(node=100)), rule="mean")
    assert is_same(arrays, alone)
    assert records[100].verdict == "trusted"
    assert records[ODD].verdict == "failed"


@pytest.mark.parametrize(
    ("said", "verdict"), [("0", "late"), ("2", "rejected"), ("what?", "rejected"), ("", "trusted")]
)
def test_a_reply_to_another_round_does_not_count(said: str, verdict: str) -> None:
    _, _, records = played(group(5, odd=_as(group_id=said)), rule="mean")
    assert records[ODD].verdict == verdict


def test_the_superlink_answers_for_who_is_gone() -> None:
    def gone(message: Message) -> list[Message]:
        given = Message(Error(5, "Node Unavailable"), reply_to=message)
        given.metadata.__dict__["_src_node_id"] = 1  # the SuperLink's own id
        return [given]

    _, _, records = played(group(5, odd=gone))
    assert 1 not in records
    assert records[ODD].verdict == "failed"
    assert "the node is gone" in (records[ODD].reason or "")


def test_without_a_majority_metrics_reject_nobody() -> None:
    other = answering(lambda s: content_of(s, {"num-examples": 1, "acc": 0.0}))
    _, _, records = played(group(2, third=other, fourth=other))
    assert {record.verdict for record in records.values()} == {"trusted"}


def test_words_of_clients_stay_on_one_line() -> None:
    _, _, records = played(group(5, odd=failing(2, "a\nb\x1b[31m\t" + "x" * 10_000)))
    reason = records[ODD].reason or ""
    assert reason.isprintable()
    assert len(reason) < 300


@pytest.mark.parametrize("valid", [0, 1, 2, 3, 4])
def test_with_too_few_replies_the_model_stays(valid: int) -> None:
    clients = group(valid, **{f"dead{k}": silent for k in range(5 - valid)})
    arrays, metrics, records = played(clients, rule="mean")
    assert metrics["fedimmune-skipped"] == (valid < 3)
    assert is_same(arrays, arrays_of(first_model())) == (valid < 3)
    assert sum(record.verdict == "failed" for record in records.values()) == 5 - valid
    assert not any(record.verdict == "suspected" for record in records.values())


def test_nan_counts_as_too_few() -> None:
    nan = FAULTS["NaN"][0]
    arrays, metrics, records = played(group(2, a=nan, b=nan, c=nan), rule="mean")
    assert metrics["fedimmune-skipped"] == 1
    assert is_same(arrays, arrays_of(first_model()))
    assert [records[node].verdict for node in sorted(records, key=int)] == [
        "unused",
        "unused",
        "rejected",
        "rejected",
        "rejected",
    ]


def test_a_rule_that_fails_ends_no_run() -> None:
    # Krum needs more clients than there are.
    arrays, metrics, _ = played(group(3), rule="krum", rule_parameters={"attackers": 3})
    assert is_same(arrays, arrays_of(first_model()))
    assert metrics["fedimmune-skipped"] == 1


def test_large_values_leave_the_model_finite() -> None:
    def enlarge(state: dict[str, Tensor]) -> None:
        for tensor in state.values():
            if tensor.dtype == torch.float32:
                tensor.fill_(3e38)

    huge = altering(enlarge)
    for rule in ("mean", "median", "geometric-median", "foolsgold"):
        arrays, _, _ = played(group(5, odd=huge), rule=rule)
        assert is_finite(arrays)


def test_a_reply_that_is_none_of_flowers_kinds_is_survived() -> None:
    strategy = RobustStrategy(rule="mean")
    grid = FakeGrid(group(5))
    messages = strategy.configure_train(1, arrays_of(first_model()), ConfigRecord(), grid)
    replies: list[Any] = [*grid.send_and_receive(messages), None, 3, object(), np.zeros(2)]
    _, metrics = strategy.aggregate_train(1, replies)
    assert metrics is not None
    assert metrics["fedimmune-trusted"] == 5
