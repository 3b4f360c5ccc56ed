"""Norm bounding: no update may be longer than a bound; with a little noise, weak privacy.

References
----------
Sun, Kairouz, Suresh, McMahan: *Can You Really Backdoor Federated Learning?*, 2019
(arXiv:1911.07963).
"""

from __future__ import annotations

from typing import Unpack

import torch

from fedimmune.geometry import Geometry
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.preaggregation import shortening
from fedimmune.validation import check_at_least, check_float, check_int, check_measure

__all__ = ["NormBound"]


class NormBound(GeometryRule):
    """The mean of the updates, each shortened to a bound, and noise on the mean if wanted.

    Noise is added once, to the mean. `scores` are the lengths.

    Parameters
    ----------
    bound
        The longest that an update may be (C): a number, or ``"median"`` for the round's median
        length. The paper chooses numbers by data set; which is right depends on the model, the
        learning rate and the number of local steps.
    times
        For ``"median"``: allow this many times that length.
    noise
        Standard deviation (σ) of the normal noise on each value of the mean: the paper's weak
        differential privacy. By default none.
    seed
        Noise is drawn from it and the round's number.
    """

    name = "norm-bound"
    summary = "the mean of updates shortened to a bound, with noise if wanted"
    paper = "Sun et al., arXiv:1911.07963"
    symbols = {"bound": "C", "noise": "σ"}
    is_translation_equivariant = False
    weights_make_result = False
    bounds_lengths = True
    compares_clients = False

    def __init__(
        self,
        *,
        bound: float | str = "median",
        times: float = 1.0,
        noise: float = 0.0,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.bound = check_measure(self.name, "bound", bound, "median")
        self.times = check_float(self.name, "times", times, above=0)
        self.noise = check_at_least(self.name, "noise", noise, 0)
        self.seed = check_int(self.name, "seed", seed, 0)

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        lengths = geometry.norms()
        shares = torch.full_like(lengths, 1 / len(lengths))
        factors = shortening(lengths, self.bound, self.times)
        return ClientWeights(shares, lengths, shares * factors, noise=self.noise)
