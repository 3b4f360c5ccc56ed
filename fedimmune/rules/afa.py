"""AFA: clients unlike the mean of the others are left out, and who is often left out is blocked.

Clients are weighed by p, the probability that they are good. Repeatedly: the cosines of the good
ones with their weighted mean; if their mean is below their median, those more than ξ standard
deviations below the median are bad, else those as far above; ξ grows by Δξ; until nobody is bad.
p is the mean of a Beta distribution, α₀ plus the number of rounds in which the client was good and
β₀ plus that in which it was bad. Who is bad more often than not with a probability above δ is
blocked for good.

References
----------
Muñoz-González, Co, Lupu: *Byzantine-Robust Federated Machine Learning through Adaptive Model
Averaging*, arXiv:1909.05125. Clients count equally: the server cannot verify their numbers of
samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Unpack

import torch
from torch import Tensor

from fedimmune._inputs import savable_ids
from fedimmune.errors import InputError, ParameterError
from fedimmune.geometry import Geometry
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.history import Remembering
from fedimmune.updates import ClientId, Updates
from fedimmune.validation import check_float, check_int, check_open_fraction

__all__ = ["AFA"]

_INDISTINCT = 1e-9
"""Cosines that differ by less than this do not differ."""
_MOST = 1000
"""Rounds that a client may begin with: with more, none is ever blocked."""
_BLOCKED = "blocked: it was bad in too many rounds"


class AFA(Remembering, GeometryRule):
    """The mean of clients that agree with each other, by how often they have; the bad are blocked.

    Parameters
    ----------
    slack
        ξ₀: how many standard deviations from the median cosine are tolerated at first.
    step
        Δξ: how many more each time.
    good, bad
        α₀, β₀: with how many good and bad rounds each client begins.
    certainty
        δ: how sure it must be that a client is bad more often than not before it is blocked.
    """

    name = "afa"
    summary = "the mean of clients that agree, by how often they did; blocks who rarely did"
    paper = "Muñoz-González et al. 2019"
    symbols = {"slack": "ξ₀", "step": "Δξ", "good": "α₀", "bad": "β₀", "certainty": "δ"}
    is_translation_equivariant = False

    def __init__(
        self,
        *,
        slack: float = 2.0,
        step: float = 0.5,
        good: int = 3,
        bad: int = 3,
        certainty: float = 0.95,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.slack = check_float(self.name, "slack", slack, above=0)
        self.step = check_float(self.name, "step", step, above=0)
        self.good = check_int(self.name, "good", good, 1, _MOST)
        self.bad = check_int(self.name, "bad", bad, 1, _MOST)
        self.certainty = check_open_fraction(self.name, "certainty", certainty, below=1)
        if _mostly_bad(self.good, self.bad) > self.certainty:
            raise ParameterError(
                f"{self.name}: with good={self.good}, bad={self.bad} and certainty="
                f"{self.certainty:g} every client is blocked before its first round"
            )
        self.rounds: dict[ClientId, tuple[int, int]] = {}
        """In how many rounds each client was good, and bad."""
        self._now = self.rounds

    def is_blocked(self, client: ClientId) -> bool:
        """Whether a client has been bad so often that it is not heard any more."""
        good, bad = self.rounds.get(client, (0, 0))
        return _mostly_bad(self.good + good, self.bad + bad) > self.certainty

    def eligible(self, updates: Updates) -> int:
        return sum(not self.is_blocked(client) for client in updates.clients)

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        past = [self.rounds.get(client, (0, 0)) for client in geometry.clients]
        counts = torch.tensor(past, dtype=torch.float64)
        counts += torch.tensor([self.good, self.bad])
        heard = torch.tensor([not self.is_blocked(client) for client in geometry.clients])
        belief = counts[:, 0] / counts.sum(1)
        gram, is_good, slack, found = geometry.gram(), heard.clone(), self.slack, True
        while found:
            weights = torch.where(is_good, belief, 0.0)
            weights = weights / weights.sum()
            cosines = _cosines_with_mean(gram, weights)
            is_bad = is_good & _far_from_median(cosines, is_good, slack)
            is_good, slack, found = is_good & ~is_bad, slack + self.step, bool(is_bad.any())
        self._now = {**self.rounds}
        for client, before, takes_part, good in zip(
            geometry.clients, past, heard.tolist(), is_good.tolist(), strict=True
        ):
            if takes_part:
                self._now[client] = (before[0] + good, before[1] + (not good))
        blocked = [
            c for c, takes in zip(geometry.clients, heard.tolist(), strict=True) if not takes
        ]
        return ClientWeights(weights, cosines, reasons=dict.fromkeys(blocked, _BLOCKED))

    def finish(self, updates: Updates) -> None:
        self.rounds = self._now

    def remembered(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        counts = torch.tensor(list(self.rounds.values()), dtype=torch.float64).reshape(-1, 2)
        return {"rounds": counts}, {"clients": savable_ids(list(self.rounds))}

    def recall(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        clients, counts = savable_ids(about.get("clients")), tensors.get("rounds")
        if counts is None or counts.shape != (len(clients), 2):
            raise InputError("its clients and tensors disagree")
        if bool((counts < 0).any()) or not torch.equal(counts, counts.round()):
            raise InputError("it holds numbers of rounds that are none")
        pairs = [(int(good), int(bad)) for good, bad in counts.tolist()]
        self.rounds = dict(zip(clients, pairs, strict=True))


def _cosines_with_mean(gram: Tensor, weights: Tensor) -> Tensor:
    """Cosines of the updates with their weighted mean, (n,); 0 for an update of length 0."""
    products = gram @ weights
    lengths = gram.diagonal().clamp(min=0).sqrt() * (weights @ products).clamp(min=0).sqrt()
    return torch.where(lengths > 0, products / lengths, 0.0).clamp(-1, 1)


def _far_from_median(cosines: Tensor, among: Tensor, slack: float) -> Tensor:
    """Return which cosines lie too far on the side of the median on which the mean is, (n,)."""
    seen = cosines[among]
    middle = seen.quantile(0.5)
    bound = (slack * seen.std(correction=0)).clamp(min=_INDISTINCT)
    below = bool(seen.mean() < middle)
    return cosines < middle - bound if below else cosines > middle + bound


@cache
def _mostly_bad(good: int, bad: int) -> float:
    """Return the probability that p < ½, for p ~ Beta(good, bad) with whole numbers."""
    tosses = good + bad - 1
    return float(sum(math.comb(tosses, heads) for heads in range(good, tosses + 1)) / 2**tosses)
