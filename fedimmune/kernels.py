"""The hot loops: sums in a fixed order, sorting networks, columns put together, samples of them.

Each has a plain form of PyTorch's operations on blocks, for any device, and most have a fused one,
compiled, that reads a whole round in place (`fedimmune._fused`); they agree to rounding. Either way
sums come out the same, bit for bit, however large the blocks are that terms come in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedimmune._fused import Network, Reading, kernels_used
from fedimmune._fused import add_noise as fused_noise
from fedimmune._inputs import InputKind
from fedimmune._layers import Kind, Layer, is_variance
from fedimmune._sources import Rows, room
from fedimmune.updates import CHUNK, Block, NonFiniteError, Updates

__all__ = [
    "ColumnFunction",
    "NearMedian",
    "Ranks",
    "Result",
    "Sorter",
    "add_in_order",
    "add_noise",
    "by_chunk",
    "combine",
    "kernels_used",
    "lower_median",
    "network",
    "nothing",
    "num_threads",
    "sampled",
    "survival",
    "values_at",
    "weighted_sum",
]


_MOST_SAMPLED = 256 * 65_536
_AT_ONCE = 128 * CHUNK
"""So many random numbers are drawn at a time: they are added while they are in the cache."""
_PAIRS = 512
"""Two normal numbers that are drawn together are for columns so far apart."""


_SAMPLE = 65_536
"""So many columns stand for all, where something is counted."""


def add_in_order(total: Tensor, terms: Tensor) -> None:
    """Add terms to a total one after the other, the first first.

    A plain sum is free to group its terms by how many there are, and then two halves of a block
    add up to other bits than the whole.

    Parameters
    ----------
    total
        Changed in place; float64, on the CPU.
    terms
        (k, *shape of total*), k > 0, float64; used up.
    """
    terms[0] += total
    total.copy_(terms.cumsum_(0)[-1])


def by_chunk(values: Tensor) -> Tensor:
    """Sum every 512 columns of (n, columns): (chunks, n), the same chunks whatever the blocks."""
    missing = -values.shape[1] % CHUNK
    chunks: Tensor = torch.nn.functional.pad(values, (0, missing)).unflatten(1, (-1, CHUNK))
    return chunks.sum(dim=2).T.cpu().to(torch.float64).contiguous()


@dataclass(frozen=True)
class _Step:
    """Put the smaller of two rows at `low`, the larger at `high`, as far as they are wanted."""

    low: int
    high: int
    wants_low: bool
    wants_high: bool


class Sorter:
    """Finds wanted ranks of the rows of a block, column by column.

    Parameters
    ----------
    n
        How many rows.
    wanted
        The ranks to find, 0 being the smallest; by default all.
    interchangeable
        Wanted ranks that the caller treats alike, by adding them up for example; they may come in
        any order.
    """

    def __init__(
        self, n: int, wanted: Iterable[int] | None = None, interchangeable: Iterable[int] = ()
    ) -> None:
        self._wanted = tuple(range(n)) if wanted is None else tuple(wanted)
        self._steps = _network(n, frozenset(self._wanted), frozenset(interchangeable))
        self._spare = torch.empty(0)

    def __call__(self, rows: Rows) -> list[Tensor]:
        """Return the wanted ranks, each a tensor like a row; valid until the next call.

        Rows may have any shape. They are never written to; what is returned may be one of them.
        """
        current = list(rows)
        mine = [False] * len(current)  # whether a row's memory is ours to overwrite
        free = self._memory(current[0], len(current) + 1)
        for step in self._steps:
            low, high = current[step.low], current[step.high]
            low_is_mine, high_is_mine = mine[step.low], mine[step.high]
            if step.wants_low:
                smaller = free.pop()
                torch.minimum(low, high, out=smaller)
                current[step.low], mine[step.low] = smaller, True
            if step.wants_high:
                larger = high if high_is_mine else free.pop()
                torch.maximum(low, high, out=larger)
                current[step.high], mine[step.high] = larger, True
            elif high_is_mine:
                free.append(high)
                mine[step.high] = False
            if low_is_mine:
                free.append(low)
                mine[step.low] = step.wants_low
        return [current[rank] for rank in self._wanted]

    def _memory(self, row: Tensor, count: int) -> list[Tensor]:
        spare = self._spare
        if (
            spare.dtype != row.dtype
            or spare.device != row.device
            or len(spare) < count * row.numel()
        ):
            self._spare = torch.empty(count * row.numel(), dtype=row.dtype, device=row.device)
        parts = self._spare[: count * row.numel()].reshape(count, row.numel())
        return [part.view(row.shape) for part in parts]


@lru_cache(maxsize=256)
def _network(n: int, wanted: frozenset[int], interchangeable: frozenset[int]) -> tuple[_Step, ...]:
    """Return the steps that the wanted ranks need, found from the last to the first."""
    return _pruned(_merge_exchange(n), wanted, interchangeable)


def _pruned(
    pairs: Sequence[tuple[int, int]], wanted: frozenset[int], interchangeable: frozenset[int]
) -> tuple[_Step, ...]:
    needed, settled = set(wanted), set[int]()
    steps: list[_Step] = []
    for low, high in reversed(pairs):
        if low not in needed and high not in needed:
            continue
        last_for_both = low not in settled and high not in settled
        if last_for_both and {low, high} <= interchangeable:
            settled |= {low, high}  # nothing later looks at their order
            continue
        steps.append(_Step(low, high, low in needed, high in needed))
        needed |= {low, high}
        settled |= {low, high}
    return tuple(reversed(steps))


def _merge_exchange(n: int) -> list[tuple[int, int]]:
    """Batcher's network for n rows: pairs (low, high) to be put in order, one after the other."""
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top if n > 1 else 0
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            pairs += [(i, i + distance) for i in range(n - distance) if i & p == r]
            if q == p:
                break
            distance, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs


