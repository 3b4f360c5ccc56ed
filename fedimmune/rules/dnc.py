"""DnC, divide and conquer: whoever lies farthest out along the direction of most variance goes.

With all coordinates the scores follow from the inner products alone, exactly and without lots.

References
----------
Shejwalkar, Houmansadr: *Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses
for Federated Learning*, NDSS 2021.
"""

from __future__ import annotations

import math
from itertools import accumulate
from random import Random
from typing import Unpack

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.geometry import Geometry
from fedimmune.results import Verdict
from fedimmune.rules.attackers import WithAttackers
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.updates import Updates
from fedimmune.validation import check_float, check_int

__all__ = ["DnC"]


class DnC(WithAttackers, GeometryRule):
    """The mean of the updates that lie least far out along the direction of most variance.

    With v the first right singular vector of the centered updates, the score of client i is
    ⟨xᵢ − mean, v⟩²; the n − ⌊cf⌋ lowest are averaged. In the sampled form this is done several
    times, each time on some coordinates alone, and those are averaged who were kept every time; if
    there is nobody, the model stays as it is.

    One attacker is found however far out it is. A second one can hide behind it in another
    direction.

    Parameters
    ----------
    attackers
        How many clients may attack (f); 2f + 1 are needed. By default ⌊(n − 1) / 2⌋.
    filter
        c: for each attacker that many clients are left out.
    sample
        Look at so many coordinates, drawn by lot. By default at all, which needs no lots.
    iterations
        With `sample`: how many times coordinates are drawn. The paper has 1, others 5.
    seed
        Lots are drawn from it and the round's number.
    """

    name = "dnc"
    summary = "the mean of those least far out along the direction of most variance"
    paper = "Shejwalkar and Houmansadr, NDSS 2021"
    symbols = {"attackers": "f", "filter": "c", "sample": "r"}
    unweighted_means = Verdict.UNUSED

    def __init__(
        self,
        *,
        attackers: int | None = None,
        filter: float = 1.0,  # noqa: A002 - the paper's word
        sample: int | None = None,
        iterations: int = 1,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(attackers=attackers, **common)
        self.filter = check_float(self.name, "filter", filter, above=0)
        self.sample = None if sample is None else check_int(self.name, "sample", sample, 1)
        self.iterations = check_int(self.name, "iterations", iterations, 1)
        self.seed = check_int(self.name, "seed", seed, 0)

    @property
    def clients_needed(self) -> int:
        return max(super().clients_needed, math.floor(self.filter * (self.attackers or 0)) + 1)

    def attackers_of(self, n: int) -> int:
        most = super().attackers_of(n)
        return most if self.attackers else min(most, math.ceil(n / self.filter) - 1)

    def breakdown(self, n: int) -> int:
        # Seen along one direction, another attacker in another direction looks ordinary; and what
        # is not sampled is not seen at all.
        return min(1, n - self._kept(n)) if self.sample is None else 0

    def _kept(self, n: int) -> int:
        return n - math.floor(self.filter * self.attackers_of(n))

    @property
    def reads_values(self) -> bool:
        return self.sample is not None

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        scores = _scores(geometry.seen_from(geometry.middle()))
        return ClientWeights.of_kept(self._lowest(scores), scores)

    def weigh(self, updates: Updates) -> ClientWeights:
        if self.sample is None:
            return super().weigh(updates)
        scores = [_scores(values @ values.T) for values in self._drawn(updates, self.sample)]
        mean = torch.stack(scores).mean(0)
        kept = set.intersection(*(set(self._lowest(each)) for each in scores))
        if not kept:
            why = "dnc left everybody out in one of its draws, so the model stays as it is"
            return ClientWeights.of_nobody(updates.clients, mean, why)
        return ClientWeights.of_kept(sorted(kept), mean)

    def _lowest(self, scores: Tensor) -> list[int]:
        return scores.argsort(stable=True)[: self._kept(len(scores))].tolist()

    def _drawn(self, updates: Updates, sample: int) -> list[Tensor]:
        """Read so many columns, centered, (n, sample), for each draw."""
        layers = updates.of_kind(Kind.PARAMETER)
        size = sum(layer.size for layer in layers)
        random = Random(self._random(updates).initial_seed())
        draws = [
            torch.tensor(sorted(random.sample(range(size), min(sample, size))))
            for _ in range(self.iterations)
        ]
        parts: list[list[Tensor]] = [[] for _ in draws]
        ends = accumulate(layer.size for layer in layers)
        begins = {layer.name: end - layer.size for layer, end in zip(layers, ends, strict=True)}
        for block in updates.blocks(layers, check=True, stacked=True):
            first = begins[block.layer.name]
            for draw, found in zip(draws, parts, strict=True):
                within = (draw >= first + block.start) & (draw < first + block.stop)
                columns = (draw[within] - first - block.start).to(block.values.device)
                found.append(block.values[:, columns].cpu().double())
        every = [torch.cat(found, dim=1) for found in parts]
        return [values - values.mean(0) for values in every]


def _scores(gram: Tensor) -> Tensor:
    """Squared projections onto the direction of most variance, from inner products about anywhere.

    With H G H = U Λ Uᵀ the projections onto the first right singular vector are √λ₁ u₁.
    """
    means = gram.mean(0)
    centered = gram - means[:, None] - means[None, :] + means.mean()
    values, vectors = torch.linalg.eigh(centered)
    scores: Tensor = values[-1].clamp(min=0) * vectors[:, -1].square()
    return scores
