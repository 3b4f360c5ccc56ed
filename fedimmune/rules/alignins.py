"""AlignIns: clients whose direction, or whose largest values' signs, are unusual are left out.

Two numbers per client: the cosine of its update with the global model (*temporal direction
alignment*), and the share of its own largest values whose sign is that of most clients, sign(Σ
sign(xᵢ)) (*masked principal sign alignment*). Who is less than λ standard deviations away from the
median in both is kept, shortened to the median length of those kept, and averaged.

References
----------
Xu, Zhang, Hu: *Detecting Backdoor Attacks in Federated Learning via Direction Alignment
Inspection*, CVPR 2025. Clients count equally: the server cannot verify their numbers of samples.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.geometry import measure
from fedimmune.results import Verdict
from fedimmune.rules.base import ClientWeights, Common, WeightRule
from fedimmune.rules.selection import are_usual, cutoffs, mean_of
from fedimmune.updates import Updates
from fedimmune.validation import check_float, check_fraction

__all__ = ["AlignIns"]


class AlignIns(WeightRule):
    """The mean of the clients that are usual in direction and in signs, cut to the median length.

    If nobody is usual in both, the model stays as it is.

    Parameters
    ----------
    sparsity
        The share of a client's values, the largest, whose signs are looked at.
    direction
        λ_c: how many standard deviations a cosine with the global model may lie from the median.
    signs
        λ_s: the same for the share of usual signs.
    """

    name = "alignins"
    summary = "the mean of clients with usual directions and signs, cut to the median length"
    paper = "Xu et al., CVPR 2025"
    symbols = {"direction": "λ_c", "signs": "λ_s"}
    needs = frozenset({"model"})
    unweighted_means = Verdict.UNUSED  # by one deviation, half may go although nobody attacks
    weights_make_result = False
    is_translation_equivariant = False
    weighing_reads = True
    reads = 4

    def __init__(
        self,
        *,
        sparsity: float = 0.3,
        direction: float = 1.0,
        signs: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.sparsity = check_fraction(self.name, "sparsity", sparsity)
        self.direction = check_float(self.name, "direction", direction, above=0)
        self.signs = check_float(self.name, "signs", signs, above=0)

    def weigh(self, updates: Updates) -> ClientWeights:
        geometry = measure(updates, ["model"])
        model, lengths = geometry.reference("model"), geometry.norms()
        products = lengths * model.square.sum().sqrt()
        cosines = torch.where(products > 0, model.products.sum(0) / products, 0.0)
        agreement = _agreement(updates, cutoffs(updates, self.sparsity))
        kept = are_usual(cosines, self.direction) & are_usual(agreement, self.signs)
        most = float(lengths[kept].quantile(0.5)) if bool(kept.any()) else 0.0
        return mean_of(kept, lengths, most, score=agreement)


def _agreement(updates: Updates, cutoffs: Tensor) -> Tensor:
    """Return the share of each client's large values that have the sign of most clients, (n,)."""
    agreeing = torch.zeros(len(updates), dtype=torch.long)
    large = agreeing.clone()
    for block in updates.blocks(updates.of_kind(Kind.PARAMETER), check=False, stacked=True):
        signs = block.values.sign()
        is_large = block.values.abs().double() >= cutoffs[:, None].to(block.values.device)
        agreeing += (is_large & (signs == signs.sum(0).sign())).sum(1).cpu()
        large += is_large.sum(1).cpu()
    return agreeing / large.double()
