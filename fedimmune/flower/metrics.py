"""Clients' own metrics, summed up so that a few of them cannot own the figures."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict

from fedimmune.errors import InputError
from fedimmune.flower.contents import check_metrics
from fedimmune.flower.outcomes import FAILED, LATE
from fedimmune.records import RoundRecord
from fedimmune.verdicts import ACCUSING, Verdict

__all__ = ["MetricsFunction", "figures_of", "median_metrics", "sum_up"]

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]

_log = logging.getLogger("flwr")


def median_metrics(contents: Sequence[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Give the median of each metric over clients, single values and lists alike.

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
    except (TypeError, OverflowError):  # no number, or a whole one that no float can hold
        return False


def figures_of(
    record: RoundRecord,
    contents: Mapping[Any, RecordDict],
    function: MetricsFunction,
    weighted_by_key: str,
) -> MetricRecord:
    """Give a round in figures: what its clients measured, and what came of them.

    Parameters
    ----------
    record
        Of the round.
    contents
        Replies by node id; those of suspects and of rejected clients are left out.
    function, weighted_by_key
        What sums clients' metrics up.
    """
    unheard = _accused(record)
    used = [contents[node] for node in sorted(contents) if str(node) not in unheard]
    metrics = _safely(function, used, weighted_by_key)
    counts = Counter(client.verdict for client in record.clients)
    for verdict in (*Verdict, FAILED, LATE):
        metrics[f"fedimmune-{verdict}"] = counts[verdict]
    metrics["fedimmune-skipped"] = int(record.error is not None)
    metrics["fedimmune-seconds"] = record.seconds.aggregating
    weights = [client.weight for client in record.clients if client.weight is not None]
    if weights:
        metrics["fedimmune-largest-weight"] = max(weights)
    return metrics


def sum_up(
    replies: Iterable[Message],
    last: RoundRecord | None,
    function: MetricsFunction,
    weighted_by_key: str,
) -> MetricRecord | None:
    """Sum up what clients measured when they tested the model, each of them once.

    Parameters
    ----------
    replies
        Of the clients.
    last
        Of the round that made the model: those whom it suspects or rejects are not heard.
    function, weighted_by_key
        What sums clients' metrics up.
    """
    unheard = set() if last is None else _accused(last)
    contents: dict[int, RecordDict] = {}
    for reply in replies:
        if isinstance(reply, Message) and reply.has_content():
            contents.setdefault(reply.metadata.src_node_id, reply.content)
    for node, content in sorted(contents.items()):
        try:
            check_metrics(content)
        except InputError as error:
            _log.warning("metrics of node %d are not heard: it %s", node, error)
            del contents[node]
    contents = {node: each for node, each in contents.items() if str(node) not in unheard}
    return _safely(function, contents.values(), weighted_by_key) if contents else None


def _accused(record: RoundRecord) -> set[str]:
    return {client.id for client in record.clients if client.verdict in ACCUSING}


def _safely(
    function: MetricsFunction, contents: Iterable[RecordDict], weighted_by_key: str
) -> MetricRecord:
    """Call what sums metrics up; where clients' values make it raise, there are none."""
    given = list(contents)
    if not given:
        return MetricRecord()
    try:
        return function(given, weighted_by_key)
    except Exception as error:  # a function of the user's own, on values of clients'
        _log.warning("clients' metrics could not be summed up: %r", error)
        return MetricRecord()
