"""The rule of a strategy, made of what its user says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fedimmune import rules
from fedimmune.errors import ParameterError
from fedimmune.rules import Rule, find

__all__ = ["rule_of"]


def rule_of(
    rule: str | Rule,
    defence: str | os.PathLike[str] | None,
    parameters: Mapping[str, Any] | None,
    *,
    believes_samples: bool,
) -> Rule:
    """Make a rule, or take one that is made.

    Parameters
    ----------
    rule
        A rule, or the name of one.
    defence
        Short for the parameter ``defence``.
    parameters
        Of the rule.
    believes_samples
        Have a rule that can use sample counts use them, unless its parameters say otherwise.
    """
    if isinstance(rule, Rule):
        if defence is not None or parameters:
            raise ParameterError(
                f"{rule.name} is made already and takes no more parameters: give its name instead"
            )
        return rule
    given = dict(parameters or {})
    if defence is not None:
        given["defence"] = defence
    if believes_samples and "by_samples" in find(rule).parameters():
        given.setdefault("by_samples", True)
    return rules.get(rule, **given)
