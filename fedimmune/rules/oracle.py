"""The oracle: the rule that is told who attacks; the upper limit in every comparison.

Its answer is the *robust mean* of Wan and Chen, the plain mean of the benign clients' updates,
which every other rule tries to reach without being told.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fedimmune.errors import ParameterError
from fedimmune.rules.base import ClientWeights, WeightRule
from fedimmune.rules.preaggregation import Before
from fedimmune.updates import ClientId, Updates

__all__ = ["Oracle"]


class Oracle(WeightRule):
    """The plain mean of the benign clients.

    Parameters
    ----------
    attackers
        Ids of the clients that attack; by default nobody does. Others are benign.
    benign
        Instead: ids of the clients that are benign. Others attack.
    before
        As for every rule; see `fedimmune.rules.preaggregation`.
    """

    name = "oracle"
    guards_buffers = False
    squares = False
    summary = "told who attacks: the mean of the others; the limit for every rule"
    is_told_attackers = True
    paper = "the robust mean of Wan and Chen, 2021"

    def __init__(
        self,
        *,
        attackers: Iterable[ClientId] | None = None,
        benign: Iterable[ClientId] | None = None,
        before: Before = "",
    ) -> None:
        super().__init__(before=before)
        if attackers is not None and benign is not None:
            raise ParameterError("oracle: tell it the attackers or the benign clients, not both")
        self.attackers = _ids("attackers", attackers)
        self.benign = _ids("benign", benign)

    def eligible(self, updates: Updates) -> int:
        return sum(self._is_benign(client) for client in updates.clients)

    def weigh(self, updates: Updates) -> ClientWeights:
        benign = [self._is_benign(client) for client in updates.clients]
        weights = torch.tensor(benign, dtype=torch.float64)
        return ClientWeights(weights / weights.sum())

    def _is_benign(self, client: ClientId) -> bool:
        if self.benign is not None:
            return client in self.benign
        return self.attackers is None or client not in self.attackers


def _ids(name: str, clients: Iterable[ClientId] | None) -> frozenset[ClientId] | None:
    if clients is None:
        return None
    if isinstance(clients, str) or not isinstance(clients, Iterable):
        raise ParameterError(f"oracle: {name} must be a list of client ids: {clients!r}")
    return frozenset(clients)
