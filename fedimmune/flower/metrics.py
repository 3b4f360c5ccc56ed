"""Clients' own metrics, summarized so that a few clients cannot control the figures."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict

from fedimmune._layers import shown
from fedimmune.errors import InputError
from fedimmune.results import ACCUSING, Verdict
from fedimmune.runs.records import RoundRecord

__all__ = [
    "MetricsFunction",
    "check_metrics",
    "figures_of",
    "heard",
    "median_metrics",
    "odd_metrics",
    "sum_up",
]

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]

_log = logging.getLogger("flwr")
_MOST = 10_000
"""Most numbers in the metrics of a reply, lists counted by length. Training loops send tens."""


def median_metrics(contents: Sequence[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return the median of each metric over clients, of single values and lists alike.

    Flower's own default is a mean weighted by the sample counts that clients claim, which one of
    them can set to anything. Values that are not finite, and lists of another length than most
    have, are left out; so is the count itself.
    """
    values: dict[str, list[Any]] = {}
    for content in contents:
        for record in content.metric_records.values():
            for name, value in record.items():
                values.setdefault(name, []).append(value)
    values.pop(weighted_by_key, None)
    found = {name: _middle(given) for name, given in values.items()}
    return MetricRecord({name: value for name, value in found.items() if value is not None})


def _middle(values: Iterable[Any]) -> float | list[float] | None:
    numbers: list[float] = []
    lists: dict[int, list[list[float]]] = {}
    for value in values:
        if isinstance(value, list):
            lists.setdefault(len(value), []).append(value)
        elif _is_finite(value):
            numbers.append(float(value))
    usual = max(lists.values(), key=len, default=[])
    if len(numbers) >= len(usual):
        return median(numbers) if numbers else None
    columns = [[float(v) for v in column if _is_finite(v)] for column in zip(*usual, strict=True)]
    return [median(column) for column in columns] if all(columns) else None


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):  # not a number, or an integer that no float can hold
        return False


def check_metrics(content: RecordDict) -> None:
    """Refuse a reply with more metrics than are read."""
    records = content.metric_records
    count = len(records) + sum(
        max(1, len(value)) if isinstance(value, list) else 1
        for record in records.values()
        for value in record.values()
    )
    if count > _MOST:
        raise InputError(f"sent {count} metrics, of which at most {_MOST} are read")


def odd_metrics(contents: Mapping[int, RecordDict]) -> dict[int, str]:
    """Name who sent other metrics than more than half did; without such a half, nobody.

    The majority decides, not whoever comes first: one odd client must not have all others rejected.
    """
    names = {
        node: tuple(sorted(name for record in content.metric_records.values() for name in record))
        for node, content in contents.items()
    }
    usual, count = Counter(names.values()).most_common(1)[0] if names else ((), 0)
    if 2 * count <= len(names):
        return {}
    return {node: _difference(own, usual) for node, own in names.items() if own != usual}


def _difference(own: Sequence[str], usual: Sequence[str]) -> str:
    extra = list((Counter(own) - Counter(usual)).elements())
    if extra:
        return f"sent a metric that the others did not: {shown(extra[0])}"
    missing = list((Counter(usual) - Counter(own)).elements())
    return f"lacks the metric {shown(missing[0])}, which the others sent"


def figures_of(record: RoundRecord) -> dict[str, float]:
    """Return the figures of a round: number of clients by verdict, and so on."""
    counts = Counter(client.verdict for client in record.clients)
    found: dict[str, float] = {f"fedimmune-{verdict}": counts[verdict] for verdict in Verdict}
    found["fedimmune-skipped"] = int(record.error is not None)
    found["fedimmune-seconds"] = record.seconds.aggregating
    weights = [client.weight for client in record.clients if client.weight is not None]
    if weights:
        found["fedimmune-largest-weight"] = max(weights)
    likely = [one.probability for one in record.clients if one.probability is not None]
    if likely:
        found["fedimmune-expected-attackers"] = sum(likely)
        found["fedimmune-largest-probability"] = max(likely)
    return found


def heard(replies: Iterable[Message]) -> dict[int, RecordDict]:
    """Return the contents of replies by node id: one per client, and not too long."""
    contents: dict[int, RecordDict] = {}
    for reply in replies:
        if isinstance(reply, Message) and reply.has_content():
            contents.setdefault(reply.metadata.src_node_id, reply.content)
    for node, content in list(contents.items()):
        try:
            check_metrics(content)
        except InputError as error:
            _log.warning("metrics of node %d are ignored: it %s", node, error)
            del contents[node]
    return contents


def sum_up(
    contents: Mapping[int, RecordDict],
    record: RoundRecord | None,
    function: MetricsFunction,
    weighted_by_key: str,
) -> MetricRecord | None:
    """Summarize what clients measured; None if there is nothing.

    Parameters
    ----------
    contents
        Replies by node id.
    record
        The record of the round that made the model: clients that it accuses are left out.
    function, weighted_by_key
        Summarize clients' metrics; if their values make it raise, there are none.
    """
    accused = {one.client for one in record.clients if one.verdict in ACCUSING} if record else set()
    given = [contents[node] for node in sorted(contents) if str(node) not in accused]
    try:
        return function(given, weighted_by_key) if given else None
    except Exception as error:  # a function of the user's own, on values of clients'
        _log.warning("clients' metrics could not be summarized: %r", error)
        return MetricRecord()
