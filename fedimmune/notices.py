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
from fedimmune.verdicts import UNKNOWN, Judgement, Suspicion, Verdict, fields_of

__all__ = ["Notice", "notice_of", "notice_of_record"]

_CHECK_ANYTHING = (
    "check your labels and samples, that you trained from the model that was sent to you, and that "
    "what you send is the model after training"
)

_CHECK_SIGN = (
    "check the sign and the size of what you send: it has to be the model after training, and "
    "training has to lower the loss"
)

_CHECKS = {
    "backdoor": "look for samples with a mark in common (a logo, a stamp, a border) and one label",
    "omniscient": _CHECK_SIGN,
    "sign-flip": _CHECK_SIGN,
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
        ``trusted``, ``reduced``, ``unused``, ``suspected``, ``rejected``, or ``failed`` where
        nothing came.
    seen
        What was seen, in a sentence.
    check
        What to check if it is a mistake; empty where there is nothing to do.
    weight
        Its share of the new model.
    suspicion
        Which attack its update looks most like; None if that cannot be told.
    """

    client: ClientId
    verdict: str
    seen: str
    check: str = ""
    weight: float | None = None
    suspicion: Suspicion | None = None

    @property
    def text(self) -> str:
        """The notice in words."""
        return f"{self.seen} {_capital(self.check)}." if self.check else self.seen

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """Give the notice as plain values for JSON; the client's id is text."""
        return {
            "client": str(self.client),
            "verdict": self.verdict,
            **fields_of(self.suspicion),
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
    j = judgement
    seen, check = _words(j.verdict, rule, j.reason, j.suspicion, j.weight)
    return Notice(j.client, str(j.verdict), seen, check, j.weight, j.suspicion)


def notice_of_record(record: ClientRecord, *, rule: str) -> Notice:
    """Give the notice of a client in a run's record; errors and time-outs accuse nobody."""
    r, suspicion = record, record.suspicion
    seen, check = _words(r.verdict, rule, r.reason or "", suspicion, r.weight)
    return Notice(r.id, r.verdict, seen, check, r.weight, suspicion)


def _words(
    verdict: str, rule: str, reason: str, suspicion: Suspicion | None, weight: float | None
) -> tuple[str, str]:
    """Give what was seen, and what to check."""
    if verdict == Verdict.TRUSTED:
        return "Your update is part of the new model.", ""
    if verdict == Verdict.REDUCED:
        seen = f"Your update is part of the new model, but counts for little: {reason or rule}."
        return seen, f"this is no accusation; if it happens often, {_CHECK_ANYTHING}"
    if verdict == Verdict.UNUSED:
        return f"Your update was not used, which is no accusation: {reason or rule}.", ""
    if verdict == Verdict.REJECTED:
        seen = f"Your update was not valid and was not used: {reason}."
        return seen, "check what you send; nobody takes it for an attack"
    if verdict != Verdict.SUSPECTED:
        seen = f"Nothing valid came from you in this round ({reason or 'no reply'})."
        return seen, "check your connection and your log; this is no accusation"
    taken = "Your update was taken for an attack" + (" and not used" if weight == 0 else "")
    if suspicion is None:
        return f"{taken}: {reason or rule}.", _checks(UNKNOWN)
    when = "" if suspicion.since is None else f", since round {suspicion.since}"
    return f"{taken}{when}. It {suspicion}.", _checks(suspicion.kind)


def _checks(kind: str) -> str:
    return f"if you mean no harm, {_CHECKS.get(kind, _CHECK_ANYTHING)}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
