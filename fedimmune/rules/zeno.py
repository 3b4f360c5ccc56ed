"""Zeno: the updates that improve the model most on data that the server trusts.

A client's score is loss(w) − loss(w + xᵢ) − ρ‖xᵢ‖²; the result is the mean of the n − b updates
with the highest scores.

References
----------
Xie, Koyejo, Gupta: *Zeno: Distributed Stochastic Gradient Descent with Suspicion-based
Fault-tolerance*, ICML 2019. There clients send gradients u, and x = −γu: the paper's ρ is γ² times
ours.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.geometry import measure
from fedimmune.results import Verdict
from fedimmune.rules.base import ClientWeights, Common, WeightRule
from fedimmune.rules.selection import mean_of
from fedimmune.updates import Updates
from fedimmune.validation import check_float, check_int

__all__ = ["Zeno"]

_WORST = -torch.finfo(torch.float64).max


class Zeno(WeightRule):
    """The mean of the updates that lower the server's loss most.

    Parameters
    ----------
    attackers
        b: how many clients are left out. By default as many as for Krum, ⌊(n − 3) / 2⌋.
    penalty
        ρ: how much an update's squared length counts against it.
    """

    name = "zeno"
    summary = "the mean of the n − b updates that lower the server's loss most"
    paper = "Xie et al., ICML 2019"
    symbols = {"attackers": "b", "penalty": "ρ"}
    needs = frozenset({"server_loss"})
    unweighted_means = Verdict.UNUSED
    is_translation_equivariant = False
    is_scale_equivariant = False
    weighing_reads = True
    reads = 3

    def __init__(
        self, *, attackers: int | None = None, penalty: float = 0.0005, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.attackers = (
            None if attackers is None else check_int(self.name, "attackers", attackers, 0)
        )
        self.penalty = check_float(self.name, "penalty", penalty, above=0)

    @property
    def clients_needed(self) -> int:
        return 1 if self.attackers is None else self.attackers + 1

    def breakdown(self, n: int) -> int:
        return min(self.attackers_of(n), (n - 1) // 2)

    def weigh(self, updates: Updates) -> ClientWeights:
        n, lengths = len(updates), measure(updates).norms()
        b = self.attackers_of(n)
        like = updates.state(updates.clients[0])
        nothing = {name: torch.zeros_like(each) for name, each in like.items()}
        # No client's score hangs on its counters, which are not trained.
        counters = {layer.name: nothing[layer.name] for layer in updates.of_kind(Kind.COUNTER)}
        before = _loss(updates, nothing)
        gains = [
            before - _loss(updates, {**updates.state(client), **counters})
            for client in updates.clients
        ]
        scores = torch.tensor(gains, dtype=torch.float64) - self.penalty * lengths.square()
        scores = scores.nan_to_num(nan=_WORST, neginf=_WORST)
        # Where scores tie, ids decide and not the order in which clients are given.
        ids = [repr(client) for client in updates.clients]
        order = sorted(range(n), key=lambda row: (-float(scores[row]), ids[row]))
        kept = torch.zeros(n, dtype=torch.bool)
        kept[order[: n - b]] = True
        return mean_of(kept, score=scores)


def _loss(updates: Updates, state: dict[str, Tensor]) -> float:
    """Return the server's loss with an update; what is not a number is infinitely bad."""
    assert updates.server_loss is not None
    update: Any = state
    if not updates.kind.has_layers:
        update = torch.cat([tensor.reshape(-1) for tensor in state.values()])
    loss = float(updates.server_loss(update))
    return math.inf if math.isnan(loss) else loss
