"""What is known of one client in one round, from the rule to the record, the notice and the report.

Standard library only: a client that reads what it is told needs nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from fedimmune.errors import InputError

__all__ = [
    "ACCUSING",
    "CHECK_ANYTHING",
    "LARGEST_SHARE",
    "OLDER",
    "UNKNOWN",
    "ClientResult",
    "Notice",
    "Suspicion",
    "Verdict",
]

UNKNOWN = "unknown"
"""The kind of an attack that looks like none that was rehearsed."""
OLDER = "it is of an older format, which had `id` instead of `client`: run it anew"
LARGEST_SHARE = 1 + 1e-6
"""Weights and probabilities are at most this: floats that sum to one may be a little more."""
_MOST = sys.float_info.max

CHECK_ANYTHING = (
    "check your labels and samples, that you trained from the model that was sent to you, and that "
    "what you send is the model after training"
)
"""Advice for an honest client that looks like an attacker of no kind that is known."""


class Verdict(StrEnum):
    """What became of a client's update."""

    TRUSTED = "trusted"
    """It is part of the result."""
    REDUCED = "reduced"
    """It is part of the result, with less than half of an equal share: not an accusation."""
    UNUSED = "unused"
    """The rule picks a few clients and did not pick this one: not an accusation."""
    SUSPECTED = "suspected"
    """The rule took it for an attack."""
    REJECTED = "rejected"
    """It was not valid, so that no rule ever saw it."""
    FAILED = "failed"
    """Nothing came."""
    LATE = "late"
    """It came after its round had ended."""


