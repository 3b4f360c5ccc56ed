"""FedAvg: the plain mean of the updates.

References
----------
McMahan, Moore, Ramage, Hampson, Agüera y Arcas: *Communication-Efficient Learning of Deep Networks
from Decentralized Data*, AISTATS 2017.
"""

from __future__ import annotations

import math
from statistics import median

import torch

from fedimmune.errors import InputError
from fedimmune.results import Verdict
from fedimmune.rules.base import ClientWeights, WeightRule
from fedimmune.rules.preaggregation import Before
from fedimmune.updates import Updates
from fedimmune.validation import check_bool, check_float

__all__ = ["Mean"]


class Mean(WeightRule):
    """The mean of the updates, each client counting equally.

    Parameters
    ----------
    by_samples
        Weigh clients by the number of samples that they say they trained on (`Updates.samples`).
        The server cannot verify that number, so it is off by default and never believed without
        a cap; a client whose number is negative, infinite or no number is rejected.
    cap
        With `by_samples`: no client counts for more than this many times the median client.
    before
        As for every rule; see `fedimmune.rules.preaggregation`.
    """

    name = "mean"
    guards_buffers = False
    squares = False
    summary = "FedAvg: every client counts equally, or by its sample count with a cap"
    unweighted_means = Verdict.UNUSED
    paper = "McMahan et al., AISTATS 2017"

    def __init__(self, *, by_samples: bool = False, cap: float = 2.0, before: Before = "") -> None:
        super().__init__(before=before)
        self.by_samples = check_bool(self.name, "by_samples", by_samples)
        self.cap = check_float(self.name, "cap", cap, above=0)

    def screen(self, updates: Updates) -> Updates:
        if not self.by_samples:
            return updates
        if updates.samples is None:
            raise InputError("mean by samples needs sample counts: give samples= with the updates")
        return updates.reject(
            {
                client: reason
                for client in updates.clients
                if (reason := _objection(updates.samples.get(client))) is not None
            }
        )

    def weigh(self, updates: Updates) -> ClientWeights:
        if not self.by_samples or updates.samples is None:
            return ClientWeights(_equal(len(updates)))
        claims = [float(updates.samples[client]) for client in updates.clients]
        # In units of the median claim, so that no claim is too large to be added up.
        unit = median([claim for claim in claims if claim > 0] or [1.0])
        shares = [min(claim / unit, self.cap) for claim in claims]
        capped = torch.tensor(shares, dtype=torch.float64)
        if capped.sum() == 0:
            return ClientWeights(_equal(len(updates)))  # nobody has trained: nobody counts for more
        return ClientWeights(capped / capped.sum())


def _equal(n: int) -> torch.Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def _objection(count: object) -> str | None:
    if count is None:
        return "sent no sample count"
    if isinstance(count, bool | str | bytes):
        return f"its sample count is no number: {str(count)[:40]!r}"
    try:
        value = float(count)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return f"its sample count is no number: {type(count).__name__}"
    if not math.isfinite(value) or value < 0:
        return f"its sample count is not a number from 0 on: {count!r}"
    return None
