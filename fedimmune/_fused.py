"""Whole reads of a round in one go: every row in place, one parallel region, no lock, no spinning.

`_compiled` holds the loops, and here is what leads to them: where the rows of each layer lie, the
tasks that a read is cut into, and the threads that work through them. Tasks are fixed cuts of each
layer, and what is summed over tasks is summed in their order: neither the size of blocks nor the
number of threads changes a bit.

Threads take the next few tasks when they are done with theirs. A thread that another program keeps
from running holds up its own few only, and one that has nothing to do sleeps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedimmune._layers import Layer
from fedimmune._sources import CHUNK, TASK, NonFiniteError, Source, address
from fedimmune.errors import ParameterError

__all__ = ["SWITCH", "Network", "Reading", "ResidualNetworks", "add_noise", "kernels_used"]

SWITCH = "FEDIMMUNE_KERNELS"
"""Environment variable: ``fused``, ``plain``, or ``auto``, fused if numba is installed."""

_PIECES = 8
"""So many times a thread asks for tasks: few enough to cost nothing, enough to share well."""
_ALONE = 1 << 20
"""Reads of fewer bytes are not worth waking a thread for."""
_SLOT_BYTES = 1 << 25
"""Gram matrices of tasks may take so much at a time, before they are added up."""
_MANY = 1024
"""With more clients than this there is one Gram matrix, which threads add to together."""
_COPIED_BYTES = 1 << 26
"""Rows that cannot be read in place may take so much at a time (or one layer's)."""
_AT_ONCE = 1 << 26
"""So many bytes are read between two reports of progress."""
_WIDE_TASKS = 128
"""Results that have to be narrowed are made of so many tasks at a time."""

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[Any]


def kernels_used() -> str:
    """Return which form of the kernels this process uses: ``fused`` or ``plain``.

    Raises
    ------
    ParameterError
        `FEDIMMUNE_KERNELS` is none of its values, or asks for what is not installed.
    """
    wanted = os.environ.get(SWITCH, "auto")
    if wanted not in ("auto", "fused", "plain"):
        raise ParameterError(f"{SWITCH} is auto, fused or plain, not {wanted!r}")
    if wanted == "plain":
        return "plain"
    problem = _problem()
    if problem and wanted == "fused":
        raise ParameterError(
            f"{SWITCH}=fused needs numba (pip install fedimmune[fast]), and there is none that "
            f"works here: {problem}"
        )
    return "plain" if problem else "fused"


@cache
def _problem() -> str:
    """Say why there are no compiled loops; nothing if there are."""
    try:
        import fedimmune._compiled  # noqa: F401, PLC0415 - numba takes a while to import
    except Exception as error:  # noqa: BLE001, RUF100 - a numba that fails here is as good as none
        return f"{type(error).__name__}: {error}"
    return ""


@cache
def _halves() -> Floats:
    """What each word of 16 bits stands for, as float16 and as bfloat16."""
    words = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    found = [words.view(dtype).to(torch.float32) for dtype in (torch.float16, torch.bfloat16)]
    return torch.stack(found).numpy()


# -------------------------------------------------------------------- threads


class _Team:
    """Threads that wait for work asleep; one more than them is the caller's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def run(self, work: Callable[[int, int], object], tasks: int, threads: int) -> None:
        """Have all tasks done: `work` is called with a first one and one after the last."""
        step = max(1, tasks // (_PIECES * threads)) if threads > 1 else max(1, tasks)
        starts = iter(range(0, tasks, step))
        turn = threading.Lock()

        def take_turns() -> None:
            while True:
                with turn:
                    first = next(starts, None)
                if first is None:
                    return
                work(first, min(first + step, tasks))

        helpers: list[Future[None]] = []
        if threads > 1 and tasks > 1:
            pool = self._sized(threads - 1)
            helpers = [pool.submit(take_turns) for _ in range(threads - 1)]
        try:
            take_turns()
        finally:
            starts = iter(())  # whoever is late finds nothing left, also after an interrupt
            for helper in helpers:
                if not helper.cancel():
                    helper.result()

    def _sized(self, helpers: int) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._size != helpers:
                if self._pool is not None:
                    self._pool.shutdown(wait=False)
                self._pool = ThreadPoolExecutor(helpers, thread_name_prefix="fedimmune")
                self._size = helpers
            return self._pool

    def forget(self) -> None:
        """Start over in a forked process, which has none of its parent's threads."""
        self.__init__()  # type: ignore[misc]


_TEAM = _Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TEAM.forget)


# -------------------------------------------------------------------- networks


