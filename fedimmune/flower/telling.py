"""What clients are told about their last update, and how they read it.

A server writes it into the config of a client's next message, a client reads it with `verdict_of`.
This file imports nothing of Flower's and nothing of PyTorch's: clients may be small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Told", "verdict_of"]

_PREFIX = "fedimmune-"


@dataclass(frozen=True)
class Told:
    """What a client is told about its update of an earlier round.

    Parameters
    ----------
    verdict
        ``trusted``, ``reduced``, ``unused``, ``suspected``, ``rejected`` or ``failed``.
    round
        The round that it is about.
    kind
        The attack that its update looks most like, or ``unknown``; None where that cannot be told.
    confidence
        The probability of the kind, 0 to 1.
    runner_up, runner_up_confidence
        The likeliest kind besides, and its probability.
    since
        The round since which the client has been suspected.
    weight
        Its share of the new model; None where the rule has no weights.
    text
        All that in words, and what an honest client should check.
    """

    verdict: str
    round: int | None = None
    kind: str | None = None
    confidence: float | None = None
    since: int | None = None
    runner_up: str | None = None
    runner_up_confidence: float | None = None
    weight: float | None = None
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.verdict

    @property
    def is_accused(self) -> bool:
        """Whether the server takes the client for an attacker."""
        return self.verdict == "suspected"

    def to_config(self) -> dict[str, str | int | float]:
        """Give it as entries of a config, which has no place for None."""
        entries = {name: getattr(self, name) for name in _FIELDS}
        return {_PREFIX + key: value for key, value in entries.items() if value not in (None, "")}


def verdict_of(message: Any, *, configrecord_key: str = "config") -> Told | None:
    """Read on the client's side what the server says about the last update.

    Parameters
    ----------
    message
        The message that a client app was called with, its content, or its config.
    configrecord_key
        Under which name the config is in the message; as the strategy has it.

    Returns
    -------
    Told or None
        None where nothing is said: in a first round, or because the server does not tell.
    """
    found = getattr(message, "content", message) if _has_content(message) else message
    if isinstance(found, Mapping) and configrecord_key in found:
        inner = found[configrecord_key]
        found = inner if isinstance(inner, Mapping) else found
    if not isinstance(found, Mapping) or not isinstance(found.get(_PREFIX + "verdict"), str):
        return None
    entries = {
        key.removeprefix(_PREFIX): value
        for key, value in found.items()
        if isinstance(key, str) and key.startswith(_PREFIX)
    }
    return Told(**{key: value for key, value in entries.items() if key in _FIELDS})


_FIELDS = tuple(Told.__dataclass_fields__)


def _has_content(message: Any) -> bool:
    """Whether there is something in a message; asking one that holds an error for it raises."""
    asked = getattr(message, "has_content", None)
    return bool(asked()) if callable(asked) else False
