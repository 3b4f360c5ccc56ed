"""LASA: updates are clipped and thinned out, and each layer is averaged over clients usual in it.

Updates are shortened to the median length. Of each, the share s of its smallest values is set to 0.
In each layer a client is kept if two numbers lie less than λ standard deviations from their
medians: the length of what is left, and its *purity* ½(1 + (1 − s) Σ sign / Σ |sign|). What is left
of those is averaged; of all clients if nobody is usual in both.

References
----------
Xu, Zhang, Hu: *Achieving Byzantine-Resilient Federated Learning via Layer-Adaptive Sparsified Model
Aggregation*, WACV 2025. The authors' program leaves layers of one dimension, such as biases, whole.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from fedimmune._layers import Kind, Layer
from fedimmune._sources import Rows, room
from fedimmune.aggregation import Aggregation
from fedimmune.geometry import measure
from fedimmune.kernels import ColumnFunction, Result, weighted_sum
from fedimmune.rules.base import Common, Rule
from fedimmune.rules.selection import are_usual, cutoffs, mean_of
from fedimmune.updates import Updates
from fedimmune.validation import check_float, check_open_fraction

__all__ = ["LASA"]


class LASA(Rule):
    """The mean of the clients that are usual in a layer, in each layer anew, of sparse updates.

    There is no weight of a client as a whole; its score is the share of layers in which it is kept.

    Parameters
    ----------
    sparsity
        s: the share of an update's values, the smallest, that are set to 0.
    length
        λ_n: how many standard deviations a layer's length may lie from the median.
    signs
        λ_s: the same for its purity.
    """

    name = "lasa"
    summary = "the mean of sparse updates over the clients usual in length and signs, by layer"
    paper = "Xu et al., WACV 2025"
    symbols = {"sparsity": "s", "length": "λ_n", "signs": "λ_s"}
    bounds_lengths = True
    is_translation_equivariant = False
    looks_at_layers = True
    keeps_common_update = False
    parts = "layers"
    reads = 3

    def __init__(
        self,
        *,
        sparsity: float = 0.3,
        length: float = 1.0,
        signs: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.sparsity = check_open_fraction(self.name, "sparsity", sparsity, below=1)
        self.length = check_float(self.name, "length", length, above=0)
        self.signs = check_float(self.name, "signs", signs, above=0)

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2  # more could make the median length anything

    def _attempt(self, updates: Updates) -> Aggregation:
        rows, mixing = self._mixed(updates)
        if not rows.settled:
            for _ in rows.blocks(rows.of_kind(Kind.BUFFER), check=True):
                pass  # who is invalid in what is not measured has to be known before
        lengths = measure(rows).norms()
        everybody = torch.ones(len(rows), dtype=torch.bool)
        clipped = mean_of(everybody, lengths, float(lengths.quantile(0.5))).coefficients
        assert clipped is not None
        factors, least = clipped * len(rows), cutoffs(rows, 1 - self.sparsity)
        result, layers = Result(rows), rows.of_kind(Kind.PARAMETER)
        kept = torch.stack([self._usual(rows, layer, factors, least) for layer in layers])
        for layer, usual in zip(layers, kept, strict=True):
            counting = [client for client, does in zip(rows.clients, usual, strict=True) if does]
            function = _sparse_sum(factors[usual] / len(counting), least[usual])
            result.fill(rows.only(counting).blocks([layer], check=False), function)
        result.fill_buffers(rows, weighted_sum(everybody.double() / len(rows)))
        grouped = mixing is not None and len(mixing.matrix) < len(updates)
        survived = None if grouped else kept.double().mean(0)
        return self._answer(updates, result.finish(), survived=survived)

    def _usual(self, updates: Updates, layer: Layer, factors: Tensor, least: Tensor) -> Tensor:
        """Return who is usual in a layer, (n,). One client is read at a time."""
        lengths, purities = torch.zeros(len(updates)).double(), torch.zeros(len(updates)).double()
        for row, client in enumerate(updates.clients):
            buffer = room(1, layer.size, layer.compute_dtype, updates.device)
            values = updates.only([client]).source.read(layer, 0, layer.size, buffer)[0].double()
            values = values[values.abs() >= float(least[row])]
            lengths[row] = factors[row] * values.norm().cpu()
            signs = values.sign()
            purity = signs.sum() / signs.abs().sum().clamp(min=1)
            purities[row] = 0.5 * (1 + (1 - self.sparsity) * purity.cpu())
        usual = are_usual(lengths, self.length) & are_usual(purities, self.signs)
        return usual if bool(usual.any()) else ~usual


def _sparse_sum(weights: Tensor, least: Tensor) -> ColumnFunction:
    """Make the column function of a weighted sum without the values that are too small."""
    terms = list(zip(weights.tolist(), least.tolist(), strict=True))

    def add_up(rows: Rows, out: Tensor) -> None:
        out.zero_()
        for row, (weight, smallest) in zip(rows, terms, strict=True):
            out.add_(torch.where(row.abs() >= smallest, row, 0.0), alpha=weight)

    return add_up
