"""Robust aggregation rules: one a file, made by name with `create`."""

from fedimmune.rules.base import CoordinateRule, GeometryRule, Rule, Weighing, WeightRule
from fedimmune.rules.registry import create, find, names, register

__all__ = [
    "CoordinateRule",
    "GeometryRule",
    "Rule",
    "Weighing",
    "WeightRule",
    "create",
    "find",
    "names",
    "register",
]