@lru_cache(maxsize=256)
def network(n: int, wanted: tuple[int, ...], *, interchangeable: bool = False) -> Network:
    """Return the exchanges that find wanted ranks of n rows once eights of them are sorted.

    Parameters
    ----------
    n
        How many rows.
    wanted
        The ranks to find, ascending, 0 being the smallest.
    interchangeable
        Whether they may come in any order.
    """
    ranks = frozenset(wanted)
    pruned = _pruned(_merge_eights(n), ranks, ranks if interchangeable else frozenset())
    steps = [(step.low, step.high, step.wants_low + 2 * step.wants_high) for step in pruned]
    table = np.array(steps, dtype=np.int64).reshape(-1, 3)
    return Network(table, np.array(wanted, dtype=np.int64))


def _merge_eights(n: int) -> list[tuple[int, int]]:
    """Batcher's odd-even merge sort for n rows, of whose whole eights each is sorted already."""
    pairs: list[tuple[int, int]] = []
    p = 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, min(j + k, n - k)):
                    in_one_list = i // (2 * p) == (i + k) // (2 * p)
                    is_sorted = p < 8 and i // 8 < n // 8
                    if in_one_list and not is_sorted:
                        pairs.append((i, i + k))
            k >>= 1
        p <<= 1
    return pairs


ColumnFunction = Callable[[Rows, Tensor], None]
"""Takes n rows, not to be written to, and fills a vector of as many columns. The functions made
here can also be carried out on a whole `Reading`."""


class _Fusible:
    """A column function with a fused form."""

    def fuse(
        self, reading: Reading, out: Mapping[str, Tensor], factors: Sequence[float], *, check: bool
    ) -> bool:
        """Fill flat results by layer, or return that it cannot be done.

        Parameters
        ----------
        reading
            The rows, with references.
        out
            Where results go.
        factors
            What references are multiplied by before they are added.
        check
            Stop with `NonFiniteError` at values that are not finite.
        """
        raise NotImplementedError


