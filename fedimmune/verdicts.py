"""Verdicts: what a rule thinks of a client, and what it suspects it of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedimmune.updates import ClientId

__all__ = ["ACCUSING", "UNKNOWN", "Judgement", "Suspicion", "Verdict", "fields_of"]

UNKNOWN = "unknown"
"""The kind of an attack that cannot be told."""


class Verdict(StrEnum):
    """What came of a client's update."""

    TRUSTED = "trusted"
    """It is part of the result."""
    REDUCED = "reduced"
    """It is part of the result, with less than half of an equal share, which is no accusation."""
    UNUSED = "unused"
    """The rule picks a few clients and did not pick this one, which is no accusation."""
    SUSPECTED = "suspected"
    """The rule took it for an attack."""
    REJECTED = "rejected"
    """It was not valid, so that no rule ever saw it."""


ACCUSING = (Verdict.SUSPECTED, Verdict.REJECTED)
"""Verdicts that hold something against a client; little weight, or none, is no accusation."""


@dataclass(frozen=True)
class Suspicion:
    """Which rehearsed attack a suspected client looks most like: a guess, never a finding.

    Parameters
    ----------
    kind
        Name of the attack, or ``unknown`` if none is likely enough.
    confidence
        Probability of the kind, 0 to 1; for ``unknown``, that it is none of those rehearsed.
    since
        The round, counted from 1 by the rule, since which the client has been suspected without a
        break; None where the rule does not remember.
    runner_up, runner_up_confidence
        The likeliest kind besides, and its probability; None if there is no other.
    """

    kind: str
    confidence: float
    since: int | None = None
    runner_up: str | None = None
    runner_up_confidence: float | None = None

    def __str__(self) -> str:
        second = ""
        if self.runner_up is not None and self.runner_up_confidence is not None:
            second = f"{self.runner_up} ({self.runner_up_confidence:.0%})"
        if self.kind == UNKNOWN:
            return "looks like no kind that was rehearsed" + (second and f", nearest {second}")
        first = f"looks most like {self.kind} ({self.confidence:.0%})"
        return first + (second and f", then {second}")


def fields_of(suspicion: Suspicion | None) -> dict[str, Any]:
    """Give the fields of a suspicion by name, as records and JSON have them; None if none."""
    return {name: getattr(suspicion, name, None) for name in Suspicion.__dataclass_fields__}


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
        Why it was not used, or counts for less; empty if it is trusted.
    suspicion
        What it looks like, to a rule that knows kinds of attack.
    """

    client: ClientId
    verdict: Verdict
    weight: float | None = None
    score: float | None = None
    reason: str = ""
    suspicion: Suspicion | None = None