@dataclass(frozen=True)
class Network:
    """What is left to exchange once eights of rows are sorted, and which ranks are wanted.

    Parameters
    ----------
    steps
        (steps, 3): the two rows, and which results are needed: 1 the smaller, 2 the larger, 3 both.
    ranks
        The wanted ranks, ascending.
    """

    steps: Integers
    ranks: Integers

    @property
    def arrays(self) -> tuple[Integers, Integers]:
        """Both, as kernels take them."""
        return self.steps, self.ranks


@dataclass(frozen=True)
class ResidualNetworks:
    """What the rule ``residual`` selects of n rows.

    Parameters
    ----------
    everything
        All ranks.
    median
        Those in the middle.
    median_of_others
        The same of n - 1 rows.
    median_of_residuals
        Those in the middle of all but the smallest.
    """

    everything: Network
    median: Network
    median_of_others: Network
    median_of_residuals: Network

    @property
    def arrays(self) -> tuple[tuple[Integers, Integers], ...]:
        """All of them, as the kernel takes them."""
        found = self.everything, self.median, self.median_of_others, self.median_of_residuals
        return tuple(each.arrays for each in found)


# -------------------------------------------------------------------- reads


@dataclass(frozen=True)
class _Part:
    """Some layers of one precision, whose rows are all at hand."""

    layers: tuple[Layer, ...]
    rows: Integers
    tasks: Integers
    dtype: torch.dtype
    kept: tuple[object, ...]


