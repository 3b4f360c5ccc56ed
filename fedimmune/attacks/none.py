"""No attack."""

from __future__ import annotations

from fedimmune.attacks.base import Attack

__all__ = ["NoAttack"]


class NoAttack(Attack):
    """Every client is honest."""

    name = "none"
    summary = "every client is honest"
