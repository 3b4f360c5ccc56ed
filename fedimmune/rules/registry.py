"""The rules by name. A new rule is one file and one line here."""

from __future__ import annotations

from typing import Any

from fedimmune.adaptive.rule import Adaptive
from fedimmune.registry import Registry
from fedimmune.rules.base import Rule
from fedimmune.rules.foolsgold import FoolsGold
from fedimmune.rules.geometric_median import GeometricMedian
from fedimmune.rules.krum import Krum, MultiKrum
from fedimmune.rules.mean import Mean
from fedimmune.rules.median import Median
from fedimmune.rules.oracle import Oracle
from fedimmune.rules.residual import Residual
from fedimmune.rules.trimmed_mean import TrimmedMean

__all__ = ["create", "find", "names", "register"]

_RULES: Registry[Rule] = Registry(
    "rule",
    (
        Mean,
        Median,
        TrimmedMean,
        GeometricMedian,
        Krum,
        MultiKrum,
        FoolsGold,
        Residual,
        Adaptive,
        Oracle,
    ),
    base=Rule,
)

register = _RULES.register
names = _RULES.names
find = _RULES.find


def create(name: str, **parameters: Any) -> Rule:
    """Make a rule.

    Parameters
    ----------
    name
        One of `names`, or ``package.module:Name`` for a class of the user's own.
    **parameters
        The rule's own; see its class, or ``fedimmune rules``.

    Examples
    --------
    >>> create("krum", attackers=3)
    Krum(attackers=3)
    """
    return _RULES.create(name, **parameters)
