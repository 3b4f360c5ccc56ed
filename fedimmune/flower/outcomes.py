"""What comes of a round's replies: updates for the rule, and what is written of each client."""

from __future__ import annotations

import math

from fedimmune.flower.replies import Asked, Replies
from fedimmune.guarded import Outcome
from fedimmune.records import ClientRecord
from fedimmune.updates import Updates
from fedimmune.verdicts import Judgement, Verdict, fields_of

__all__ = ["FAILED", "LATE", "client_records", "updates_of"]

FAILED, LATE = "failed", "late"
"""What is said of clients beside a rule's verdicts: nothing came, or it came too late."""


def updates_of(asked: Asked, replies: Replies) -> Updates:
    """Read replies as updates of the global model that was sent; nothing is copied.

    Clients are in the order of their ids: that in which replies arrive must not change a bit.
    """
    states = dict(sorted(replies.states.items()))
    updates = Updates.from_models(states, asked.model, samples=replies.samples or None)
    updates = updates.reject(replies.rejected)
    return updates if asked.anchor is None else updates.with_anchor(asked.anchor)


def client_records(replies: Replies, outcome: Outcome) -> tuple[ClientRecord, ...]:
    """Write down what came of each client, once, in the order of their ids.

    Who attacks is not known here, so that nothing is said about it.
    """
    records: dict[int, ClientRecord] = {}
    if outcome.aggregation is not None:
        for judgement in outcome.aggregation.judgements:
            records.setdefault(judgement.client, _judged(judgement))
    for node, reason in outcome.rejected.items():
        rejected = ClientRecord(id=str(node), verdict=Verdict.REJECTED, reason=reason)
        records.setdefault(node, rejected)
    for node in replies.states:
        unused = ClientRecord(id=str(node), verdict=Verdict.UNUSED, reason="the round was skipped")
        records.setdefault(node, unused)
    for verdict, reasons in ((FAILED, replies.failed), (LATE, replies.late)):
        for node, reason in reasons.items():
            records.setdefault(node, ClientRecord(id=str(node), verdict=verdict, reason=reason))
    for node, count in replies.doubled.items():
        if node in records:
            records[node] = _with_note(records[node], f"sent {count + 1} replies; one counts")
    return tuple(records[node] for node in sorted(records))


def _judged(judgement: Judgement) -> ClientRecord:
    score = judgement.score
    return ClientRecord(
        id=str(judgement.client),
        verdict=judgement.verdict,
        weight=judgement.weight,
        score=score if score is not None and math.isfinite(score) else None,
        reason=judgement.reason or None,
        **fields_of(judgement.suspicion),
    )


def _with_note(record: ClientRecord, note: str) -> ClientRecord:
    reason = f"{record.reason}; {note}" if record.reason else note
    return record.model_copy(update={"reason": reason})
