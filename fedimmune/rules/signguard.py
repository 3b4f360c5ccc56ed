"""SignGuard: clients with an odd length or an odd share of positive values are left out.

A client is kept if its length lies between 0.1 and 3 median lengths, and if it is in the largest
Mean-Shift cluster of three numbers: its shares of positive, zero and negative values in a tenth of
the coordinates, drawn anew each round, each divided by the largest client's. Those kept are
shortened to the median length and averaged. Two variants have a fourth number: *sim* the cosine
with the last result, from 0 to the median, divided by five medians; *dist* 0.2 for those at least
1.1 times as far from it as the median. In the first round *sim* takes the median cosine with the
others instead, and *dist* the sum of the distances to the nearest half of them.

References
----------
Xu, Huang, Song, Lan: *Byzantine-robust Federated Learning through Collaborative Malicious Gradient
Filtering*, ICDCS 2022. Bandwidth and bounds are those of the authors' program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.aggregation import Aggregation
from fedimmune.errors import InputError
from fedimmune.geometry import Geometry, measure
from fedimmune.rules.base import ClientWeights, Common, WeightRule
from fedimmune.rules.history import Remembering
from fedimmune.rules.selection import mean_of
from fedimmune.updates import Updates
from fedimmune.validation import check_choice, check_float, check_fraction, check_int

__all__ = ["SignGuard"]


class SignGuard(Remembering, WeightRule):
    """The mean of clients with usual lengths and signs, cut to the median length.

    If nobody is usual in both, the model stays as it is.

    Parameters
    ----------
    variant
        ``plain``, or ``sim`` or ``dist`` to compare clients with the last result too, which is
        remembered then.
    shortest, longest
        L, R: lengths between these many times the median's are usual.
    sample
        The share of the coordinates, one next to the other, whose signs are counted.
    seed
        Where that part begins is drawn from it and the round's number.
    """

    name = "signguard"
    summary = "the mean of clients with usual lengths and signs, cut to the median length"
    paper = "Xu et al., ICDCS 2022"
    symbols = {"shortest": "L", "longest": "R"}
    weights_make_result = False
    bounds_lengths = True
    is_translation_equivariant = False
    packages = frozenset({"scikit-learn"})
    weighing_reads = True
    reads = 2

    def __init__(
        self,
        *,
        variant: str = "plain",
        shortest: float = 0.1,
        longest: float = 3.0,
        sample: float = 0.1,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.variant = check_choice(self.name, "variant", variant, ("plain", "sim", "dist"))
        self.shortest = check_fraction(self.name, "shortest", shortest)
        self.longest = check_float(self.name, "longest", longest, above=1)
        self.sample = check_fraction(self.name, "sample", sample)
        self.seed = check_int(self.name, "seed", seed, 0)
        self.last: Mapping[str, Tensor] = {}
        """The last result, by layer; empty before the first round, and for ``plain``."""

    @property
    def has_history(self) -> bool:
        return self.variant != "plain"

    @property
    def clients_needed(self) -> int:
        return 3

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2  # more could make the median length anything

    def weigh(self, updates: Updates) -> ClientWeights:
        geometry = measure(self._with_memory(updates), ["memory"] if self.last else [])
        lengths = geometry.norms()
        usual = float(lengths.quantile(0.5))
        features = self._signs(updates)
        if self.variant == "sim":
            features = torch.cat([features, _likeness(geometry)[:, None]], dim=1)
        elif self.variant == "dist":
            features = torch.cat([features, _remoteness(geometry)[:, None]], dim=1)
        kept = (lengths >= self.shortest * usual) & (lengths <= self.longest * usual)
        kept &= _largest_cluster(features)
        return mean_of(kept, lengths, usual, score=features[:, 0])

    def _signs(self, updates: Updates) -> Tensor:
        """Count signs in a part of the coordinates: (n, 3), each column at most 1."""
        layers = updates.of_kind(Kind.PARAMETER)
        size = sum(layer.size for layer in layers)
        count = max(1, int(self.sample * size))
        first = int(torch.randint(0, size - count + 1, (1,), generator=self._random(updates)))
        starts, total = {}, 0
        for layer in layers:
            starts[layer.name], total = total, total + layer.size
        part = [
            layer
            for layer in layers
            if starts[layer.name] < first + count and starts[layer.name] + layer.size > first
        ]
        found = torch.zeros(len(updates), 3, dtype=torch.float64)
        for block in updates.blocks(part, check=False, stacked=True):
            begin = first - starts[block.layer.name] - block.start  # as the block counts
            values = block.values[:, max(0, begin) : max(0, begin + count)]
            signs = torch.stack([values > 0, values == 0, values < 0], dim=2)
            found += signs.sum(1).cpu()
        return found / found.max(0).values.clamp(min=1)

    # ---------------------------------------------------------------- the last result

    def _with_memory(self, updates: Updates) -> Updates:
        for layer in updates.of_kind(Kind.PARAMETER) if self.last else ():
            known = self.last.get(layer.name)
            if known is None or tuple(known.shape) != layer.shape:
                raise InputError(
                    f"the last result is of another model: "
                    f"it has no layer {layer.name!r} of shape {layer.shape}"
                )
        return replace(updates, references={**updates.references, "memory": self.last})

    def _attempt(self, updates: Updates) -> Aggregation:
        answer = super()._attempt(updates)
        if self.has_history:
            state = updates.with_reference("memory", answer.update).references["memory"]
            layers = updates.of_kind(Kind.PARAMETER)
            self.last = {layer.name: state[layer.name].clone() for layer in layers}
        return answer

    def remembered(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if not self.has_history:
            raise InputError(f"{self.name} keeps no history, as it was made")
        return dict(self.last), {"variant": self.variant}

    def recall(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        if about.get("variant") != self.variant:
            raise InputError(f"it is of another variant than {self.variant}")
        self.last = dict(tensors)


def _likeness(geometry: Geometry) -> Tensor:
    """How alike clients are to the last result, or to each other, from 0 to 0.2."""
    n = len(geometry)
    if geometry.references:
        last = geometry.reference("memory")
        products = geometry.norms() * last.square.sum().sqrt()
        found = torch.where(products > 0, last.products.sum(0) / products, 0.0)
    else:
        others = ~torch.eye(n, dtype=torch.bool)
        found = geometry.cosines()[others].reshape(n, n - 1).quantile(0.5, dim=1)
    middle = found.quantile(0.5).clamp(min=0)
    return torch.minimum(found.clamp(min=0), middle) / (5 * middle if middle > 0 else 1)


def _remoteness(geometry: Geometry) -> Tensor:
    """0.2 for clients that are far from the last result, or from the nearest half; 0 for others."""
    if geometry.references:
        last = geometry.reference("memory")
        squares = geometry.gram().diagonal() - 2 * last.products.sum(0) + last.square.sum()
        found = squares.clamp(min=0).sqrt()
    else:
        distances = geometry.squared_distances().sqrt().sort(dim=1).values
        found = distances[:, 1 : len(geometry) // 2 + 1].sum(1)
    return torch.where((found >= 1.1 * found.quantile(0.5)) & (found > 0), 0.2, 0.0).double()


def _largest_cluster(features: Tensor) -> Tensor:
    """Return who is in the largest Mean-Shift cluster, (n,)."""
    from sklearn.cluster import MeanShift, estimate_bandwidth  # noqa: PLC0415 (others do without)

    # In an order of their own, so that rounding does not depend on that of the clients.
    points, members = np.unique(features.numpy(), axis=0, return_inverse=True)
    points = points[np.sort(members)]
    bandwidth = max(float(estimate_bandwidth(points, quantile=0.5)), 1e-9)
    clusters = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False).fit(points)
    labels = np.empty(len(points), dtype=np.int64)
    labels[np.argsort(members, kind="stable")] = clusters.labels_
    sizes = np.bincount(labels[labels >= 0], minlength=1)
    return torch.from_numpy(labels == sizes.argmax())
