"""Notices: what a client is to be told about its own part in a round.

Wan and Chen (2021) promise that a benign client who is taken for an attacker can be told what it is
suspected of, and inspect its data. A notice says what was seen, since when, how sure the server is,
and what to check. It speaks of one client alone: nobody learns anything about another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedimmune.records import ClientRecord
from fedimmune.updates import ClientId
from fedimmune.verdicts import UNKNOWN, Judgement, Suspicion, Verdict

__all__ = ["Notice", "notice_of", "notice_of_record"]

_CHECK_ANYTHING = (
    "check your labels and samples, that you trained from the model that was sent to you, and that "
    "what you send is the model after training"
)

_CHECKS = {
    "backdoor": "look for samples with a mark in common (a logo, a stamp, a border) and one label",
    "omniscient": (
        "check the sign and the size of what you send: it has to be the model after training, and "
        "training has to lower the loss"
    ),
    "label-flip": "check your labels: are classes swapped, shifted by one, or in another order?",
}
"""By kind of attack: how an honest client comes to look like one."""


@dataclass(frozen=True)
class Notice:
    """What one client is told.

    Parameters
    ----------
    client
        Whom it is for.
    verdict
        ``trusted``, ``unused``, ``suspected``, ``rejected``, or ``failed`` where nothing came.
    seen
        What was seen, in a sentence.
    check
        What to check if it is a mistake; empty where there is nothing to do.
    kind, confidence, since
        What it is suspected of, how sure the server is, and since which round; None where that
        cannot be told.
    weight
        Its share of the new model.
    """

    client: ClientId
    verdict: str
    seen: str
    check: str = ""
    kind: str | None = None
    confidence: float | None = None
    since: int | None = None
    weight: float | None = None

    @property
    def text(self) -> str:
        """The notice in words."""
        return f"{self.seen} {_capital(self.check)}." if self.check else self.seen

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """Give the notice as plain values for JSON."""
        return {
            "client": self.client if isinstance(self.client, str | int) else str(self.client),
            "verdict": self.verdict,
            "kind": self.kind,
            "confidence": self.confidence,
            "since": self.since,
            "weight": self.weight,
            "text": self.text,
        }


def notice_of(judgement: Judgement, *, rule: str) -> Notice:
    """Give the notice of a judgement.

    Parameters
    ----------
    judgement
        What came of the client's update.
    rule
        Name of the rule that judged.
    """
    suspicion = judgement.suspicion
    seen, check = _words(judgement.verdict, rule, judgement.reason, suspicion)
    return Notice(
        client=judgement.client,
        verdict=str(judgement.verdict),
        seen=seen,
        check=check,
        kind=suspicion.kind if suspicion else None,
        confidence=suspicion.confidence if suspicion else None,
        since=suspicion.since if suspicion else None,
        weight=judgement.weight,
    )


def notice_of_record(record: ClientRecord, *, rule: str) -> Notice:
    """Give the notice of a client in a run's record; errors and time-outs accuse nobody."""
    suspicion = (
        None
        if record.kind is None
        else Suspicion(record.kind, record.confidence or 0.0, record.since)
    )
    seen, check = _words(record.verdict, rule, record.reason or "", suspicion)
    return Notice(
        client=record.id,
        verdict=record.verdict,
        seen=seen,
        check=check,
        kind=record.kind,
        confidence=record.confidence,
        since=record.since,
        weight=record.weight,
    )


def _words(verdict: str, rule: str, reason: str, suspicion: Suspicion | None) -> tuple[str, str]:
    """Give what was seen, and what to check."""
    if verdict == Verdict.TRUSTED:
        return "Your update is part of the new model.", ""
    if verdict == Verdict.UNUSED:
        return f"Your update was not used, which is no accusation: {reason or rule}.", ""
    if verdict == Verdict.REJECTED:
        seen = f"Your update was not valid and was not used: {reason}."
        return seen, "check what you send; nobody takes it for an attack"
    if verdict != Verdict.SUSPECTED:
        seen = f"Nothing valid came from you in this round ({reason or 'no reply'})."
        return seen, "check your connection and your log; this is no accusation"
    if suspicion is None:
        return f"Your update was not used: {rule} took it for an attack.", _checks(UNKNOWN)
    when = "" if suspicion.since is None else f", since round {suspicion.since}"
    if suspicion.kind == UNKNOWN:
        seen = f"Your update was not used: it was taken for an attack of an unknown kind{when}."
    else:
        sure = f"{suspicion.confidence:.0%} sure"
        seen = (
            f"Your update was not used: it was taken for an attack of the kind "
            f"{suspicion.kind} ({sure}){when}."
        )
    return seen, _checks(suspicion.kind)


def _checks(kind: str) -> str:
    return f"if you mean no harm, {_CHECKS.get(kind, _CHECK_ANYTHING)}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
