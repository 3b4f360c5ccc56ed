"""Where a round's numbers are: one stacked matrix, or one state dict per client.

Compiled loops read them where they are (`Source.addresses`). For all others they come in blocks.

Both return columns of one layer in the dtype that rules compute in: as an (n, columns) tensor, or
as n rows if that is enough. A matrix returns views; state dicts return their rows, or are gathered
into a small buffer that stays in the cache: a round is never stacked whole.
"""

from __future__ import annotations

import copy
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TypeAlias

import torch
from torch import Tensor

from fedimmune._inputs import ClientId
from fedimmune._layers import FLOATS, Layer

__all__ = [
    "CHUNK",
    "TASK",
    "Address",
    "MatrixSource",
    "NonFiniteError",
    "Rows",
    "Source",
    "StateSource",
    "Watch",
    "address",
    "room",
    "shaped",
]

Rows: TypeAlias = Sequence[Tensor] | Tensor
"""One row per client: a sequence of vectors, or an (n, columns) tensor."""

CHUNK = 512
"""Blocks are whole multiples of this many columns; see `docs/architecture.md`, *Same bits*."""

TASK = 64 * CHUNK
"""Whole reads are cut into this many columns of one layer at a time."""

Address: TypeAlias = tuple[int, int, int]
"""Where a flat row begins, its kind of number (the place in `FLOATS`) and its columns' stride."""

_ALIGNED = 16
"""Rows that are gathered begin at multiples of this many values. In what order a product adds
numbers up depends on where they lie in memory, and that must not depend on the size of blocks."""

_SAME = 1e-6
"""Two reads of the same numbers may differ by this much of their length, because of rounding."""


class NonFiniteError(Exception):
    """Reading met values that cannot be used: someone has to be rejected.

    Parameters
    ----------
    reasons
        Who, and why; None if that is not known yet (see `Updates.checked`).
    """

    def __init__(self, reasons: Mapping[ClientId, str] | None = None) -> None:
        super().__init__("values that are not finite")
        self.reasons = reasons


class Watch:
    """Notices clients whose files change between two reads of a round.

    A rule weighs what it reads first and adds up what it reads second, so a file overwritten in
    between would be judged by one content and counted by another. Of every `TASK` columns a random
    projection is kept, whose direction nobody outside this process knows, and the next read of
    those columns must have the same, in blocks of any size.

    Parameters
    ----------
    clients
        Ids, in the order of the rows.
    """

    def __init__(self, clients: Sequence[ClientId]) -> None:
        self.clients = tuple(clients)
        self._rows, self._count = torch.arange(len(clients)), len(clients)
        self._random = torch.Generator().manual_seed(secrets.randbits(63))
        self._directions: dict[torch.dtype, Tensor] = {}
        # By columns, for all clients: numbers by client and columns would outgrow the blocks.
        self._seen: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        self._begun: tuple[str, int] | None = None
        self._sums = torch.empty(0)

    def only(self, rows: Sequence[int]) -> Watch:
        """Return a watch over some of the clients, with what this one has seen."""
        some = copy.copy(self)
        some.clients, some._begun = tuple(self.clients[row] for row in rows), None
        some._rows = self._rows[list(rows)]
        return some

    def look(self, layer: Layer, start: int, stop: int, block: Tensor) -> None:
        """Compare a block, (n, columns), with what it was before.

        Blocks may be smaller than what is compared, if they follow each other. What is not read
        from its beginning is not compared.

        Raises
        ------
        NonFiniteError
            Of those whose files have changed.
        """
        direction = self.direction(block.dtype)
        for begin in range(start - start % TASK, stop, TASK):
            end = min(begin + TASK, layer.size)
            first, last = max(start, begin), min(stop, end)
            if first == begin:
                self._sums = torch.zeros(2, len(block), dtype=torch.float64)
            elif self._begun != (layer.name, first):
                continue
            part = block[:, first - start : last - start]
            self._sums[0] += part @ direction[first - begin : last - begin]
            self._sums[1] += torch.linalg.vector_norm(part, dim=1).double().square()
            self._begun = (layer.name, last)
            if last == end:
                self.compare(layer, begin, *self._sums.tolist())

    def compare(
        self, layer: Layer, begin: int, found: Sequence[float], squares: Sequence[float]
    ) -> None:
        """Compare projections of up to `TASK` columns with what they were before.

        Parameters
        ----------
        layer, begin
            Which columns.
        found, squares
            The projections, and squared lengths: rounding is a share of lengths.

        Raises
        ------
        NonFiniteError
            Of those whose files have changed.
        """
        key = (layer.name, begin)
        if key not in self._seen:
            empty = torch.zeros(self._count, dtype=torch.float64)
            self._seen[key] = empty, torch.zeros(self._count, dtype=torch.bool)
        values, is_known = self._seen[key]
        now = torch.as_tensor(found, dtype=torch.float64)
        before, known = values[self._rows], is_known[self._rows]
        same = (before == now) | (before.isnan() & now.isnan()) | ~known
        values[self._rows] = torch.where(known, before, now)
        is_known[self._rows] = True
        reasons: dict[ClientId, str] = {}
        for row in (~same).nonzero().flatten().tolist():
            rounding = _SAME * sqrt(squares[row]) * sqrt(min(TASK, layer.size - begin))
            if not abs(float(before[row] - now[row])) <= rounding:  # NaN is a change too
                reasons[self.clients[row]] = "its file changed while it was being read"
        if reasons:
            raise NonFiniteError(reasons)

    def direction(self, dtype: torch.dtype) -> Tensor:
        """Return the direction that columns are projected onto, (`TASK`,)."""
        if dtype not in self._directions:
            self._directions[dtype] = torch.randn(TASK, generator=self._random, dtype=dtype)
        return self._directions[dtype]


