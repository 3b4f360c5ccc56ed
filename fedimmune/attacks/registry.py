"""The attacks by name. A new attack is one file in this folder."""

from __future__ import annotations

from fedimmune.attacks.base import Attack
from fedimmune.registry import Registry

__all__ = [
    "advice",
    "all_advice",
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


def advice(kind: str) -> str | None:
    """Return what an honest client that looks like this kind of attack should check.

    None if the kind is not known or has no advice. Imports nothing: a defense names the kinds, and
    it may be a stranger's.
    """
    found = known(kind)
    return None if found is None else found.advice


def all_advice() -> dict[str, str]:
    """Return the advice of every attack that is known by now, by its name, for notices."""
    found = {name: advice(name) for name in available()}
    return {name: text for name, text in found.items() if text}
