"""The end of a round: replies become updates, updates a model and a record of everybody."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from flwr.app import Message, RecordDict

from fedimmune.flower.arrays import record_of
from fedimmune.flower.contents import Counting
from fedimmune.flower.course import FinishedRound
from fedimmune.flower.outcomes import client_records, updates_of
from fedimmune.flower.replies import Asked, sort_replies
from fedimmune.guarded import aggregate
from fedimmune.records import RoundRecord, Seconds
from fedimmune.rules import Rule
from fedimmune.traces import trace_of

__all__ = ["conclude"]


def conclude(
    rule: Rule,
    asked: Asked,
    replies: Iterable[Message],
    counting: Counting,
    least: int | None,
) -> tuple[FinishedRound, Mapping[int, RecordDict]]:
    """Aggregate what came back; nothing that a client sends makes this raise.

    Parameters
    ----------
    rule
        Which.
    asked
        What the round began with.
    replies
        As Flower hands them over, in any order.
    counting
        What to make of sample counts.
    least
        With fewer valid replies the old model stays; None for more than half of those asked.

    Returns
    -------
    done
        The round's record, its trace and the model after it.
    contents
        The whole replies that could be used, by node id.
    """
    began = time.perf_counter()
    waited = began - asked.began
    found = sort_replies(replies, asked, counting, waited)
    updates = updates_of(asked, found)
    outcome = aggregate(rule, updates, asked.model, least=least or len(asked.messages) // 2 + 1)
    arrays = asked.arrays if outcome.model is None else record_of(outcome.model)
    spent = time.perf_counter() - began
    record = RoundRecord(
        round=asked.number,
        clients=client_records(found, outcome),
        warnings=() if outcome.aggregation is None else outcome.aggregation.warnings,
        error=outcome.error,
        seconds=Seconds(training=round(waited, 4), aggregating=round(spent, 4), testing=0.0),
    )
    # Where the rule could not answer, what it last looked at was of an earlier round.
    basis = None if outcome.aggregation is None else rule.basis
    trace = trace_of(asked.number, updates, basis, ())
    return FinishedRound(record, trace, arrays), found.contents
