"""The second read of a round: put the result together, once each client's share is known.

Parameters go through a function of columns. So do floating-point buffers that are not settled
already (`fedimmune.buffers`); integer ones then take the lower median of the clients that count.
(The largest, or the mean, would let one attacker write any number there.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fedimmune.intake import InputKind
from fedimmune.layers import Kind, Layer, is_variance
from fedimmune.sources import Rows
from fedimmune.updates import Block, NonFiniteError, Updates

__all__ = ["ColumnFunction", "Result", "combine", "lower_median", "weighted_sum"]

ColumnFunction = Callable[[Rows, Tensor], None]
"""Takes n rows, not to be written to, and fills a vector of as many columns."""


def weighted_sum(weights: Tensor) -> ColumnFunction:
    """Make the column function of a weighted sum.

    Parameters
    ----------
    weights
        One weight a row, (n,).
    """
    by_kind: dict[tuple[torch.dtype, torch.device], Tensor] = {}
    numbers = weights.tolist()

    def add_up(rows: Rows, out: Tensor) -> None:
        if isinstance(rows, Tensor):
            kind = (rows.dtype, rows.device)
            if kind not in by_kind:
                by_kind[kind] = weights.to(device=rows.device, dtype=rows.dtype)
            torch.mv(rows.T, by_kind[kind], out=out)
        else:
            torch.mul(rows[0], numbers[0], out=out)
            for row, number in zip(rows[1:], numbers[1:], strict=True):
                out.add_(row, alpha=number)

    return add_up


def combine(
    updates: Updates, function: ColumnFunction, *, parameters_are_checked: bool = False
) -> Any:
    """Read a round and put the aggregated update together, in the caller's own kind.

    Parameters
    ----------
    updates
        The clients that count.
    function
        What to do with the columns of parameters and floating-point buffers.
    parameters_are_checked
        Whether an earlier read has shown the parameters to be finite.
    """
    result = Result(updates)
    parameters = updates.of_kind(Kind.PARAMETER)
    result.fill(updates.blocks(parameters, check=not parameters_are_checked), function)
    result.fill_buffers(updates, function)
    return result.finish()


class Result:
    """Room for the aggregated update: a flat tensor a layer, or slices of one vector.

    Parameters
    ----------
    updates
        The round that it is made of.
    wide
        Keep the numbers in the dtype that rules compute in until `finish`.
    """

    def __init__(self, updates: Updates, *, wide: bool = False) -> None:
        self._updates = updates
        self._vector: Tensor | None = None
        dtypes = [
            layer.compute_dtype if wide and layer.kind is not Kind.COUNTER else layer.dtype
            for layer in updates.layers
        ]
        names = [layer.name for layer in updates.layers]
        if updates.kind.has_layers:
            flat = [
                torch.empty(layer.size, dtype=dtype, device=updates.device)
                for layer, dtype in zip(updates.layers, dtypes, strict=True)
            ]
        else:
            self._vector = torch.empty(updates.size, dtype=dtypes[0], device=updates.device)
            flat = list(self._vector.split([layer.size for layer in updates.layers]))
        self._flat = dict(zip(names, flat, strict=True))

    def columns(self, block: Block) -> Tensor:
        """Give the part of the result that a block makes, to be read or written."""
        return self._flat[block.layer.name][block.start : block.stop]

    def fill(self, blocks: Iterable[Block], function: ColumnFunction) -> None:
        """Make parts of the result out of blocks.

        Raises
        ------
        NonFiniteError
            What was added up is not finite, although it was checked before: memory that somebody
            else writes to.
        """
        for block in blocks:
            target, dtype = self.columns(block), block.rows[0].dtype
            same = target.dtype == dtype
            wide = target if same else torch.empty_like(target, dtype=dtype)
            function(block.rows, wide)
            # A sum that is not finite may only be too large; `Updates.checked` finds out.
            if not self._updates.is_checked and not bool(torch.isfinite(wide.sum())):
                raise NonFiniteError
            if not same:
                target.copy_(_within(wide, target.dtype))

    def fill_buffers(self, counting: Updates, function: ColumnFunction) -> None:
        """Make the layers that are not trained: as settled, or out of the clients that count."""
        for layer in counting.of_kind(Kind.BUFFER, Kind.COUNTER):
            target = self._flat[layer.name]
            if layer.name in counting.settled:
                target.copy_(_within(counting.settled[layer.name], target.dtype))
            elif layer.kind is Kind.COUNTER:
                target.copy_(lower_median(counting, layer))
            else:
                self.fill(counting.blocks([layer], check=True), function)

    def finish(self) -> Any:
        """Give the result in the caller's own kind and dtype."""
        if self._vector is None:
            state = {layer.name: self._finished(layer) for layer in self._updates.layers}
            if self._updates.kind is InputKind.STATE:
                return state
            tensors = [state[str(place)] for place in range(len(state))]
            is_tensor = self._updates.kind is InputKind.TENSORS
            return tensors if is_tensor else [t.numpy() for t in tensors]
        dtype = self._updates.layers[0].dtype
        vector = _within(self._vector, dtype).to(dtype)
        return vector if self._updates.kind is InputKind.TENSOR else vector.numpy()

    def _finished(self, layer: Layer) -> Tensor:
        source = self._updates.source
        flat = self._flat[layer.name]
        tensor = source.unflatten(layer, _within(flat, layer.dtype).to(layer.dtype))
        base = source.base_of(layer)
        if base is not None and is_variance(layer.name):
            # The new variance is base + change: keep it from falling below 0.
            tensor.copy_(torch.maximum(tensor, -base.to(tensor.dtype)))
        return tensor


def _within(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Keep numbers that are to be narrowed finite: a difference may leave float16's range."""
    if wide.dtype == dtype or not wide.is_floating_point():
        return wide
    most = torch.finfo(dtype).max
    return wide.clamp(-most, most)


def lower_median(counting: Updates, layer: Layer) -> Tensor:
    """Return an integer layer's change: the lower median of what was sent, less what was there.

    The median is taken of what clients sent, and the difference afterwards: a difference of
    integers can wrap around, and then sorts wrongly.
    """
    median = counting.source.counters(layer).median(dim=0).values
    base = counting.source.base_of(layer)
    if base is None:
        return median
    before = counting.source.flatten(layer, base)
    return median ^ before if layer.dtype == torch.bool else median - before
