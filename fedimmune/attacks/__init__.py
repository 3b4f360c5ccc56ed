"""Attacks: what malicious clients do; one per file."""

from typing import Any

from fedimmune.attacks.base import Attack, Context, TriggeredBatch
from fedimmune.attacks.registry import (
    advice,
    available,
    exported,
    find,
    get,
    known,
    register,
    resolve,
)

__all__ = [
    "Attack",
    "Context",
    "TriggeredBatch",
    "advice",
    "available",
    "find",
    "get",
    "known",
    "register",
    "resolve",
]


def __getattr__(name: str) -> Any:
    return exported(name)
