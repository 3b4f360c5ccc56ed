"""A round of files read by several machines: each reads some columns of all clients.

Inner products and column statistics add up over columns, so a shard measures its own, and the
server adds up n×n numbers; weighted sums and medians of columns need nobody else's columns. All
that rules decide stays where it was: `measure`, `measure_landmarks`, `combine`, `survival` and
`Updates.checked` ask `Updates.shards`, if there are any, to do their reading. What else reads a
round (rules that look at values) does so at the server.

Shards are actors of Ray (Moritz et al., *Ray: A Distributed Framework for Emerging AI
Applications*, OSDI 2018). Every machine has to find the files under the same paths.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fedimmune import geometry, kernels
from fedimmune._inputs import InputKind
from fedimmune._layers import Kind, Layer
from fedimmune._sources import Source
from fedimmune.errors import InputError, ParameterError
from fedimmune.updates import CHUNK, ClientId, NonFiniteError, Updates

__all__ = ["Shards", "column_ranges", "in_this_process", "shard_of", "sharded"]

Ranges = Mapping[str, tuple[int, int]]
"""Columns by layer: first, and after the last."""


def column_ranges(layers: Sequence[Layer], count: int) -> list[dict[str, tuple[int, int]]]:
    """Split the columns of layers into parts of nearly equal size, at multiples of 512.

    Parameters
    ----------
    layers
        Which.
    count
        How many parts; some are empty if there are fewer chunks of 512 columns.
    """
    chunks = [
        (layer.name, start, min(start + CHUNK, layer.size))
        for layer in layers
        for start in range(0, layer.size, CHUNK)
    ]
    found: list[dict[str, tuple[int, int]]] = []
    for number in range(count):
        first, last = number * len(chunks) // count, (number + 1) * len(chunks) // count
        part: dict[str, tuple[int, int]] = {}
        for name, start, stop in chunks[first:last]:
            part[name] = (part.get(name, (start, stop))[0], stop)
        found.append(part)
    return found


def shard_of(updates: Updates, ranges: Ranges) -> Updates:
    """Return some columns of a round's trained layers as a round of its own, of flat layers."""
    whole = {layer.name: layer for layer in updates.layers}
    layers = tuple(
        replace(whole[name], shape=(stop - start,)) for name, (start, stop) in ranges.items()
    )
    source = _Part(updates.source, whole, ranges)
    return replace(
        updates, layers=layers, source=source, kind=InputKind.STATE, references={}, shards=None
    )


