"""The attacks by name. A new attack is one file in this folder."""

from __future__ import annotations

from fedimmune.attacks.base import Attack
from fedimmune.registry import Registry
from fedimmune.results import CHECK_ANYTHING

__all__ = [
    "advice",
    "available",
    "exported",
    "find",
    "get",
    "known",
    "register",
    "resolve",
]

_ATTACKS: Registry[Attack] = Registry("attack", base=Attack, homes=("fedimmune.attacks",))

available = _ATTACKS.available
exported = _ATTACKS.exported
find = _ATTACKS.find
get = _ATTACKS.get
known = _ATTACKS.known
register = _ATTACKS.register
resolve = _ATTACKS.resolve


def advice(kind: str) -> str:
    """Return what an honest client that looks like this kind of attack should check.

    Imports nobody's code: a defense names the kinds, and it may be a stranger's.
    """
    found = known(kind)
    return CHECK_ANYTHING if found is None else found.advice
