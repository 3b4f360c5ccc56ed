"""Aggregation that a run can rely on: a new model, or the old one and the reason for it.

Engines play many rounds. Whatever a round brings (too few clients, a rule of a user's own that
raises, a result that is no model), the next one has to begin with a model that can be trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedimmune.aggregation import Aggregation
from fedimmune.errors import FedimmuneError, NotEnoughClientsError
from fedimmune.layers import FLOATS
from fedimmune.rules import Rule
from fedimmune.updates import ClientId, Updates

__all__ = ["Outcome", "aggregate"]


@dataclass(frozen=True)
class Outcome:
    """What came of aggregating a round.

    Parameters
    ----------
    model
        The new global model; None where the old one stays.
    aggregation
        What the rule said of the clients, where it said something that can be believed.
    error
        Why the old model stays, where it does.
    rejected
        Where there is no aggregation: who had been turned away by then, and why.
    """

    model: dict[str, Tensor] | None = None
    aggregation: Aggregation | None = None
    error: str | None = None
    rejected: Mapping[ClientId, str] = field(default_factory=dict)


def aggregate(
    rule: Rule, updates: Updates, model: Mapping[str, Tensor], *, least: int = 0
) -> Outcome:
    """Aggregate a round and move the model; nothing that a rule does makes this raise.

    Parameters
    ----------
    rule
        Which.
    updates
        What clients sent: changes of `model`.
    model
        The global model, which is left as it is.
    least
        With fewer valid updates the old model stays. The rule's own needs are seen to anyway.
    """
    try:
        if least and rule.has_history:
            # It must not remember a round that is then skipped for want of finite updates.
            updates = updates.checked()
        if len(updates) < least:
            return Outcome(error=_too_few(len(updates), least), rejected=updates.rejected)
        aggregation = rule.aggregate(updates)
        valid = len(aggregation.judgements) - len(aggregation.rejected)
        if valid < least:  # NaN is found only while reading
            return Outcome(error=_too_few(valid, least), rejected=aggregation.rejected)
        moved = aggregation.apply(model)
    except NotEnoughClientsError as error:
        return Outcome(error=str(error), rejected=error.rejected)
    except FedimmuneError as error:
        return Outcome(error=str(error), rejected=updates.rejected)
    except Exception as error:  # a rule of the user's own may raise anything: the run goes on
        problem = f"{rule.name}: {type(error).__name__}: {error}"
        return Outcome(error=problem, rejected=updates.rejected)
    if not _fits(moved, model):
        # What such a rule says of clients is worth no more than what it made of their updates.
        problem = f"{rule.name} gave a model of other shapes or kinds of numbers"
        return Outcome(error=problem, rejected=aggregation.rejected)
    if not all(_is_finite(tensor) for tensor in moved.values()):
        problem = f"{rule.name} gave a model with values that are not finite"
        return Outcome(aggregation=aggregation, error=problem)
    return Outcome(moved, aggregation)


def _too_few(valid: int, least: int) -> str:
    return f"{valid} valid {'reply' if valid == 1 else 'replies'}, fewer than the {least} needed"


def _fits(model: Mapping[str, Tensor], pattern: Mapping[str, Tensor]) -> bool:
    return all(
        model[name].shape == tensor.shape and model[name].dtype == tensor.dtype
        for name, tensor in pattern.items()
    )


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype not in FLOATS:
        return True
    # A finite sum proves that all its terms are; one that is not may only be too large.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
