"""What rules remember from round to round, and how it is saved.

Clients are remembered by id and never by position: who takes part, and in what order, changes
every round.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedimmune._inputs import savable_ids
from fedimmune._layers import FLOATS, Kind, Layer
from fedimmune._sources import Source, room, shaped
from fedimmune.errors import InputError
from fedimmune.io import read_described, write_described
from fedimmune.rules.base import Rule
from fedimmune.untrusted import naming
from fedimmune.updates import ClientId, Updates

__all__ = ["History", "Remembering"]

_FORMAT = "fedimmune-history-2"


class Remembering(Rule):
    """A rule that remembers earlier rounds, in tensors and plain values.

    What a round adds is kept by `Rule.finish` alone, so that a round that fails leaves no trace.
    """

    @property
    def has_history(self) -> bool:
        return True

    @abstractmethod
    def remembered(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what is remembered: tensors by name, and values that JSON can hold."""

    @abstractmethod
    def recall(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Take up what `remembered` once returned; tensors are finite floating-point numbers.

        Raises
        ------
        InputError
            It is not what `remembered` returns. Nothing has been changed.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        tensors, about = self.remembered()
        write_described(tensors, path, format=f"fedimmune-{self.name}-1", **about)

    def restore(self, path: str | os.PathLike[str]) -> None:
        tensors, about = read_described(path, f"fedimmune-{self.name}-1")
        with naming(f"the history {path}"):
            for tensor in tensors.values():
                if tensor.dtype not in FLOATS or not bool(torch.isfinite(tensor).all()):
                    raise InputError("it holds values that are not finite")
            self.recall(tensors, about)


@dataclass(frozen=True)
class History:
    """The sum of each client's updates so far.

    A value: `after` returns a new history and leaves the old one as it is, so that a round that
    fails half-way leaves no trace.

    Parameters
    ----------
    sums
        Tensors by layer name, by client id.
    """

    sums: Mapping[ClientId, Mapping[str, Tensor]] = field(default_factory=dict)

    def added_to(self, updates: Updates) -> Source:
        """Return a source whose rows are this round's updates plus each client's past."""
        for client in updates.clients:
            for layer in updates.of_kind(Kind.PARAMETER) if client in self.sums else ():
                known = self.sums[client].get(layer.name)
                if known is None or tuple(known.shape) != layer.shape:
                    raise InputError(
                        f"the history of client {client} is of another model: "
                        f"it has no layer {layer.name!r} of shape {layer.shape}"
                    )
        return _WithPast(updates.source, [self.sums.get(client, {}) for client in updates.clients])

    def after(self, updates: Updates) -> History:
        """Return the history with one more round; clients that took no part keep theirs."""
        layers = updates.of_kind(Kind.PARAMETER)
        source = self.added_to(updates)
        fresh: dict[ClientId, dict[str, Tensor]] = {client: {} for client in updates.clients}
        for layer in layers:
            buffer = room(len(updates), layer.size, layer.compute_dtype, source.device)
            rows = source.read(layer, 0, layer.size, buffer)
            for client, row in zip(updates.clients, rows, strict=True):
                fresh[client][layer.name] = source.unflatten(layer, row.clone())
        return History({**self.sums, **fresh})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it is replaced whole or not at all.

        Raises
        ------
        InputError
            Clients have ids that cannot be saved, or are of different models.
        """
        clients = savable_ids(list(self.sums))
        every = [self.sums[client] for client in clients]
        shapes = [{name: tensor.shape for name, tensor in each.items()} for each in every]
        if any(each != shapes[0] for each in shapes):
            raise InputError("clients' histories are of different models: begin a new history")
        # One tensor for each layer, not for each client too: there may be thousands of both.
        names = list(every[0]) if every else []
        tensors = {name: torch.stack([each[name] for each in every]) for name in names}
        write_described(tensors, path, format=_FORMAT, clients=clients)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            There is no such file, it is damaged, no history, or of an unknown version.
        """
        tensors, about = read_described(path, _FORMAT)
        with naming(f"the history {path}"):
            clients = savable_ids(about.get("clients"))
            for tensor in tensors.values():
                if tensor.shape[:1] != (len(clients),):
                    raise InputError("its clients and tensors disagree")
                if tensor.dtype not in FLOATS or not bool(torch.isfinite(tensor).all()):
                    raise InputError("it holds values that are not finite")
        return cls(
            {
                client: {name: tensor[row].clone() for name, tensor in tensors.items()}
                for row, client in enumerate(clients)
            }
        )


class _WithPast(Source):
    """A source whose rows have the clients' past added."""

    def __init__(self, source: Source, past: Sequence[Mapping[str, Tensor]]) -> None:
        self._source, self._past = source, list(past)

    @property
    def device(self) -> torch.device:
        return self._source.device

    def read(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Tensor:
        read = self._source.read(layer, start, stop, buffer)
        block = shaped(buffer, *read.shape)
        if read.data_ptr() != block.data_ptr():
            block.copy_(read)
        for row, past in zip(block, self._past, strict=True):
            if layer.name in past:
                row.add_(self.flatten(layer, past[layer.name])[start:stop].to(row.device))
        return block

    def take(self, rows: Sequence[int]) -> _WithPast:
        return _WithPast(self._source.take(rows), [self._past[row] for row in rows])

    def flatten(self, layer: Layer, tensor: Tensor) -> Tensor:
        return self._source.flatten(layer, tensor)

    def unflatten(self, layer: Layer, columns: Tensor) -> Tensor:
        return self._source.unflatten(layer, columns)
