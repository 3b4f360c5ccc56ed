"""What comes of a round's replies: a new model, or the old one and the reason; and the records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedimmune.aggregation import Aggregation
from fedimmune.errors import FedimmuneError, NotEnoughClientsError
from fedimmune.flower.replies import Asked, Replies
from fedimmune.layers import FLOATS
from fedimmune.records import ClientRecord
from fedimmune.rules import Rule
from fedimmune.updates import Updates
from fedimmune.verdicts import Judgement, Verdict

__all__ = ["FAILED", "LATE", "Outcome", "aggregate", "client_records", "updates_of"]

FAILED, LATE = "failed", "late"
"""What is said of clients beside a rule's verdicts: nothing came, or it came too late."""


@dataclass(frozen=True)
class Outcome:
    """What came of a round.

    Parameters
    ----------
    model
        The new global model; None where the old one stays.
    aggregation
        What the rule said, where it said something.
    error
        Why the old model stays, where it does.
    rejected
        Where no rule said anything: who had been turned away by then, and why.
    """

    model: dict[str, Tensor] | None = None
    aggregation: Aggregation | None = None
    error: str | None = None
    rejected: Mapping[Any, str] = field(default_factory=dict)


def updates_of(asked: Asked, replies: Replies) -> Updates:
    """Read replies as updates of the global model that was sent; nothing is copied.

    Clients are in the order of their ids: that in which replies arrive must not change a bit.
    """
    states = dict(sorted(replies.states.items()))
    updates = Updates.from_models(states, asked.model, samples=replies.samples or None)
    updates = updates.reject(replies.rejected)
    return updates if asked.anchor is None else updates.with_anchor(asked.anchor)


def aggregate(rule: Rule, asked: Asked, updates: Updates, least: int) -> Outcome:
    """Aggregate a round; whatever happens, there is a model after it.

    Parameters
    ----------
    rule
        Which.
    asked
        What the round began with.
    updates
        What clients sent.
    least
        With fewer valid updates the old model stays.
    """
    try:
        if rule.has_history:
            # It must not remember a round that is then skipped for want of finite updates.
            updates = updates.checked()
        if len(updates) < least:
            return Outcome(error=_too_few(len(updates), least), rejected=updates.rejected)
        aggregation = rule.aggregate(updates)
        valid = len(aggregation.judgements) - len(aggregation.rejected)
        if valid < least:  # NaN is found only while reading
            return Outcome(error=_too_few(valid, least), rejected=aggregation.rejected)
        model = aggregation.apply(asked.model)
    except NotEnoughClientsError as error:
        return Outcome(error=str(error), rejected=error.rejected)
    except FedimmuneError as error:
        return Outcome(error=str(error), rejected=updates.rejected)
    except Exception as error:  # a rule of the user's own may raise anything: the run goes on
        problem = f"{rule.name}: {type(error).__name__}: {error}"
        return Outcome(error=problem, rejected=updates.rejected)
    wrong = _problem_of(model, asked.model)
    if wrong is not None:
        return Outcome(None, aggregation, f"{rule.name} gave a model {wrong}")
    return Outcome(model, aggregation)


def _too_few(valid: int, least: int) -> str:
    return f"{valid} valid {'reply' if valid == 1 else 'replies'}, fewer than the {least} needed"


def _problem_of(model: Mapping[str, Tensor], pattern: Mapping[str, Tensor]) -> str | None:
    for name, wanted in pattern.items():
        found = model[name]
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return "of other shapes or kinds of numbers"
        if found.dtype in FLOATS and not _is_finite(found):
            return "with values that are not finite"
    return None


def _is_finite(tensor: Tensor) -> bool:
    # A finite sum proves that all its terms are; one that is not may only be too large.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def client_records(replies: Replies, outcome: Outcome) -> tuple[ClientRecord, ...]:
    """Write down what came of each client, once, in the order of their ids.

    Who attacks is not known here, so that nothing is said about it.
    """
    records: dict[int, ClientRecord] = {}
    if outcome.aggregation is not None:
        for judgement in outcome.aggregation.judgements:
            records.setdefault(judgement.client, _judged(judgement))
    for node, reason in outcome.rejected.items():
        rejected = ClientRecord(id=node, verdict=Verdict.REJECTED, reason=reason)
        records.setdefault(node, rejected)
    for node in replies.states:
        unused = ClientRecord(id=node, verdict=Verdict.UNUSED, reason="the round was skipped")
        records.setdefault(node, unused)
    for verdict, reasons in ((FAILED, replies.failed), (LATE, replies.late)):
        for node, reason in reasons.items():
            records.setdefault(node, ClientRecord(id=node, verdict=verdict, reason=reason))
    for node, count in replies.doubled.items():
        if node in records:
            records[node] = _with_note(records[node], f"sent {count + 1} replies; one counts")
    return tuple(records[node] for node in sorted(records))


def _judged(judgement: Judgement) -> ClientRecord:
    suspicion, score = judgement.suspicion, judgement.score
    return ClientRecord(
        id=judgement.client,
        verdict=judgement.verdict,
        weight=judgement.weight,
        score=score if score is not None and math.isfinite(score) else None,
        reason=judgement.reason or None,
        kind=suspicion.kind if suspicion else None,
        confidence=suspicion.confidence if suspicion else None,
        since=suspicion.since if suspicion else None,
    )


def _with_note(record: ClientRecord, note: str) -> ClientRecord:
    reason = f"{record.reason}; {note}" if record.reason else note
    return record.model_copy(update={"reason": reason})
