"""Robust aggregation rules: one per file, made by name with `create`."""

from fedimmune.rules.base import ClientWeights, CoordinateRule, GeometryRule, Rule, WeightRule
from fedimmune.rules.registry import create, find, names, register

__all__ = [
    "ClientWeights",
    "CoordinateRule",
    "GeometryRule",
    "Rule",
    "WeightRule",
    "create",
    "find",
    "names",
    "register",
]
