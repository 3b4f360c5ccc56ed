"""Residual-based reweighting: a robust line through the sorted values of every coordinate.

In each coordinate the clients' values are set against their ranks and a line is laid through them
by repeated medians. A client's confidence there falls with its distance from the line; values that
deserve almost none are moved onto the line. A client's weight is the sum of its confidences, each
counting by how much the confidences in that coordinate differ.

References
----------
Fu, Xie, Li, Chen: *Attack-Resistant Federated Learning with Residual-based Reweighting*,
arXiv:1912.11464. The repeated median is Siegel's, Biometrika 1982. Three details differ from the
authors' program: tied values share their mean rank, so that the order of the clients is of no
influence; no constant is added to the residuals' scale, so that the size of the updates is of none;
and weights are proportional to the summed confidences, as in the paper, not to their squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from fedimmune._fused import Network, ResidualNetworks
from fedimmune._layers import Kind
from fedimmune.aggregation import Aggregation
from fedimmune.kernels import Result, Sorter, add_in_order, by_chunk, network, weighted_sum
from fedimmune.rules.base import ClientWeights, Common, Rule
from fedimmune.updates import Block, NonFiniteError, Updates
from fedimmune.validation import check_float, check_open_fraction

__all__ = ["Residual"]

_BLOCK_VALUES = 300_000
"""How many values are worked on at a time: a dozen arrays of that size have to fit the cache."""
_STRIP_SLOPES = 1_200_000
"""How many slopes are taken at a time, so that they fit the cache …"""
_STRIP_VALUES = 65_536
"""… but no fewer than those of this many values: PyTorch would leave its other threads idle."""


class Residual(Rule):
    """Repeated-median regression on ranks, with weights and corrections from its residuals.

    Parameters
    ----------
    bound
        λ: residuals up to λ√(2/n) scaled deviations are fully believed.
    threshold
        δ: values with a confidence below this are moved onto the line.
    """

    name = "residual"
    summary = "a robust line through each coordinate's ranks; weights from the residuals"
    paper = "Fu et al., arXiv:1912.11464"
    symbols = {"bound": "λ", "threshold": "δ"}
    weights_make_result = False
    reads = 2
    squares = False

    def __init__(
        self, *, bound: float = 2.0, threshold: float = 0.1, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.bound = check_float(self.name, "bound", bound, above=0)
        self.threshold = check_open_fraction(self.name, "threshold", threshold, below=1)

    @property
    def clients_needed(self) -> int:
        return 3

    def breakdown(self, n: int) -> int:
        return max(0, n // 2 - 1)  # a repeated median of n points has its breakdown at ⌊n/2⌋

    def _attempt(self, updates: Updates) -> Aggregation:
        rows, mixing = self._mixed(updates)
        # Slopes are dear: the first read leaves them where the second writes the result.
        result = Result(rows, wide=True)
        weights = self._weights(rows, result)
        self._fill_parameters(rows, result, weights)
        counts = weights > 0
        counting = rows.only(
            client for client, does in zip(rows.clients, counts, strict=True) if does
        )
        result.fill_buffers(counting, weighted_sum(weights[counts]))
        found = ClientWeights(weights)
        if mixing is not None:
            found = found.of_clients(mixing, updates.clients)
        return self._answer(updates, result.finish(), found)

    def _weights(self, updates: Updates, slopes: Result) -> Tensor:
        n = len(updates)
        reading = updates.reading(updates.of_kind(Kind.PARAMETER))
        if reading is None:
            totals = self._totals(updates, slopes)
        else:
            totals = reading.residuals(_networks(n), _believed(n, self.bound), slopes.flat)
            if not updates.is_checked and not bool(torch.isfinite(totals).all()):
                raise NonFiniteError
        if float(totals.sum()) == 0:
            return torch.full((n,), 1 / n, dtype=torch.float64)  # nobody stands out anywhere
        return totals / totals.sum()

    def _totals(self, updates: Updates, slopes: Result) -> Tensor:
        regression = _Regression(len(updates), self.bound)
        totals = torch.zeros(len(updates), dtype=torch.float64)
        for block in _small_blocks(updates, check=True):
            fit = regression(block.values, slopes.columns(block), slope_is_known=False)
            told_apart = fit.confidence * _deviation(fit.confidence)
            add_in_order(totals, by_chunk(told_apart))
        return totals

    def _fill_parameters(self, updates: Updates, result: Result, weights: Tensor) -> None:
        n, reading = len(updates), updates.reading(updates.of_kind(Kind.PARAMETER))
        if reading is not None:
            reading.straighten(
                _networks(n), _believed(n, self.bound), result.flat, weights, self.threshold
            )
            return
        regression = _Regression(len(updates), self.bound)
        add_up = weighted_sum(weights)
        for block in _small_blocks(updates, check=False):
            out = result.columns(block)
            fit = regression(block.values, out, slope_is_known=True)
            add_up(torch.where(fit.confidence >= self.threshold, block.values, fit.line), out)


def _believed(n: int, bound: float) -> float:
    """How many times the median residual a fully believed one has at most, but for leverage."""
    return bound * math.sqrt(2 / n) * 1.4826 * (1 + 5 / (n - 1))


def _networks(n: int) -> ResidualNetworks:
    def median(count: int, first: int = 0) -> Network:
        return network(count, tuple(_middle(count, first)), interchangeable=True)

    return ResidualNetworks(network(n, tuple(range(n))), median(n), median(n - 1), median(n, 1))


def _middle(n: int, first: int = 0) -> list[int]:
    """The ranks in the middle of those from `first` on: one or two."""
    return sorted({first + (n - first - 1) // 2, first + (n - first) // 2})


def _small_blocks(updates: Updates, *, check: bool) -> Iterator[Block]:
    columns = min(updates.columns, _BLOCK_VALUES // len(updates))
    small = replace(updates, block_columns=columns)
    return small.blocks(updates.of_kind(Kind.PARAMETER), check=check, stacked=True)


@dataclass(frozen=True)
class _Fit:
    confidence: Tensor
    line: Tensor


class _Regression:
    """The regression of n clients' values on their ranks, in every column of a block at once."""

    def __init__(self, n: int, bound: float) -> None:
        self._n = n
        self._sort = Sorter(n)
        self._median_of_all = _MedianSorter(n)
        self._median_slopes = _MedianSlopes(n)
        self._median_but_smallest = _MedianSorter(n, leave_out_smallest=True)
        self._believed = _believed(n, bound)

    def __call__(self, values: Tensor, slope: Tensor, *, slope_is_known: bool) -> _Fit:
        """Fit; `slope` is filled, or read where it is known from before."""
        n = self._n
        if slope_is_known:
            middle = self._median_of_all(values)
        else:
            ordered = torch.stack(self._sort(values))
            middle = ordered[(n - 1) // 2] / 2 + ordered[n // 2] / 2
            slope.copy_(self._repeated_median(ordered))
        rank = _centered_ranks(values)
        line = (rank * slope).add_(middle)  # rounded twice, as in the fused form
        deviation = (values - line).abs_()
        # The leverage of a rank: 1/n + rank² / Σ rank², with ranks centered.
        spread = n * (n * n - 1) / 12
        reach = rank.square_().mul_(-1 / spread).add_(1 - 1 / n).clamp_(min=0).sqrt_()
        reach *= self._median_but_smallest(deviation) * self._believed
        confidence = torch.where(deviation <= reach, 1.0, reach / deviation)
        return _Fit(confidence, line)

    def _repeated_median(self, ordered: Tensor) -> Tensor:
        """The median over clients of the median slope to the others; `ordered` is ascending.

        There are n(n − 1) slopes in a column, by far the most work of the rule, so they are taken
        in strips that fit the cache.
        """
        width = max(_STRIP_SLOPES // (self._n - 1), _STRIP_VALUES) // self._n
        medians = torch.empty_like(ordered)
        for values, found in zip(ordered.split(width, 1), medians.split(width, 1), strict=True):
            found.copy_(self._median_slopes(values))
        return self._median_of_all(medians)


class _MedianSlopes:
    """Each client's median slope to the others."""

    def __init__(self, n: int) -> None:
        self._median = _MedianSorter(n - 1)
        self._memory = torch.empty(0)

    def __call__(self, ordered: Tensor) -> Tensor:
        """Turn ascending values, (n, columns), into medians of slopes, (n, columns)."""
        return self._median(self._slopes(ordered))

    def _slopes(self, ordered: Tensor) -> Tensor:
        n, columns = ordered.shape
        values = (n - 1) * n * columns
        if self._memory.numel() < values or self._memory.dtype != ordered.dtype:
            self._memory = ordered.new_empty(values)
        slopes = self._memory[:values].view(n - 1, n, columns)
        for lag in range(1, n):
            # The slope from rank i to i + lag belongs to both: to i as its lag-th neighbor,
            # counted round the circle, and to i + lag as its (n - lag)-th.
            between = slopes[lag - 1, : n - lag]
            torch.sub(ordered[lag:], ordered[:-lag], out=between)
            between /= lag
            slopes[n - lag - 1, lag:] = between
        return slopes


class _MedianSorter:
    """The median of rows, or of all rows but the smallest value in each column."""

    def __init__(self, n: int, *, leave_out_smallest: bool = False) -> None:
        middle = _middle(n, 1 if leave_out_smallest else 0)
        self._sorter = Sorter(n, middle, interchangeable=middle)

    def __call__(self, rows: Tensor) -> Tensor:
        found = self._sorter(rows)
        return found[0].clone() if len(found) == 1 else found[0] / 2 + found[1] / 2


def _deviation(values: Tensor) -> Tensor:
    """The standard deviation of each column (``torch.std`` is slow across rows)."""
    centered = values - values.mean(dim=0)
    return centered.square_().sum(dim=0).div_(len(values) - 1).sqrt_()


def _centered_ranks(values: Tensor) -> Tensor:
    """Ranks less their mean; tied values share the mean of their ranks."""
    ranks = torch.zeros_like(values)
    for row in range(1, len(values)):
        above = torch.sub(values[row:], values[row - 1]).sign_()
        ranks[row:] += above
        ranks[row - 1] -= above.sum(dim=0)
    return ranks.mul_(0.5)