class Reading:
    """Layers of a round that can be read in place, by compiled loops.

    Parameters
    ----------
    source
        Where the rows are.
    n
        How many clients.
    layers
        Which layers.
    references
        Rows that are not a client's, one mapping from layer names to flat tensors each.
    on_read
        Called with the number of bytes that have been read.
    """

    def __init__(
        self,
        source: Source,
        n: int,
        layers: Sequence[Layer],
        references: Sequence[Mapping[str, Tensor]] = (),
        on_read: Callable[[int], None] | None = None,
    ) -> None:
        self._source, self._n, self._layers = source, n, [layer for layer in layers if layer.size]
        self._references, self._on_read = references, on_read

    @classmethod
    def of(
        cls,
        source: Source,
        n: int,
        layers: Sequence[Layer],
        references: Sequence[Mapping[str, Tensor]] = (),
        on_read: Callable[[int], None] | None = None,
    ) -> Reading | None:
        """Return a reading, or None if these layers have to be read by the plain forms."""
        everywhere = [source.device, *(row.device for each in references for row in each.values())]
        if not (n and any(layer.size for layer in layers)) or kernels_used() == "plain":
            return None
        if (
            any(device.type != "cpu" for device in everywhere)
            or source.addresses(layers[0]) is None
        ):
            return None
        return cls(source, n, layers, references, on_read)

    # ---------------------------------------------------------------- kernels

    def check(self) -> dict[int, Layer]:
        """Return the rows that hold values that are not finite, with the first such layer."""
        from fedimmune._compiled import check  # noqa: PLC0415

        found: dict[int, Layer] = {}
        for part in self._parts():
            bad = np.zeros((len(part.tasks), self._n), dtype=np.bool_)
            self._run(check, part, (bad,))
            for task, row in np.argwhere(bad).tolist():
                found.setdefault(row, part.layers[part.tasks[task, 0]])
        return found

    def grams(self, places: Mapping[str, int], count: int, *, pairs: bool) -> Tensor:
        """Return Gram matrices, references after clients, (count, rows, rows); float64.

        Without `pairs`, inner products of clients with each other are 0, except their squares.

        Parameters
        ----------
        places
            Which matrix each layer's products are added to, by name.
        count
            How many matrices there are.
        pairs
            Whether clients are multiplied with each other.
        """
        from fedimmune._compiled import FEW  # noqa: PLC0415

        n, rows = self._n, self._n + len(self._references)
        block = 4 if n <= FEW else 3
        padded = -(-rows // block) * block
        found = np.zeros((count, padded, padded))
        for part in self._parts():
            into = [found[places[layer.name]] for layer in part.layers]
            add = self._add_grams if n <= _MANY else self._add_to_one
            add(part, into, pairs=pairs)
        for start in range(0, rows, _MANY):
            stop = min(start + _MANY, rows)
            found[:, stop:, start:stop] = found[:, start:stop, stop:].transpose(0, 2, 1)
            first, last = np.tril_indices(stop - start, -1)
            square = found[:, start:stop, start:stop]
            square[:, first, last] = square[:, last, first]
        if not pairs:
            own = np.arange(n)
            squares = found[:, own, own]
            found[:, :n, :n] = 0
            found[:, own, own] = squares
        return torch.from_numpy(found)[:, :rows, :rows]

    def _add_grams(self, part: _Part, into: list[Floats], *, pairs: bool) -> None:
        """Add products of some tasks at a time, each first to a matrix of its own."""
        from fedimmune._compiled import gram  # noqa: PLC0415

        shape = into[0].shape
        slots = max(2 * torch.get_num_threads(), _SLOT_BYTES // into[0].nbytes)
        for batch in _batches(part, slots):
            out = np.zeros((len(batch.tasks), *shape))
            self._run(gram, batch, (len(self._references), pairs, out))
            for products, (layer, _, _) in zip(out, batch.tasks.tolist(), strict=True):
                into[layer] += products

    def _add_to_one(self, part: _Part, into: list[Floats], *, pairs: bool) -> None:
        """Add products of 512 columns after the others, in place: threads share the rows instead.

        With many clients a matrix per task would take more memory than all else.
        """
        from fedimmune._compiled import PANEL, load, multiply  # noqa: PLC0415

        n, padded, threads = self._n, len(into[0]), torch.get_num_threads()
        starts = range(0, padded, PANEL)
        panels = np.array([(top, left) for top in starts for left in starts if left >= top])
        watch, has_base = self._source.watch, int(self._source.has_base)
        direction = torch.empty(0, dtype=part.dtype)
        if watch is not None:
            direction = watch.direction(part.dtype)
        tile = torch.zeros(padded, CHUNK, dtype=part.dtype).numpy()
        for place, begin, end in part.tasks.tolist():
            layer, of = part.layers[place], part.rows[place]
            seen = np.zeros((n, 2))
            for start in range(begin, end, CHUNK):
                width = min(CHUNK, end - start)
                where = start, width, _halves(), direction.numpy(), start - begin, seen, tile
                _TEAM.run(
                    _bound(load, of, (n, has_base, *where)), n + len(self._references), threads
                )
                _TEAM.run(
                    _bound(multiply, panels, (n, pairs, width, tile, into[place])),
                    len(panels),
                    threads,
                )
                if self._on_read is not None:
                    self._on_read(n * width * layer.dtype.itemsize)
            if watch is not None:
                watch.compare(layer, begin, *seen.T.tolist())

    def weighted_sum(
        self, weights: Tensor, out: Mapping[str, Tensor], store: Store, *, check: bool
    ) -> None:
        """Fill a result with a sum of the rows, each times its weight (references after clients).

        Parameters
        ----------
        weights
            One per client and reference.
        out
            Flat results by layer.
        store
            Narrows numbers.
        check
            Stop with `NonFiniteError` if the result is not finite.
        """
        from fedimmune._compiled import weighted_sum  # noqa: PLC0415

        for part, outs in self._filling(out, store):
            by = weights.to(part.dtype).numpy()
            good = np.zeros(len(part.tasks), dtype=np.bool_)
            self._run(weighted_sum, part, (by, outs, good))
            if check and not good.all():
                raise NonFiniteError

    def columns(
        self,
        network: Network,
        coefficients: Sequence[float],
        keep: int,
        out: Mapping[str, Tensor],
        store: Store,
        *,
        check: bool,
    ) -> None:
        """Fill a result with a sum of ranks, or the mean of the `keep` values about the median."""
        for part, outs in self._filling(out, store):
            self._columns(part, network, coefficients, keep, outs, _no_counts(), check=check)

    def survivors(
        self, network: Network, coefficients: Sequence[float], keep: int, columns: int
    ) -> Tensor:
        """Return the share of columns at which each client's value was used, (n,).

        Looked at are whole chunks, evenly spaced, that make up to about so many columns.
        """
        every = max(1, -(-sum(layer.size for layer in self._layers) // columns))
        total, seen, chunk = np.zeros(self._n, dtype=np.int64), 0, 0
        for part in self._parts():
            tasks = []
            for place, layer in enumerate(part.layers):
                for start in range(0, layer.size, CHUNK):
                    if chunk % every == 0:
                        tasks.append((place, start, min(start + CHUNK, layer.size)))
                    chunk += 1
            if not tasks:
                continue
            some = _with_tasks(part, np.array(tasks, dtype=np.int64))
            counts = np.zeros((len(tasks), self._n), dtype=np.int64)
            outs = np.zeros(len(part.layers), dtype=np.int64)
            self._columns(some, network, coefficients, keep, outs, counts, check=False)
            total += counts.sum(0)
            seen += int((some.tasks[:, 2] - some.tasks[:, 1]).sum())
        return torch.from_numpy(total / seen)

    def _columns(
        self,
        part: _Part,
        network: Network,
        coefficients: Sequence[float],
        keep: int,
        outs: Integers,
        counts: Integers,
        *,
        check: bool,
    ) -> None:
        from fedimmune._compiled import columns  # noqa: PLC0415

        by = torch.tensor(coefficients, dtype=part.dtype).numpy()
        good = np.zeros(len(part.tasks), dtype=np.bool_)
        is_sample = len(counts) > 0
        besides = (*network.arrays, by, keep, outs, good, counts)
        self._run(columns, part, besides, is_sample=is_sample)
        if check and not good.all():
            raise NonFiniteError

    def residuals(
        self, networks: ResidualNetworks, believed: float, slopes: Mapping[str, Tensor]
    ) -> Tensor:
        """Fit a line to each column, and return what tells clients apart, (n,), float64.

        It is NaN for clients who hold values that are not finite.

        Parameters
        ----------
        networks, believed
            See `fedimmune.rules.residual`.
        slopes
            Filled with the lines' slopes, by layer, in the precision of the columns.
        """
        total = torch.zeros(self._n, dtype=torch.float64)
        for part, outs in self._filling(slopes, _refuse):
            nobody = torch.empty(0, dtype=part.dtype).numpy()
            for task in self._residual(part, networks, believed, 0.0, nobody, outs):
                total += torch.from_numpy(task)  # one after the other, in the tasks' order
        return total

    def straighten(
        self,
        networks: ResidualNetworks,
        believed: float,
        out: Mapping[str, Tensor],
        weights: Tensor,
        threshold: float,
    ) -> None:
        """Put the weighted sum of what `residuals` believes in the place of slopes.

        Parameters
        ----------
        networks, believed
            As before.
        out
            What `residuals` filled; the result takes the slopes' place.
        weights
            One per client.
        threshold
            Values with less confidence are moved onto the line.
        """
        for part, outs in self._filling(out, _refuse):
            by = weights.to(part.dtype).numpy()
            self._residual(part, networks, believed, threshold, by, outs)

    def _residual(
        self,
        part: _Part,
        networks: ResidualNetworks,
        believed: float,
        threshold: float,
        weights: Floats,
        outs: Integers,
    ) -> Floats:
        from fedimmune._compiled import residual  # noqa: PLC0415

        kind = weights.dtype.type
        totals = np.zeros((len(part.tasks), self._n))
        numbers = kind(believed), kind(threshold), weights
        self._run(residual, part, (*networks.arrays, *numbers, outs, totals))
        return totals

    # ---------------------------------------------------------------- tasks

    def _parts(self) -> Iterator[_Part]:
        """Find the rows of as many layers at a time as can be had without copying much."""
        layers: list[Layer] = []
        tables: list[Integers] = []
        kept: list[object] = []
        copied = 0
        for layer in self._layers:
            table, held, size = self._table(layer)
            is_other = bool(layers) and layer.compute_dtype != layers[-1].compute_dtype
            if is_other or (copied and copied + size > _COPIED_BYTES):
                yield _part(layers, tables, kept)
                layers, tables, kept, copied = [], [], [], 0
            layers.append(layer)
            tables.append(table)
            kept += held
            copied += size
        if layers:
            yield _part(layers, tables, kept)

    def _table(self, layer: Layer) -> tuple[Integers, list[object], int]:
        """Return where a layer's rows are, what keeps them there, and how much was copied."""
        found = self._source.addresses(layer)
        assert found is not None
        table, held = found
        flats = [self._source.flatten(layer, each[layer.name]) for each in self._references]
        others = [address(flat) for flat in flats]
        copied = sum(each.nbytes for each in held)
        return np.array([*table, *others], dtype=np.int64), [*held, *flats], copied

    def _filling(self, out: Mapping[str, Tensor], store: Store) -> Iterator[tuple[_Part, Integers]]:
        """Go through the tasks with the addresses of their results; narrow what has to be."""
        for part in self._parts():
            flats = [out[layer.name] for layer in part.layers]
            if all(flat.dtype == part.dtype for flat in flats):
                yield part, np.array([flat.data_ptr() for flat in flats], dtype=np.int64)
                continue
            for batch in _batches(part, _WIDE_TASKS):
                spans, outs, wide = {}, np.zeros(len(flats), dtype=np.int64), []
                for place in np.unique(batch.tasks[:, 0]).tolist():
                    mine = batch.tasks[batch.tasks[:, 0] == place]
                    span = int(mine[0, 1]), int(mine[-1, 2])
                    room = torch.empty(span[1] - span[0], dtype=part.dtype)
                    outs[place] = room.data_ptr() - span[0] * part.dtype.itemsize
                    spans[place] = span
                    wide.append((flats[place][span[0] : span[1]], room))
                yield batch, outs
                for target, room in wide:
                    store(target, room)

    def _run(
        self,
        kernel: Callable[..., object],
        part: _Part,
        besides: tuple[Any, ...],
        *,
        is_sample: bool = False,
    ) -> None:
        """Call a kernel for all tasks of a part, and compare what it saw with an earlier read.

        Of a sample nothing is compared or reported: it is some columns of what is read anyway.
        """
        n, tasks = self._n, part.tasks
        watch = None if is_sample else self._source.watch
        on_read = None if is_sample else self._on_read
        direction = torch.empty(0, dtype=part.dtype)
        if watch is not None:
            direction = watch.direction(part.dtype)
        seen = np.zeros((len(tasks), 0 if watch is None else n, 2))
        has_base = int(self._source.has_base)
        fixed = (n, has_base, _halves(), direction.numpy(), seen, *besides)
        widths = np.array([layer.dtype.itemsize for layer in part.layers])[tasks[:, 0]]
        sizes = n * widths * (tasks[:, 2] - tasks[:, 1])
        threads = 1 if int(sizes.sum()) < _ALONE else torch.get_num_threads()
        step = len(tasks)
        if on_read is not None:
            step = max(threads, int(_AT_ONCE // sizes.max()))
        for begin in range(0, len(tasks), step):
            end = min(begin + step, len(tasks))

            def work(first: int, last: int, begin: int = begin) -> None:
                kernel(part.rows, tasks, begin + first, begin + last, *fixed)

            _TEAM.run(work, end - begin, threads)
            if on_read is not None:
                on_read(int(sizes[begin:end].sum()))
        if watch is not None:
            for (place, start, _), found in zip(tasks.tolist(), seen, strict=True):
                watch.compare(part.layers[place], start, *found.T.tolist())


Store: TypeAlias = Callable[[Tensor, Tensor], object]
"""Puts numbers into a tensor of less precision."""


def _bound(
    kernel: Callable[..., object], given: Integers, rest: tuple[Any, ...]
) -> Callable[[int, int], object]:
    return lambda first, last: kernel(given, first, last, *rest)


def add_noise(flats: Sequence[Tensor], starts: Sequence[int], deviation: float) -> None:
    """Add normal noise to flat tensors of one precision, in place; see `kernels.add_noise`.

    Parameters
    ----------
    flats
        Contiguous, on the CPU, float32 or float64.
    starts
        The number of each one's first pair, below 2^64.
    deviation
        Standard deviation.
    """
    from fedimmune._compiled import add_noise  # noqa: PLC0415

    tasks = np.array(_tasks([len(flat) for flat in flats]), dtype=np.int64)
    outs = np.array([flat.data_ptr() for flat in flats], dtype=np.int64)
    by = torch.tensor([deviation], dtype=flats[0].dtype).numpy()
    fixed = np.array(starts, dtype=np.uint64), by, outs
    threads = 1 if sum(flat.nbytes for flat in flats) < _ALONE else torch.get_num_threads()

    def work(first: int, last: int) -> None:
        add_noise(tasks, first, last, *fixed)

    _TEAM.run(work, len(tasks), threads)


def _refuse(*_: Tensor) -> None:
    raise AssertionError("slopes are kept in the precision that they are computed in")


def _no_counts() -> Integers:
    return np.zeros((0, 0), dtype=np.int64)


def _tasks(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Cut layers of these sizes: each task is a layer's place, a first column and an end."""
    return [
        (place, start, min(start + TASK, size))
        for place, size in enumerate(sizes)
        for start in range(0, size, TASK)
    ]


def _part(layers: list[Layer], tables: list[Integers], kept: list[object]) -> _Part:
    return _Part(
        tuple(layers),
        np.stack(tables),
        np.array(_tasks([layer.size for layer in layers]), dtype=np.int64),
        layers[0].compute_dtype,
        tuple(kept),
    )


def _with_tasks(part: _Part, tasks: Integers) -> _Part:
    return _Part(part.layers, part.rows, tasks, part.dtype, part.kept)


def _batches(part: _Part, most: int) -> Iterator[_Part]:
    for first in range(0, len(part.tasks), most):
        yield _with_tasks(part, part.tasks[first : first + most])
