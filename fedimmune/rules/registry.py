"""The rules by name. A new rule is one file and one line here."""

from __future__ import annotations

import inspect
from typing import Any

from fedimmune.errors import ParameterError
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

_RULES: dict[str, type[Rule]] = {}


def register(rule: type[Rule]) -> type[Rule]:
    """Add a rule, under its `name`; also usable as a decorator."""
    if inspect.isabstract(rule):
        raise ParameterError(f"{rule.__name__} is abstract and cannot be registered")
    known = _RULES.setdefault(rule.name, rule)
    if known is not rule:
        raise ParameterError(f"there is a rule {rule.name!r} already: {known.__name__}")
    return rule


for _rule in (
    Mean,
    Median,
    TrimmedMean,
    GeometricMedian,
    Krum,
    MultiKrum,
    FoolsGold,
    Residual,
    Oracle,
):
    register(_rule)


def names() -> tuple[str, ...]:
    """List the names of all rules."""
    return tuple(_RULES)


def find(name: str) -> type[Rule]:
    """Find a rule's class by its name.

    Raises
    ------
    ParameterError
        There is no such rule; the message lists those that there are.
    """
    try:
        return _RULES[name]
    except (KeyError, TypeError):
        raise ParameterError(f"there is no rule {name!r}; there are {', '.join(_RULES)}") from None


def create(name: str, **parameters: Any) -> Rule:
    """Make a rule.

    Parameters
    ----------
    name
        One of `names`.
    **parameters
        The rule's own; see its class, or ``fedimmune rules``.

    Examples
    --------
    >>> create("krum", attackers=3)
    Krum(attackers=3)
    """
    rule = find(name)
    accepted = rule.parameters()
    for parameter in parameters:
        if parameter not in accepted:
            known = ", ".join(
                f"{each} ({rule.symbols[each]})" if each in rule.symbols else each
                for each in accepted
            )
            takes = f"it takes {known}" if known else "it takes none"
            raise ParameterError(f"{name} has no parameter {parameter!r}; {takes}")
    return rule(**parameters)
