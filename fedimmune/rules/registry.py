"""The rules by name. A new rule is one file in this folder."""

from __future__ import annotations

from fedimmune.registry import Registry
from fedimmune.rules.base import Rule

__all__ = ["available", "exported", "find", "get", "register"]

_RULES: Registry[Rule] = Registry(
    "rule",
    base=Rule,
    homes=("fedimmune.rules", "fedimmune.adaptive.rule", "fedimmune.adaptive.spectral"),
)

available = _RULES.available
exported = _RULES.exported
find = _RULES.find
get = _RULES.get
register = _RULES.register