class _WeightedSum(_Fusible):
    def __init__(self, weights: Tensor) -> None:
        self._weights, self._numbers = weights, weights.tolist()
        self._by_kind: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def __call__(self, rows: Rows, out: Tensor) -> None:
        if isinstance(rows, Tensor):
            kind = (rows.dtype, rows.device)
            if kind not in self._by_kind:
                self._by_kind[kind] = self._weights.to(device=rows.device, dtype=rows.dtype)
            _add_up(rows, self._by_kind[kind], out)
        else:
            torch.mul(rows[0], self._numbers[0], out=out)
            for row, number in zip(rows[1:], self._numbers[1:], strict=True):
                out.add_(row, alpha=number)

    def fuse(
        self, reading: Reading, out: Mapping[str, Tensor], factors: Sequence[float], *, check: bool
    ) -> bool:
        weights = torch.tensor([*self._numbers, *factors], dtype=torch.float64)
        reading.weighted_sum(weights, out, _narrow, check=check)
        return True


def weighted_sum(weights: Tensor) -> ColumnFunction:
    """Make the column function of a weighted sum.

    Parameters
    ----------
    weights
        One weight a row, (n,).
    """
    return _WeightedSum(weights)


class Ranks(_Fusible):
    """The column function of a sum of ranks.

    Parameters
    ----------
    n
        How many rows.
    ranks
        Which ranks of each column, ascending, 0 being the smallest: all between two.
    coefficient
        What each of them is multiplied by.
    """

    def __init__(self, n: int, ranks: Sequence[int], coefficient: float) -> None:
        self._ranks, self._coefficient = tuple(ranks), coefficient
        interchangeable = len(self._ranks) <= 2
        self._sorter = Sorter(n, self._ranks, self._ranks if interchangeable else ())
        self._network = network(n, self._ranks, interchangeable=interchangeable)

    @classmethod
    def median(cls, n: int) -> Ranks:
        """Make the median; halves are added, so that the sum cannot overflow."""
        middle = sorted({(n - 1) // 2, n // 2})
        return cls(n, middle, 1 / len(middle))

    def __call__(self, rows: Rows, out: Tensor) -> None:
        found = self._sorter(rows)
        torch.mul(found[0], self._coefficient, out=out)
        for row in found[1:]:
            out.add_(row, alpha=self._coefficient)

    @property
    def _numbers(self) -> list[float]:
        return [self._coefficient] * len(self._ranks)

    def fuse(
        self, reading: Reading, out: Mapping[str, Tensor], factors: Sequence[float], *, check: bool
    ) -> bool:
        if factors:
            return False
        reading.columns(self._network, self._numbers, 0, out, _narrow, check=check)
        return True

    def used(self, values: Tensor) -> Tensor:
        """Say which of some columns' values, (n, columns), are not outside of the ranks."""
        ordered = values.sort(0).values
        return (values >= ordered[self._ranks[0]]) & (values <= ordered[self._ranks[-1]])

    def survivors(self, reading: Reading, columns: int) -> Tensor:
        """Return the share of columns at which each row was used, of an even sample."""
        return reading.survivors(self._network, self._numbers, 0, columns)


def _add_up(rows: Tensor, weights: Tensor, out: Tensor) -> None:
    """Add up rows, each times its weight.

    The product of a matrix and a vector keeps to one thread, and is slow to fetch what others have
    just gathered. With more of them, chunks of columns are multiplied side by side.
    """
    n, columns = rows.shape
    is_shared = rows.device.type == "cpu" and torch.get_num_threads() > 1
    whole = columns - columns % CHUNK if is_shared else 0
    if whole:
        chunks = rows[:, :whole].view(n, -1, CHUNK).transpose(0, 1)
        parts = out[:whole].view(-1, 1, CHUNK)
        torch.bmm(weights.expand(len(chunks), 1, n), chunks, out=parts)
    if whole < columns:
        torch.mv(rows[:, whole:].T, weights, out=out[whole:])


def combine(
    updates: Updates,
    function: ColumnFunction,
    *,
    parameters_are_checked: bool = False,
    of_buffers: ColumnFunction | None = None,
    plus: Mapping[str, float] | None = None,
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
    of_buffers
        What to do with the columns of floating-point buffers, if that is something else.
    plus
        What references are multiplied by before they are added to the parameters, by name.
    """
    result, added = Result(updates), plus or {}
    check = not parameters_are_checked
    if updates.shards is not None:
        for part in updates.shards.combined(updates, function, checked=not check, plus=added):
            result.put(*part)
    else:
        result.fill_parameters(updates, function, added, check=check)
    result.fill_buffers(updates, function if of_buffers is None else of_buffers)
    return result.finish()


def nothing(updates: Updates) -> Any:
    """Return an update that changes nothing, in the caller's own kind."""
    result = Result(updates)
    result.clear()
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
        self.flat = dict(zip(names, flat, strict=True))

    def columns(self, block: Block) -> Tensor:
        """Return the part of the result that a block makes, to be read or written."""
        return self.flat[block.layer.name][block.start : block.stop]

    def put(self, layer: str, start: int, values: Tensor) -> None:
        """Write columns of a layer."""
        self.flat[layer][start : start + len(values)].copy_(values)

    def clear(self) -> None:
        """Set everything to 0."""
        for flat in self.flat.values():
            flat.zero_()

    def fill_parameters(
        self,
        updates: Updates,
        function: ColumnFunction,
        plus: Mapping[str, float] | None = None,
        *,
        check: bool,
    ) -> None:
        """Make the trained layers.

        Parameters
        ----------
        updates
            The clients that count.
        function
            What to do with their columns.
        plus
            What references are multiplied by before they are added, by name.
        check
            Whether what is read has to be checked.
        """
        added, layers = plus or {}, updates.of_kind(Kind.PARAMETER)
        if isinstance(function, _Fusible):
            reading = updates.reading(layers, list(added))
            unchecked = not updates.is_checked
            if reading is not None and function.fuse(
                reading, self.flat, list(added.values()), check=unchecked
            ):
                return
        blocks = updates.blocks(layers, check=check, references=list(added))
        self.fill(blocks, function, list(added.values()))

    def fill(
        self, blocks: Iterable[Block], function: ColumnFunction, factors: Sequence[float] = ()
    ) -> None:
        """Make parts of the result out of blocks.

        Parameters
        ----------
        blocks
            What to make them of.
        function
            What to do with the clients' columns.
        factors
            What the blocks' references are multiplied by before they are added.

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
            for reference, factor in zip(block.references, factors, strict=True):
                wide.add_(reference, alpha=factor)
            # A sum that is not finite may only be too large; `Updates.checked` finds out.
            if not self._updates.is_checked and not bool(torch.isfinite(wide.sum())):
                raise NonFiniteError
            if not same:
                _narrow(target, wide)

    def fill_buffers(self, counting: Updates, function: ColumnFunction) -> None:
        """Make the layers that are not trained: as settled, or out of the clients that count."""
        for layer in counting.of_kind(Kind.BUFFER, Kind.COUNTER):
            target = self.flat[layer.name]
            if layer.name in counting.settled:
                target.copy_(_within(counting.settled[layer.name], target.dtype))
            elif layer.kind is Kind.COUNTER:
                target.copy_(lower_median(counting, layer))
            else:
                self.fill(counting.blocks([layer], check=True), function)

    def finish(self) -> Any:
        """Return the result in the caller's own kind and dtype."""
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
        flat = self.flat[layer.name]
        tensor = source.unflatten(layer, _within(flat, layer.dtype).to(layer.dtype))
        base = source.base_of(layer)
        if base is not None and is_variance(layer.name):
            # The new variance is base + change: keep it from falling below 0.
            tensor.copy_(torch.maximum(tensor, -base.to(tensor.dtype)))
        return tensor


def _narrow(target: Tensor, wide: Tensor) -> None:
    target.copy_(_within(wide, target.dtype))


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


def sampled(updates: Updates, columns: int = _SAMPLE) -> Tensor:
    """Read an even sample of the trained columns, (n, columns or fewer); all if there are few.

    Whole chunks of 512 columns are taken, the same ones whatever the size of blocks.
    """
    layers = updates.of_kind(Kind.PARAMETER)
    every = max(1, -(-sum(layer.size for layer in layers) // columns))
    parts, chunk = [], 0
    for layer in layers:
        for start in range(0, layer.size, CHUNK):
            if chunk % every == 0:
                stop = min(start + CHUNK, layer.size)
                buffer = room(len(updates), stop - start, layer.compute_dtype, updates.device)
                read = updates.source.read(layer, start, stop, buffer)
                parts.append(read.clone() if read.dtype == torch.float64 else read.double())
            chunk += 1
    return torch.cat(parts, dim=1)


def values_at(updates: Updates, layer: Layer, indices: Sequence[int]) -> Tensor:
    """Read some values of one layer, (n, values), float64.

    Parameters
    ----------
    updates
        The round.
    layer
        A trained layer.
    indices
        Positions in the flattened layer, whatever its order in memory.

    Raises
    ------
    NonFiniteError
        The layer holds values that are not finite.
    """
    positions = torch.arange(layer.size).reshape(layer.shape)
    columns = updates.source.flatten(layer, positions).argsort()[torch.tensor(indices)]
    found = torch.empty(len(updates), len(columns), dtype=torch.float64)
    for block in updates.blocks([layer], check=True, stacked=True):
        here = ((columns >= block.start) & (columns < block.stop)).nonzero().flatten()
        chosen = block.values[:, (columns[here] - block.start).to(updates.device)]
        found[:, here] = chosen.to("cpu", torch.float64)
    return found


def survival(
    updates: Updates,
    used: Callable[[Tensor], Tensor | None],
    function: ColumnFunction | None = None,
) -> Tensor | None:
    """Return the share of coordinates at which each client's value was used, (n,).

    Parameters
    ----------
    updates
        The round.
    used
        Says which of the values in some columns are used; None if it cannot say.
    function
        The column function that they are used by, if `used` is its own.
    """
    # Of many clients fewer columns: the sample must not outgrow the blocks.
    columns = max(CHUNK, min(_SAMPLE, _MOST_SAMPLED // max(1, len(updates))))
    if updates.shards is not None:
        shares: Tensor | None = updates.shards.survival(updates, used, columns)
        return shares
    if isinstance(function, Ranks | NearMedian):
        reading = updates.reading(updates.of_kind(Kind.PARAMETER))
        if reading is not None:
            return function.survivors(reading, columns)
    values = sampled(updates, columns)
    if all(layer.compute_dtype == torch.float32 for layer in updates.of_kind(Kind.PARAMETER)):
        values = values.float()  # as they were used: more precision would break other ties
    found = used(values)
    return None if found is None else found.double().mean(1).cpu()


def add_noise(update: Any, updates: Updates, deviation: float, seed: int) -> None:
    """Add normal noise to the trained layers of an aggregated update, in place.

    Pairs of numbers are numbered through, those of a layer after those of the layer before. Their
    bits are SplitMix64's (Steele, Lea and Flood, OOPSLA 2014), and Box and Muller (1958) make two
    normal numbers of 64 of them, for columns that are 512 apart: 31 bits say how long, 30 where in
    a quarter of the circle, and two which of them. So noise does not depend on devices, threads or
    forms of this kernel, except for rounding.

    Parameters
    ----------
    update
        In the caller's own kind.
    updates
        The round that it was made of.
    deviation
        Standard deviation of each value's noise.
    seed
        Where the noise comes from.
    """
    layers, first = {layer.name: layer for layer in updates.layers}, seed
    in_place: dict[torch.dtype, list[tuple[Tensor, int]]] = {}
    for name, values in updates.parameters_of(update).items():
        flat = updates.source.flatten(layers[name], values)
        is_plain = flat.dtype not in (torch.float32, torch.float64) or not flat.is_contiguous()
        if is_plain or flat.device.type != "cpu" or kernels_used() == "plain":
            for begin, part in enumerate(flat.split(_AT_ONCE)):
                wide = torch.promote_types(part.dtype, torch.float32)
                drawn = _normal(first + begin * _AT_ONCE // 2, len(part)).to(wide).mul_(deviation)
                part.add_(drawn.to(part.device, part.dtype))
        elif len(flat):
            in_place.setdefault(flat.dtype, []).append((flat, first % 2**64))
        first += -(-len(flat) // (2 * _PAIRS)) * _PAIRS
    for found in in_place.values():
        fused_noise([flat for flat, _ in found], [start for _, start in found], deviation)


def _normal(first: int, count: int) -> Tensor:
    """Return normal numbers, the first of which belong to the pair of this number; float32."""
    pairs = -(-count // (2 * _PAIRS)) * _PAIRS
    bits = torch.arange(pairs).add_(_signed(first)).mul_(_signed(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # To the right, with zeros from the left.
        bits.bitwise_xor_((bits >> shift) & ((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    share, turn = bits.view(torch.int32).view(-1, 2, _PAIRS).unbind(1)
    length = (share & 0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).log_().mul_(-2).sqrt_()
    angle = (turn << 2).float().mul_(torch.pi * 2.0**-33)  # within an eighth of a turn
    up, across = length * angle.sin(), length * angle.cos()
    across = torch.where(turn < 0, -across, across)
    is_odd = (turn << 1) < 0
    both = torch.where(is_odd, up, across), torch.where(is_odd, across, up)
    return torch.stack(both, 1).flatten()[:count]


def _signed(word: int) -> int:
    """Return the integer of 64 bits with a sign that has the same bits."""
    return (word + 2**63) % 2**64 - 2**63


class NearMedian(_Fusible):
    """The column function of the mean of the values nearest to the median.

    In ascending order those values stand side by side: the window of `keep` ranks moves up from
    the lowest for as long as the value that it would gain is nearer than the one that it would
    lose. Of two that are equally near the lower one is taken.

    Parameters
    ----------
    n
        How many rows.
    keep
        How many values are averaged.
    """

    def __init__(self, n: int, keep: int) -> None:
        self._n, self._keep, self._sorter = n, keep, Sorter(n)
        self._network = network(n, tuple(range(n)))

    def __call__(self, rows: Rows, out: Tensor) -> None:
        ordered, keep = self._sorter(rows), self._keep
        moved = self._moves(ordered)
        out.zero_()
        for rank, values in enumerate(ordered):
            part = values / keep
            if rank >= keep:
                part *= moved[rank - keep]
            if rank < len(moved):
                part *= ~moved[rank]
            out += part

    def _moves(self, ordered: Sequence[Tensor]) -> list[Tensor]:
        n, keep = self._n, self._keep
        # x − m < m − y for the median m as x + y < 2m: rounding breaks no tie. Halved, so that sums
        # of finite values are finite.
        both = ordered[(n - 1) // 2] / 2 + ordered[n // 2] / 2
        return [ordered[k + keep] / 2 + ordered[k] / 2 < both for k in range(n - keep)]

    def fuse(
        self, reading: Reading, out: Mapping[str, Tensor], factors: Sequence[float], *, check: bool
    ) -> bool:
        if factors:
            return False
        reading.columns(self._network, [], self._keep, out, _narrow, check=check)
        return True

    def used(self, values: Tensor) -> Tensor:
        """Say which of some columns' values, (n, columns), are averaged."""
        ordered = values.sort(0).values
        first = torch.zeros_like(ordered[0], dtype=torch.long)
        for moved in self._moves(list(ordered)):
            first += moved
        last = first + self._keep - 1
        low, high = ordered.gather(0, first[None]), ordered.gather(0, last[None])
        return (values >= low) & (values <= high)

    def survivors(self, reading: Reading, columns: int) -> Tensor:
        """Return the share of columns at which each row was used, of an even sample."""
        return reading.survivors(self._network, [], self._keep, columns)


@contextmanager
def num_threads(threads: int) -> Iterator[None]:
    """Compute with so many of PyTorch's threads, and afterwards with as many as before.

    One is usual. Two processes of one thread are quicker than one of two, and sums come out the
    same bits wherever they are computed. A round is read in many short operations, and after each
    of them threads wait for each other by spinning: where other programs take a core, as clients do
    in a simulation, that costs far more than a second thread ever gains.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