ACCUSING = (Verdict.SUSPECTED, Verdict.REJECTED)
"""Verdicts that hold something against a client; little weight, or none, is not an accusation."""


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
        break; None if the rule does not remember.
    runner_up, runner_up_confidence
        The next likeliest kind, and its probability; None if there is no other.
    advice
        What an honest client should check that looks like this kind, `Attack.advice`. It is part
        of notices, and not of records: those who read one look it up.
    """

    kind: str
    confidence: float
    since: int | None = None
    runner_up: str | None = None
    runner_up_confidence: float | None = None
    advice: str = field(default=CHECK_ANYTHING, compare=False, repr=False)

    def __str__(self) -> str:
        second = ""
        if self.runner_up is not None and self.runner_up_confidence is not None:
            second = f"{self.runner_up} ({self.runner_up_confidence:.0%})"
        if self.kind == UNKNOWN:
            return "looks like no kind that was rehearsed" + (second and f", nearest {second}")
        first = f"looks most like {self.kind} ({self.confidence:.0%})"
        return first + (second and f", then {second}")


_SUSPICION = ("kind", "confidence", "since", "runner_up", "runner_up_confidence")


class Notice(dict[str, Any]):
    """What a client is told about its own part in a round: JSON, and as text with `str`.

    The keys are ``client``, ``verdict``, ``weight``, ``probability``, the fields of a `Suspicion`
    and ``text``.
    """

    def __str__(self) -> str:
        return str(self["text"])


@dataclass(frozen=True)
class ClientResult:
    """One client's part in a round.

    Parameters
    ----------
    client
        Its id; text once it is written down.
    verdict
        What became of its update.
    weight
        Its share of the result, 0 to 1; None if the rule has no weights.
    score
        What the rule measured, in the rule's own unit; None if it measures nothing.
    reason
        Why it was not used, or counts for less; empty if it is trusted.
    suspicion
        What it looks like, to a rule that knows kinds of attack.
    is_attacker
        The truth, which a simulation knows; None if nobody does, as in a real federation.
    probability
        That it attacks, 0 to 1, to a rule whose scores are calibrated; None to any other, and if
        the rule did not judge it by what it has learned.
    """

    client: Any
    verdict: Verdict
    weight: float | None = None
    score: float | None = None
    reason: str = ""
    suspicion: Suspicion | None = None
    is_attacker: bool | None = None
    probability: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON, as in a run's ``rounds.jsonl``.

        Ids are text: many programs round whole numbers of 64 bits.
        """
        return {
            "client": str(self.client),
            "is_attacker": self.is_attacker,
            "verdict": str(self.verdict),
            "weight": self.weight,
            "score": self.score,
            "probability": self.probability,
            "reason": self.reason or None,
            **self._suspicion_fields(),
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read what `to_json` returned, or what a stranger wrote in its place.

        Raises
        ------
        InputError
            It is something else; the message says what.
        """
        if not isinstance(value, Mapping):
            raise InputError("a client is not an object")
        if "id" in value and "client" not in value:
            raise InputError(OLDER)
        unknown = [key for key in value if key not in _KEYS]
        if unknown:
            raise InputError(f"a client has an unknown field {_shown(unknown[0])}")
        client = _text(value, "client")
        if client is None:
            raise InputError("a client has no id (client)")
        try:
            verdict = Verdict(str(value.get("verdict")))
        except ValueError:
            known = ", ".join(Verdict)
            raise InputError(
                f"verdict must be one of {known}, not {_shown(value.get('verdict'))}"
            ) from None
        return cls(
            client,
            verdict,
            _number(value, "weight", 0, LARGEST_SHARE),
            _number(value, "score", -_MOST, _MOST),
            _text(value, "reason") or "",
            _suspicion_in(value),
            _checked(value, "is_attacker", bool, "true or false"),
            _number(value, "probability", 0, LARGEST_SHARE),
        )

    def notice(self, rule: str = "") -> Notice:
        """Return what the client is to be told: what was seen, since when, and what to check.

        Wan and Chen (2021) promise that an honest client that is taken for an attacker can be told
        what it is suspected of, and inspect its data. A notice is about one client alone: nobody
        learns anything about another.

        Parameters
        ----------
        rule
            Name of the rule, if there is no other reason.
        """
        return Notice(
            client=str(self.client),
            verdict=str(self.verdict),
            **self._suspicion_fields(),
            weight=self.weight,
            probability=self._told_probability,
            text=self._words(self.reason or rule),
        )

    @property
    def _told_probability(self) -> float | None:
        """In whole percent: an attacker who is told more could feel its way to what passes."""
        return None if self.probability is None else round(self.probability, 2)

    def _suspicion_fields(self) -> dict[str, Any]:
        return {name: getattr(self.suspicion, name, None) for name in _SUSPICION}

    def _words(self, reason: str) -> str:
        match self.verdict:
            case Verdict.TRUSTED:
                said = f": {self.reason}" if self.reason else ""
                return f"Your update is part of the new model{said}."
            case Verdict.REDUCED:
                return (
                    f"Your update is part of the new model, but counts for little: {reason}. This "
                    f"is not an accusation; if it happens often, {CHECK_ANYTHING}."
                )
            case Verdict.UNUSED:
                return f"Your update was not used, which is not an accusation: {reason}."
            case Verdict.REJECTED:
                return (
                    f"Your update was not valid and was not used: {self.reason}. Check what you "
                    "send; nobody takes it for an attack."
                )
            case Verdict.FAILED | Verdict.LATE:
                return (
                    f"Nothing valid came from you in this round ({self.reason or 'no reply'}). "
                    "Check your connection and your log; this is not an accusation."
                )
        taken = "Your update was taken for an attack" + (
            " and not used" if self.weight == 0 else ""
        )
        if self.probability is not None:
            taken += f" ({self._told_probability:.0%} likely)"
        if self.suspicion is None:
            return f"{taken}: {reason}. If you mean no harm, {CHECK_ANYTHING}."
        since = self.suspicion.since
        when = "" if since is None else f", since round {since}"
        check = self.suspicion.advice
        return f"{taken}{when}. It {self.suspicion}. If you mean no harm, {check}."


_KEYS = (
    *("client", "is_attacker", "verdict", "weight", "score", "probability", "reason"),
    *_SUSPICION,
)


def _suspicion_in(value: Mapping[str, object]) -> Suspicion | None:
    kind, confidence = _text(value, "kind"), _number(value, "confidence", 0, LARGEST_SHARE)
    if kind is None:
        odd = [name for name in _SUSPICION if value.get(name) is not None]
        if odd:
            raise InputError(f"{odd[0]} needs a kind")
        return None
    if confidence is None:
        raise InputError("a kind needs its confidence")
    since: int | None = _checked(value, "since", int, "a round, from 1")
    if since is not None and not 1 <= since < 2**53:
        raise InputError(f"since must be a round, from 1, not {_shown(since)}")
    second = _number(value, "runner_up_confidence", 0, LARGEST_SHARE)
    return Suspicion(kind, confidence, since, _text(value, "runner_up"), second)


def _text(value: Mapping[str, object], name: str) -> str | None:
    found: str | None = _checked(value, name, str, "text")
    return found


def _number(value: Mapping[str, object], name: str, low: float, high: float) -> float | None:
    found: float | None = _checked(value, name, int | float, "a number")
    if found is not None and not low <= found <= high:
        wanted = "finite" if high == _MOST else f"from {low:g} to {high:g}"
        raise InputError(f"{name} must be {wanted}, not {_shown(found)}")
    return None if found is None else float(found)


def _checked(value: Mapping[str, object], name: str, kind: Any, wanted: str) -> Any:
    """Return a field of a certain kind, or None; a truth value is not a number."""
    found = value.get(name)
    if found is not None and (
        not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool)
    ):
        raise InputError(f"{name} must be {wanted}, not {_shown(found)}")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
