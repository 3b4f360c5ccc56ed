"""The distributed backdoor attack: every attacker trains on a part of the trigger.

Xie, Huang, Chen, Li, *DBA: Distributed Backdoor Attacks against Federated Learning*, ICLR 2020.
The model is tested with the whole trigger, which no client has ever shown.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedimmune.attacks.backdoor import Backdoor
from fedimmune.attacks.base import Context

__all__ = ["DistributedBackdoor"]

_PARTS = 4


class DistributedBackdoor(Backdoor):
    """Draw one of the backdoor's four bars, every attacker another one, and call it `target`.

    Attackers take the bars in turn, by client; with fewer than four, bars are left that nobody has
    drawn. Success is measured with all four. What the paper calls multi-shot: all attackers attack
    in every round, and their updates are not scaled.

    Parameters
    ----------
    fraction
        Share of each batch; the paper's 20 of 64.
    **pattern
        As for `backdoor`.
    """

    name = "dba"
    summary = "draws a quarter of the backdoor's pattern, every attacker another one"
    paper = "Xie et al. 2020"
    label = "distributed backdoor"

    def __init__(self, *, fraction: float = 20 / 64, **pattern: Any) -> None:
        super().__init__(fraction=fraction, **pattern)

    def mark_own(self, inputs: Tensor, context: Context) -> Tensor:
        return self.draw(inputs, context.spec, [context.attacker % _PARTS])
