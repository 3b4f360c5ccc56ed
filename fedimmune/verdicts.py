"""Verdicts: what a rule thinks of a client, and what it suspects it of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fedimmune.updates import ClientId

__all__ = ["UNKNOWN", "Judgement", "Suspicion", "Verdict"]

UNKNOWN = "unknown"
"""The kind of an attack that cannot be told."""


class Verdict(StrEnum):
    """What came of a client's update."""

    TRUSTED = "trusted"
    """It is part of the result."""
    UNUSED = "unused"
    """The rule picks a few clients and did not pick this one, which is no accusation."""
    SUSPECTED = "suspected"
    """The rule took it for an attack."""
    REJECTED = "rejected"
    """It was not valid, so that no rule ever saw it."""


@dataclass(frozen=True)
class Suspicion:
    """What a rule that knows kinds of attack suspects a client of.

    Parameters
    ----------
    kind
        Name of the attack, or ``unknown`` where it is not sure.
    confidence
        How sure it is of the kind, 0 to 1; for ``unknown``, how sure that it is none it knows.
    since
        The round, counted from 1 by the rule, since which the client has been suspected without a
        break; None where the rule does not remember.
    """

    kind: str
    confidence: float
    since: int | None = None

    def __str__(self) -> str:
        return "an unknown kind of attack" if self.kind == UNKNOWN else self.kind


@dataclass(frozen=True)
class Judgement:
    """One client's part in a round.

    Parameters
    ----------
    client
        Its id.
    verdict
        What came of its update.
    weight
        Its share of the result, 0 to 1; None where the rule has no weights.
    score
        What the rule measured, in the rule's own unit; None where it has none.
    reason
        Why it was not used; empty where it was.
    suspicion
        What it is suspected of, by a rule that knows kinds of attack.
    """

    client: ClientId
    verdict: Verdict
    weight: float | None = None
    score: float | None = None
    reason: str = ""
    suspicion: Suspicion | None = None
