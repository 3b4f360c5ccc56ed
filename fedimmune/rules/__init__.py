"""Robust aggregation rules: one per file, made by name with `get`, or from their classes.

>>> from fedimmune import rules
>>> rules.get("krum", attackers=3)
Krum(attackers=3)
>>> rules.Krum(attackers=3)
Krum(attackers=3)
"""

from typing import Any

from fedimmune.rules.base import ClientWeights, CoordinateRule, GeometryRule, Rule, WeightRule
from fedimmune.rules.preaggregation import ARC, NNM, Bucketing, Clip, PreAggregator
from fedimmune.rules.registry import available, exported, find, get, register

__all__ = [
    "ARC",
    "NNM",
    "Bucketing",
    "ClientWeights",
    "Clip",
    "CoordinateRule",
    "GeometryRule",
    "PreAggregator",
    "Rule",
    "WeightRule",
    "available",
    "find",
    "get",
    "register",
]


def __getattr__(name: str) -> Any:
    return exported(name)