class Source(ABC):
    """What `Updates` reads from."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where blocks are computed."""

    @abstractmethod
    def read(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Tensor:
        """Return columns ``start:stop`` of a layer, (n, stop - start), read-only.

        `buffer` is `room` for a block of at least that many values, of the layer's compute dtype,
        in which this one may be gathered.
        """

    @abstractmethod
    def take(self, rows: Sequence[int]) -> Source:
        """Return the same source with only these clients, in this order."""

    has_base: bool = False
    """Whether the base is subtracted from what is at the rows' addresses."""
    watch: Watch | None = None
    """Who else may write to the rows."""

    def addresses(self, layer: Layer) -> tuple[list[Address], list[Tensor]] | None:
        """Return where the rows of a layer are, and the base if there is one, to be read in place.

        None, the default, if they are not anywhere as a whole. The second list holds what had to be
        copied, which has to be kept while addresses are used.
        """
        return None

    def rows(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Rows:
        """Return the same as `read`, row by row if that spares a copy."""
        return self.read(layer, start, stop, buffer)

    def counters(self, layer: Layer) -> Tensor:
        """Return an integer layer of every client, (n, size), int64, not as a difference."""
        raise AssertionError("there are no integer layers here")

    def flatten(self, layer: Layer, tensor: Tensor) -> Tensor:
        """Bring a tensor of the layer's shape into the order of the columns of blocks."""
        return tensor.reshape(-1)

    def unflatten(self, layer: Layer, columns: Tensor) -> Tensor:
        """Undo `flatten`."""
        return columns.reshape(layer.shape)

    def base_of(self, layer: Layer) -> Tensor | None:
        """Return the layer of the global model; None if the updates came as differences."""
        return None


class MatrixSource(Source):
    """An (n, d) tensor whose columns are the layers one after the other."""

    def __init__(
        self, values: Tensor, offsets: Mapping[str, int], rows: Tensor | None = None
    ) -> None:
        self._values, self._offsets, self._rows = values, offsets, rows

    @property
    def device(self) -> torch.device:
        return self._values.device

    def read(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Tensor:
        offset = self._offsets[layer.name]
        block = self._values[:, offset + start : offset + stop]
        same = block.dtype == layer.compute_dtype
        if self._rows is None:
            return block if same else shaped(buffer, *block.shape).copy_(block)
        chosen = shaped(buffer, len(self._rows), stop - start)
        if same:
            return torch.index_select(block, 0, self._rows, out=chosen)
        return chosen.copy_(block.index_select(0, self._rows))

    def addresses(self, layer: Layer) -> tuple[list[Address], list[Tensor]]:
        values, offset = self._values, self._offsets[layer.name]
        row, column = values.stride()
        size, kind = values.element_size(), FLOATS.index(values.dtype)
        chosen = range(len(values)) if self._rows is None else self._rows.tolist()
        first = values.data_ptr() + offset * column * size
        return [(first + each * row * size, kind, column) for each in chosen], []

    def take(self, rows: Sequence[int]) -> MatrixSource:
        index = torch.as_tensor(list(rows), dtype=torch.long, device=self.device)
        old = self._rows
        return MatrixSource(self._values, self._offsets, index if old is None else old[index])


class StateSource(Source):
    """One state dict per client; with a base model, the updates are the differences to it.

    Tensors are flattened in the order in which the first client's lie in memory, so that
    channels-last models are read without a copy.

    Parameters
    ----------
    states
        One per client.
    base
        The model that they started from; None if they are differences already.
    watch
        For states that are mapped files, which somebody else may write to: their blocks are copied
        before they are looked at, so that what is checked is what is used.
    """

    def __init__(
        self,
        states: Sequence[Mapping[str, Tensor]],
        base: Mapping[str, Tensor] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._states, self._base, self.watch = list(states), base, watch
        self._flat_name: str | None = None
        self._flat_rows: list[Tensor] = []
        self._flat_base: Tensor | None = None
        self._flat_is_ready = False

    @property
    def device(self) -> torch.device:
        pattern = self._base if self._base is not None else next(iter(self._states), {})
        return next((tensor.device for tensor in pattern.values()), torch.device("cpu"))

    def read(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Tensor:
        self._use(layer)
        block = shaped(buffer, len(self._states), stop - start)
        parts = [row[start:stop] for row in self._flat_rows]
        if self._flat_base is None and self._flat_is_ready:
            torch.stack(parts, out=block)  # one call is quicker than n copies
            parts = []
        for target, part in zip(block, parts, strict=False):
            if self._flat_base is None:
                target.copy_(part)
            elif self._flat_is_ready:
                torch.sub(part, self._flat_base[start:stop], out=target)
            else:
                target.copy_(part).sub_(self._flat_base[start:stop])
        if self.watch is not None:
            self.watch.look(layer, start, stop, block)
        return block

    def rows(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Rows:
        self._use(layer)
        if self._flat_base is not None or not self._flat_is_ready:
            return self.read(layer, start, stop, buffer)
        if self.watch is not None:
            return list(self.read(layer, start, stop, buffer))  # as rows: the same bits either way
        return [row[start:stop] for row in self._flat_rows]

    @property
    def has_base(self) -> bool:  # type: ignore[override]
        return self._base is not None

    def addresses(self, layer: Layer) -> tuple[list[Address], list[Tensor]]:
        found: list[Address] = []
        copied: list[Tensor] = []
        order, name = self._order(layer), layer.name
        in_order = order == tuple(range(len(order)))
        states = self._states if self._base is None else [*self._states, self._base]
        for state in states:
            tensor = state[name]
            if in_order and tensor.is_contiguous() and tensor.device.type == "cpu":
                found.append((tensor.data_ptr(), FLOATS.index(tensor.dtype), 1))
                continue
            flat = tensor.permute(order).reshape(-1).cpu()
            found.append(address(flat))
            if flat.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                copied.append(flat)
        return found, copied

    def counters(self, layer: Layer) -> Tensor:
        rows = [self.flatten(layer, state[layer.name]) for state in self._states]
        return torch.stack([row.to(device=self.device, dtype=torch.int64) for row in rows])

    def flatten(self, layer: Layer, tensor: Tensor) -> Tensor:
        return tensor.permute(self._order(layer)).reshape(-1)

    def unflatten(self, layer: Layer, columns: Tensor) -> Tensor:
        order = self._order(layer)
        shaped = columns.reshape([layer.shape[dim] for dim in order])
        return shaped.permute([order.index(dim) for dim in range(len(order))])

    def base_of(self, layer: Layer) -> Tensor | None:
        return None if self._base is None else self._base[layer.name].to(self.device)

    def take(self, rows: Sequence[int]) -> StateSource:
        watch = None if self.watch is None else self.watch.only(rows)
        return StateSource([self._states[row] for row in rows], self._base, watch)

    def _order(self, layer: Layer) -> tuple[int, ...]:
        """Return the layer's dimensions from the outermost in memory to the innermost."""
        pattern = self._base if self._base is not None else self._states[0]
        strides = pattern[layer.name].stride()
        return tuple(sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim)))

    def _use(self, layer: Layer) -> None:
        """Keep the current layer's rows flat: views, or copies if the memory order differs."""
        if self._flat_name == layer.name:
            return
        order, device = self._order(layer), self.device
        rows = [state[layer.name] for state in self._states]
        if order != tuple(range(len(order))):
            rows = [row.permute(order) for row in rows]
        self._flat_rows = [row.reshape(-1) for row in rows]
        self._flat_is_ready = all(
            row.dtype == layer.compute_dtype and row.device == device for row in self._flat_rows
        )
        self._flat_base = None
        if self._base is not None:
            base = self.flatten(layer, self._base[layer.name])
            self._flat_base = base.to(device=self.device, dtype=layer.compute_dtype)
        self._flat_name = layer.name


def address(row: Tensor) -> Address:
    """Return where a flat row on the CPU is, and how its numbers are stored."""
    return row.data_ptr(), FLOATS.index(row.dtype), row.stride(0)


def room(n: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return flat memory in which a block can be gathered."""
    return torch.empty(n * _stride(columns), dtype=dtype, device=device)


def shaped(buffer: Tensor, n: int, columns: int) -> Tensor:
    """Return the start of `room` as a block."""
    return buffer.as_strided((n, columns), (_stride(columns), 1))


def _stride(columns: int) -> int:
    return -(-columns // _ALIGNED) * _ALIGNED
