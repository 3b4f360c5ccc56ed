"""fedimmune's rules and defenses in federations that Flower runs.

A server app changes one line: ``RobustStrategy(rule="median")`` replaces ``FedAvg()``. Client apps
may read what they are told with `verdict_of`, which needs neither Flower nor PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedimmune.flower.anchor import anchor_for as anchor_for
    from fedimmune.flower.client import verdict_of as verdict_of
    from fedimmune.flower.strategy import RobustStrategy as RobustStrategy

_HOMES = {
    "RobustStrategy": "fedimmune.flower.strategy",
    "anchor_for": "fedimmune.flower.anchor",
    "verdict_of": "fedimmune.flower.client",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a name only when it is asked for: clients need no strategy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