class _Part(Source):
    """Some columns of a source."""

    def __init__(self, source: Source, layers: Mapping[str, Layer], ranges: Ranges) -> None:
        self._source, self._layers, self._ranges = source, layers, ranges

    @property
    def device(self) -> torch.device:
        return self._source.device

    def read(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Tensor:
        first = self._ranges[layer.name][0]
        return self._source.read(self._layers[layer.name], first + start, first + stop, buffer)

    def take(self, rows: Sequence[int]) -> _Part:
        return _Part(self._source.take(rows), self._layers, self._ranges)


# -------------------------------------------------------------------- what a shard does

Task = Callable[..., Any]
_PATIENCE = 5.0
"""Seconds."""


def _measured(
    part: Updates, wanted: Sequence[Sequence[str]], references: Sequence[str], pairs: bool
) -> dict[int, tuple[Tensor, Tensor, Tensor]] | None:
    """Measure what the shard has of groups of layers."""
    mine = [[layer for layer in part.layers if layer.name in names] for names in wanted]
    places = [place for place, layers in enumerate(mine) if layers]
    if not places:
        return {}
    groups = [mine[place] for place in places]
    found = geometry.measure_groups(part, groups, references, pairs=pairs)
    if found is None:
        return None
    return {place: (found[0][k], found[1][k], found[2][k]) for k, place in enumerate(places)}


def _by_layer(
    part: Updates, task: Task, wanted: Sequence[str], references: Sequence[str], rest: Sequence[Any]
) -> tuple[list[str], tuple[Tensor, ...]]:
    """Call a task with those of the wanted layers that the shard has columns of."""
    layers = [layer for layer in part.layers if layer.name in wanted]
    found = task(part, layers, references, *rest) if layers else ()
    return [layer.name for layer in layers], found


def _combined(
    part: Updates, function: kernels.ColumnFunction, checked: bool, plus: Mapping[str, float]
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = kernels.combine(
        part, function, parameters_are_checked=checked, plus=plus
    )
    return found


def _used(
    part: Updates, used: Callable[[Tensor], Tensor | None], columns: int
) -> tuple[Tensor, int] | None:
    found = used(kernels.sampled(part, columns))
    return None if found is None else (found.double().sum(1).cpu(), found.shape[1])


def _rejected(part: Updates) -> dict[ClientId, str]:
    return dict(replace(part, is_checked=False, rejected={}).checked().rejected)


@dataclass(frozen=True)
class Shards:
    """What `Updates.shards` is: parts of the columns, and who reads them.

    Parameters
    ----------
    ranges
        Each part's columns.
    run
        Called with a task and its arguments for each part, yields the parts' answers: for each
        the task is called with the part, as a round of the given clients, and the arguments.
    """

    ranges: Sequence[Ranges]
    run: Callable[[Task, Sequence[_Call]], Iterator[Any]]

    def measured(
        self,
        updates: Updates,
        groups: geometry.Groups,
        references: Sequence[str],
        *,
        pairs: bool,
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Measure groups of layers, as `geometry.measure_groups` does."""
        names = [[layer.name for layer in group] for group in groups]
        rows = len(updates) + len(references)
        about = torch.zeros(len(groups), rows, rows, dtype=torch.float64)
        cross, of = about.new_zeros(len(groups), rows), about.new_zeros(len(groups))
        needs_pairs = False
        for _, answer in self._ask(_measured, updates, references, names, tuple(references), pairs):
            needs_pairs |= answer is None
            for place, (products, with_center, square) in (answer or {}).items():
                # Each part is seen from a center of its own: such products add up all the same.
                about[place] += products
                cross[place] += with_center
                of[place] += square
        return None if needs_pairs else (about, cross, of)

    def added(
        self,
        task: Task,
        updates: Updates,
        layers: Sequence[Layer],
        references: Sequence[str],
        *rest: Any,
    ) -> tuple[Tensor, ...]:
        """Add up what a task finds of each layer: tensors whose rows are the layers.

        It is called with the part, the layers that the part has, and all that follows them here.
        """
        names = [layer.name for layer in layers]
        totals: tuple[Tensor, ...] = ()
        given = task, names, tuple(references), rest
        for _, (mine, found) in self._ask(_by_layer, updates, references, *given):
            if not totals:
                totals = tuple(each.new_zeros(len(names), *each.shape[1:]) for each in found)
            index = torch.tensor([names.index(name) for name in mine], dtype=torch.long)
            for total, each in zip(totals, found, strict=False):
                total.index_add_(0, index, each)
        return totals

    def combined(
        self,
        updates: Updates,
        function: kernels.ColumnFunction,
        *,
        checked: bool,
        plus: Mapping[str, float],
    ) -> Iterator[tuple[str, int, Tensor]]:
        """Put columns together: yields the layer, the first column and the values of each part."""
        answers = self._ask(_combined, updates, tuple(plus), function, checked, dict(plus))
        for ranges, answer in answers:
            for name, values in answer.items():
                yield name, ranges[name][0], values

    def survival(
        self, updates: Updates, used: Callable[[Tensor], Tensor | None], columns: int
    ) -> Tensor | None:
        """Return the share of columns at which each client was used, counted on a sample."""
        each = max(CHUNK, columns // len(self.ranges))
        answers = [answer for _, answer in self._ask(_used, updates, (), used, each)]
        if any(answer is None for answer in answers):
            return None
        total = torch.stack([answer[0] for answer in answers]).sum(0)
        return total / sum(int(answer[1]) for answer in answers)

    def rejected(self, updates: Updates) -> dict[ClientId, str]:
        """Return who sent values that are not finite among the trained ones, and why."""
        found: dict[ClientId, str] = {}
        for _, answer in self._ask(_rejected, updates, ()):
            found |= answer
        return found

    def _ask(
        self, task: Task, updates: Updates, references: Sequence[str], *rest: Any
    ) -> Iterator[tuple[Ranges, Any]]:
        """Yield each part's answer as it comes; those of many clients are too large for a list."""
        calls = [
            _Call(
                updates.clients,
                updates.is_checked,
                {name: self._cut(updates, name, ranges) for name in references},
                rest,
            )
            for ranges in self.ranges
        ]
        width = {layer.name: layer.dtype.itemsize for layer in updates.layers}
        problems: list[NonFiniteError] = []
        for ranges, answer in zip(self.ranges, self.run(task, calls), strict=True):
            if isinstance(answer, NonFiniteError):
                problems.append(answer)
                continue
            if updates.on_read is not None and task is not _used:  # which looks at a sample
                updates.on_read(
                    len(updates) * sum(width[n] * (b - a) for n, (a, b) in ranges.items())
                )
            yield ranges, answer
        if problems:
            named = {c: why for problem in problems for c, why in (problem.reasons or {}).items()}
            raise NonFiniteError(named or None)

    @staticmethod
    def _cut(updates: Updates, name: str, ranges: Ranges) -> dict[str, Tensor]:
        found = {}
        for layer in updates.of_kind(Kind.PARAMETER):
            if layer.name in ranges:
                flat = updates.source.flatten(layer, updates.references[name][layer.name])
                found[layer.name] = flat[slice(*ranges[layer.name])].clone()
        return found


@dataclass(frozen=True)
class _Call:
    """What a shard is asked with: of which clients, and what else is there."""

    clients: tuple[ClientId, ...]
    is_checked: bool
    references: Mapping[str, Mapping[str, Tensor]]
    rest: tuple[Any, ...]

    def __call__(self, task: Task, part: Updates) -> Any:
        if self.clients != part.clients:
            part = part.only(self.clients)
        part = replace(part, is_checked=self.is_checked, references=self.references)
        try:
            return task(part, *self.rest)
        except NonFiniteError as error:
            return error


def in_this_process(updates: Updates, count: int) -> Updates:
    """Return a round whose columns are read in parts, one after the other; for tests and trials."""
    ranges = column_ranges(updates.of_kind(Kind.PARAMETER), count)
    parts = [shard_of(updates, each) for each in ranges]

    def run(task: Task, calls: Sequence[_Call]) -> Iterator[Any]:
        return (call(task, part) for call, part in zip(calls, parts, strict=True))

    return replace(updates, shards=Shards(ranges, run))


# -------------------------------------------------------------------- over Ray


class _Reader:
    """What an actor does: opens the files once, and answers."""

    def __init__(self, files: list[str], options: Mapping[str, Any], ranges: Ranges) -> None:
        whole = Updates.from_files(files, **options)
        self._part = shard_of(replace(whole, rejected={}), ranges)
        torch.set_num_threads(1)

    def ask(self, task: Task, call: _Call) -> Any:
        return call(task, self._part)


def _knock(address: str) -> None:
    """Fail at once if nobody listens at an address: Ray itself tries for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


@contextmanager
def sharded(
    updates: Updates,
    files: Sequence[str],
    address: str,
    *,
    workers: int | None = None,
    **options: Any,
) -> Iterator[Updates]:
    """Yield a round of files whose columns are read by workers of a Ray cluster.

    Parameters
    ----------
    updates
        Made of the files here.
    files
        Paths, which every machine of the cluster has to find.
    address
        Of the cluster: ``host:port`` or ``auto`` for one that runs, ``local`` to start one here.
    workers
        How many shards; by default one per CPU of the cluster.
    **options
        As for `Updates.from_files`.

    Raises
    ------
    ParameterError
        Ray is not installed, or nothing answers at the address.
    InputError
        A worker cannot read the files.
    """
    try:
        # An extra, and its types are not complete.
        ray: Any = import_module("ray")
    except ImportError:
        raise ParameterError(
            "reading over Ray needs the package ray: pip install 'fedimmune[flower]' brings it, or "
            "pip install ray"
        ) from None
    is_mine = not ray.is_initialized()
    if is_mine:
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            problem = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
            raise ParameterError(f"no Ray cluster answers at {address!r}: {problem}") from error
    try:
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        ranges = column_ranges(updates.of_kind(Kind.PARAMETER), count)
        reader = ray.remote(num_cpus=1 if workers is None else 0)(_Reader)
        actors = [reader.remote(list(files), options, each) for each in ranges]

        def run(task: Task, calls: Sequence[_Call]) -> Iterator[Any]:
            try:
                asked = [a.ask.remote(task, c) for a, c in zip(actors, calls, strict=True)]
                while asked:
                    yield ray.get(asked.pop(0))
            except ray.exceptions.RayError as error:
                last = str(error).strip().splitlines()[-1]
                raise InputError(f"a worker of the Ray cluster failed: {last}") from error

        yield replace(updates, shards=Shards(ranges, run))
        for actor in actors:
            ray.kill(actor)
    finally:
        if is_mine:
            ray.shutdown()
