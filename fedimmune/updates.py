"""One round of client updates: who sent what, checked, and readable in blocks of columns.

`Updates` is the only thing that rules see. It does not copy what it is given: tensors stay where
they are, files stay on disk, and both are read layer by layer in blocks that fit the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedimmune._fused import Reading
from fedimmune._inputs import (
    VECTOR_LAYER,
    ClientId,
    InputKind,
    State,
    as_float_tensor,
    by_client,
    client_ids,
    global_tensors,
    is_finite,
    is_model,
    kind_of,
    sample_counts,
    state_tensors,
    vector_states,
    without_repeats,
)
from fedimmune._layers import Kind, Layer, common_layers, layers_of, mismatch, shown
from fedimmune._sources import (
    CHUNK,
    MatrixSource,
    NonFiniteError,
    Rows,
    Source,
    StateSource,
    Watch,
    room,
)
from fedimmune.errors import InputError
from fedimmune.io import load_mapped

__all__ = [
    "CHUNK",
    "REFERENCES",
    "Block",
    "ClientId",
    "NonFiniteError",
    "Updates",
    "UpdatesLike",
]

UpdatesLike: TypeAlias = Any
"""`Updates`, an (n, d) array or tensor, a list of vectors, or a list or mapping of state dicts, or
of models given as lists of arrays."""

REFERENCES = {
    "anchor": "the anchor, the server's own update,",
    "model": "the global model",
    "memory": "the memory of earlier rounds",
}
"""What clients may be compared with besides each other; see `Updates.with_reference`."""

_MOST_COLUMNS = 131_072
_MOST_VALUES = 3_300_000
_MORE_LAYERS = 100


@dataclass(frozen=True)
class Block:
    """Columns ``start:stop`` of one layer, of all clients; not to be written to.

    The same columns of `references` are beside the clients' rows, (columns,) each: to stack them
    would copy the whole block.
    """

    layer: Layer
    start: int
    stop: int
    rows: Rows
    references: tuple[Tensor, ...] = ()

    @property
    def values(self) -> Tensor:
        """The rows of a block that was read stacked, (n, columns)."""
        assert isinstance(self.rows, Tensor)
        return self.rows


@dataclass(frozen=True)
class Updates:
    """One round of client updates.

    Make it with `from_states`, `from_models`, `from_vectors`, `from_files`, or `of` for any of
    the in-memory kinds.

    Parameters
    ----------
    clients
        Ids of the clients that may take part, in the order given.
    layers
        The model's layers.
    rejected
        Why the other clients may not, by id.
    samples
        How many samples each client *says* it trained on; only used by rules that are told to.
    kind
        What the caller handed in, and gets back.
    is_checked
        Whether every value is known to be finite. If it is not, whoever reads first checks.
    block_columns
        How many columns to read at a time, a multiple of 512; by default what fits the cache. It
        does not change any result.
    on_read
        Called with the number of bytes after each block, for progress displays.
    references
        Updates that are not a client's, for rules that compare clients with them, by name; see
        `with_reference`.
    aside
        Why valid clients are suspected before any rule has seen them, by id; they do not take
        part, unless too few would be left. See `set_aside`.
    settled
        What becomes of layers whatever the rule, by name and flat; see `fedimmune.buffers`.
    round
        Number of the round, for rules that draw lots or add noise: in each round anew.
    server_loss
        Returns the loss, on data that the server trusts, of the global model moved by an update;
        for rules that ask for it. See `with_server_loss`.
    shards
        Who reads the trained layers instead of this process; see `fedimmune.sharding`.
    """

    clients: tuple[ClientId, ...]
    layers: tuple[Layer, ...]
    rejected: Mapping[ClientId, str]
    source: Source
    kind: InputKind
    samples: Mapping[Any, float] | None = None
    is_checked: bool = False
    block_columns: int | None = None
    on_read: Callable[[int], None] | None = None
    references: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    aside: Mapping[ClientId, str] = field(default_factory=dict)
    settled: Mapping[str, Tensor] = field(default_factory=dict)
    round: int = 0
    server_loss: Callable[[Any], float] | None = None
    shards: Any = None

    # ---------------------------------------------------------------- making one

    @classmethod
    def of(cls, given: UpdatesLike, **options: Any) -> Updates:
        """Make a round out of whatever the caller has in memory.

        Parameters
        ----------
        given
            `Updates` (returned as they are), an (n, d) numpy array or tensor, a list of vectors,
            or a list or a mapping (by client id) of vectors or of state dicts of differences, or
            of lists of arrays, one per layer, as Flower's NumPy clients have.
        **options
            Passed on to `from_vectors` or `from_states`.
        """
        if isinstance(given, Updates):
            return given
        if isinstance(given, np.ndarray | Tensor):
            return cls.from_vectors(given, **options)
        if not isinstance(given, Iterable) or isinstance(given, str | bytes):
            raise InputError(f"expected one update per client, got {type(given).__name__}")
        many = given if isinstance(given, Mapping) else list(given)
        members = many.values() if isinstance(many, Mapping) else many
        # What most clients sent decides: one odd client must not have all the others rejected.
        if 2 * sum(map(is_model, members)) >= len(many) > 0:
            return cls.from_states(many, **options)
        return cls.from_vectors(many, **options)

    @classmethod
    def from_states(
        cls,
        updates: Mapping[Any, State] | Sequence[State],
        *,
        clients: Sequence[ClientId] | None = None,
        buffers: Iterable[str] = (),
        samples: Mapping[Any, float] | Sequence[float] | None = None,
    ) -> Updates:
        """Make a round from state dicts of differences, one per client.

        Parameters
        ----------
        updates
            Each client's change of the model by layer name (tensors or numpy arrays), by client
            id or in the order of `clients`. If most clients give it as a list of arrays, layers
            are named "0", "1" and so on, and the result is such a list.
        clients
            Ids, if `updates` is a sequence; by default 0, 1, 2, …
        buffers
            Patterns of further layers that are not trained, besides the usual names.
        samples
            How many samples each client says it trained on.
        """
        return cls._from_states(updates, clients, buffers, samples)

    @classmethod
    def from_models(
        cls,
        models: Mapping[Any, State] | Sequence[State],
        global_model: State,
        *,
        clients: Sequence[ClientId] | None = None,
        buffers: Iterable[str] = (),
        samples: Mapping[Any, float] | Sequence[float] | None = None,
    ) -> Updates:
        """Make a round from the clients' state dicts and the global one that they started from.

        Differences are taken block by block while reading; nothing is copied whole. For the
        parameters see `from_states`.
        """
        base = global_tensors(global_model)
        return cls._from_states(models, clients, buffers, samples, base=base, pattern=base)

    @classmethod
    def from_files(
        cls,
        files: Iterable[str | os.PathLike[str]],
        *,
        global_file: str | os.PathLike[str] | None = None,
        are_updates: bool = False,
        buffers: Iterable[str] = (),
        samples: Mapping[Any, float] | None = None,
        on_open: Callable[[], None] | None = None,
    ) -> Updates:
        """Make a round from safetensors files, one per client, mapped into memory.

        The operating system reads what is touched and drops it again, so a round may be larger
        than memory. A client's id is its file's stem; a file that cannot be read is a rejected
        client like any other.

        Parameters
        ----------
        files
            One file per client.
        global_file
            The model that the clients started from.
        are_updates
            The files hold differences; by default they hold models, and `global_file` is needed.
            If it is given all the same, it says which layers are right.
        buffers, samples
            As in `from_states`.
        on_open
            Called after each file, for progress displays.
        """
        if global_file is None and not are_updates:
            raise InputError(
                "client models need the global model that they started from: give global_file, "
                "or are_updates=True if the files hold differences"
            )
        pattern: dict[str, Tensor] | None = None
        if global_file is not None:
            try:
                mapped = load_mapped(global_file)
            except InputError as error:
                raise InputError(f"the global model {error}") from error
            pattern = global_tensors(mapped)
        # One layer too many is named; a million are not even listed.
        few = {} if pattern is None else {"most": len(pattern) + _MORE_LAYERS}
        ids: list[ClientId] = []
        states: list[State] = []
        unreadable: list[str | None] = []
        for file in files:
            ids.append(Path(file).stem)
            try:
                states.append(load_mapped(file, **few))
                unreadable.append(None)
            except InputError as error:
                states.append({})
                unreadable.append(str(error))
            if on_open is not None:
                on_open()
        base = None if are_updates else pattern
        made = cls._from_states(
            states,
            ids,
            buffers,
            samples,
            base=base,
            pattern=pattern,
            known_reasons=unreadable,
            watch=Watch(ids),
        )
        # Fixed, so that a second read of fewer clients has the same blocks to compare.
        return replace(made, block_columns=made.columns)

    @classmethod
    def from_vectors(
        cls,
        vectors: Any,
        *,
        clients: Sequence[ClientId] | None = None,
        layers: Mapping[str, Sequence[int]] | None = None,
        samples: Mapping[Any, float] | Sequence[float] | None = None,
    ) -> Updates:
        """Make a round from an (n, d) array or tensor, or from a list or mapping of vectors.

        Parameters
        ----------
        vectors
            One row or vector per client. Integers are read as floating-point numbers.
        clients
            Ids; by default 0, 1, 2, … (or the mapping's keys).
        layers
            Shapes by layer name, in the order of the columns, if the columns are a whole
            model's; by default one layer. Only for an (n, d) array or tensor.
        samples
            How many samples each client says it trained on.
        """
        if not isinstance(vectors, np.ndarray | Tensor):
            if layers is not None:
                raise InputError("layers= describes the columns of one (n, d) array or tensor")
            clients, vectors = by_client(vectors, clients)
            states, reasons = vector_states(vectors)
            made = cls._from_states(states, clients, (), samples, known_reasons=reasons)
            has_tensor = any(isinstance(vector, Tensor) for vector in vectors)
            return replace(made, kind=InputKind.TENSOR if has_tensor else InputKind.ARRAY)
        matrix = as_float_tensor(vectors)
        if matrix.ndim != 2:
            raise InputError(
                f"expected one vector per client, (n, d); got an array of shape "
                f"{tuple(matrix.shape)}"
            )
        shapes = {VECTOR_LAYER: (matrix.shape[1],)} if layers is None else layers
        described, offsets, offset = [], {}, 0
        for name, shape in shapes.items():
            described.append(Layer(name, tuple(shape), matrix.dtype, Kind.PARAMETER))
            offsets[name] = offset
            offset += described[-1].size
        if offset != matrix.shape[1]:
            raise InputError(f"the layers hold {offset} values, the vectors {matrix.shape[1]}")
        ids = client_ids(clients, len(matrix))
        empty = None if offset else "is empty: it holds no values"
        kind = InputKind.TENSOR if isinstance(vectors, Tensor) else InputKind.ARRAY
        source, counts = MatrixSource(matrix, offsets), sample_counts(samples, ids)
        return cls._screened(ids, [empty] * len(ids), tuple(described), source, kind, counts)

    @classmethod
    def _from_states(
        cls,
        given: Mapping[Any, State] | Sequence[State],
        clients: Sequence[ClientId] | None,
        buffers: Iterable[str],
        samples: Mapping[Any, float] | Sequence[float] | None,
        *,
        base: dict[str, Tensor] | None = None,
        pattern: dict[str, Tensor] | None = None,
        known_reasons: Sequence[str | None] | None = None,
        watch: Watch | None = None,
    ) -> Updates:
        """Screen state dicts: `base` is subtracted, `pattern` says which layers are right."""
        clients, given = by_client(given, clients)
        ids = client_ids(clients, len(given))
        known = [None] * len(ids) if known_reasons is None else known_reasons
        read = [state_tensors(state) for state in given]
        states = [state for state, _ in read]
        reasons = [one or problem for one, (_, problem) in zip(known, read, strict=True)]
        if pattern is None:
            usable = [s for s, reason in zip(states, reasons, strict=True) if reason is None]
            layers = common_layers(usable, tuple(buffers))
        else:
            layers = layers_of(pattern, tuple(buffers))
        reasons = [
            reason or mismatch(state, layers) for state, reason in zip(states, reasons, strict=True)
        ]
        source, counts = StateSource(states, base, watch), sample_counts(samples, ids)
        return cls._screened(ids, reasons, layers, source, kind_of(given, layers), counts)

    @classmethod
    def _screened(
        cls,
        ids: Sequence[ClientId],
        reasons: Sequence[str | None],
        layers: tuple[Layer, ...],
        source: Source,
        kind: InputKind,
        samples: Mapping[Any, float] | None,
    ) -> Updates:
        """Keep the clients without a reason against them, each id once."""
        kept, rejected = without_repeats(ids, reasons)
        taken = source if len(kept) == len(ids) else source.take(kept)
        return cls(tuple(ids[row] for row in kept), layers, rejected, taken, kind, samples)

    # ---------------------------------------------------------------- reading it

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        rejected = f", {len(self.rejected)} rejected" if self.rejected else ""
        layers = "layer" if len(self.layers) == 1 else "layers"
        return (
            f"Updates({len(self)} clients{rejected}; "
            f"{self.size:,} values each in {len(self.layers)} {layers})"
        )

    @property
    def device(self) -> torch.device:
        """Where blocks are computed: where the caller's tensors are."""
        return self.source.device

    @property
    def columns(self) -> int:
        """How many columns a block has at most."""
        if self.block_columns is not None:
            return max(1, -(-self.block_columns // CHUNK)) * CHUNK
        fitting = _MOST_VALUES // max(1, len(self))
        return min(_MOST_COLUMNS, max(8 * CHUNK, 1 << (fitting.bit_length() - 1)))

    @property
    def size(self) -> int:
        """How many values one client's update has."""
        return sum(layer.size for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """How many bytes the whole round has."""
        return len(self) * sum(layer.size * layer.dtype.itemsize for layer in self.layers)

    def of_kind(self, *kinds: Kind) -> tuple[Layer, ...]:
        """Return the layers of these kinds, in the model's order."""
        return tuple(layer for layer in self.layers if layer.kind in kinds)

    def blocks(
        self,
        layers: Iterable[Layer],
        *,
        check: bool,
        stacked: bool = False,
        references: Sequence[str] = (),
    ) -> Iterator[Block]:
        """Read layers in blocks of columns.

        Parameters
        ----------
        layers
            Which layers (not integer ones).
        check
            Stop with `NonFiniteError` at a value that is not finite, unless all are known to be.
        stacked
            Whether the rows are wanted as one tensor, which may take a copy.
        references
            Names of references whose columns are wanted beside the clients'.

        Yields
        ------
        Block
            Valid until the next one is asked for; not to be written to.
        """
        buffers: dict[torch.dtype, Tensor] = {}
        read = self.source.read if stacked else self.source.rows
        for layer in layers:
            width, device, dtype = min(self.columns, layer.size), self.device, layer.compute_dtype
            chosen = [self.references[name][layer.name] for name in references]
            others = [self.source.flatten(layer, tensor) for tensor in chosen]
            for start in range(0, layer.size, width or 1):
                stop = min(start + width, layer.size)
                rows = read(layer, start, stop, self._buffer(layer, buffers))
                if check and not self.is_checked and _doubtful(rows):
                    raise NonFiniteError
                beside = tuple(other[start:stop].to(device, dtype) for other in others)
                yield Block(layer, start, stop, rows, beside)
                if self.on_read is not None:
                    self.on_read(len(self) * (stop - start) * layer.dtype.itemsize)

    def reading(self, layers: Sequence[Layer], references: Sequence[str] = ()) -> Reading | None:
        """Return what reads layers in one go; None if they have to be read in `blocks`.

        Parameters
        ----------
        layers
            Which layers (not integer ones).
        references
            Names of references that are to be read with the clients' rows.
        """
        chosen = [self.references[name] for name in references]
        return Reading.of(self.source, len(self), layers, chosen, self.on_read)

    def _buffer(self, layer: Layer, buffers: dict[torch.dtype, Tensor]) -> Tensor:
        dtype = layer.compute_dtype
        if dtype not in buffers:
            widest = max(other.size for other in self.layers if other.compute_dtype == dtype)
            buffers[dtype] = room(len(self), min(self.columns, widest), dtype, self.device)
        return buffers[dtype]

    def state(self, client: ClientId) -> dict[str, Tensor]:
        """Return a copy of what one client sent, by layer."""
        if client not in self.clients:
            raise InputError(f"there is no valid update of client {client!r}")
        source, found = self.only([client]).source, {}
        for layer in self.layers:
            if layer.kind is Kind.COUNTER:
                flat = source.counters(layer)[0]
            else:
                buffer = room(1, layer.size, layer.compute_dtype, self.device)
                flat = source.read(layer, 0, layer.size, buffer)[0]
            found[layer.name] = source.unflatten(layer, flat).to(layer.dtype, copy=True)
        return found

    def parameters_of(self, update: Any) -> dict[str, Tensor]:
        """Return the trained layers of an aggregated update by name: views, never copies.

        Parameters
        ----------
        update
            In the caller's own kind.
        """
        every = self.by_layer(update)
        return {layer.name: every[layer.name] for layer in self.of_kind(Kind.PARAMETER)}

    def by_layer(self, update: Any) -> dict[str, Tensor]:
        """Return all layers of an aggregated update by name: views, never copies.

        Parameters
        ----------
        update
            In the caller's own kind.
        """
        if self.kind is InputKind.STATE:
            return {layer.name: update[layer.name] for layer in self.layers}
        if self.kind.has_layers:
            return {layer.name: torch.as_tensor(update[int(layer.name)]) for layer in self.layers}
        flat = torch.as_tensor(update).split([layer.size for layer in self.layers])
        return {
            layer.name: part.view(layer.shape)
            for part, layer in zip(flat, self.layers, strict=True)
        }

    # ---------------------------------------------------------------- what is not a client's

    def with_reference(self, name: str, update: Any, *, is_checked: bool = False) -> Updates:
        """Return the round with an update that is not a client's, to compare clients with.

        It is measured with the clients' updates, and never aggregated.

        Parameters
        ----------
        name
            What it is: one of `REFERENCES`.
        update
            A state dict of differences, or a vector if the clients' updates are vectors.
        is_checked
            Whether every value is known to be finite.
        """
        if name not in REFERENCES:
            raise InputError(f"there is no reference {name!r}; there are {', '.join(REFERENCES)}")
        if not is_model(update):
            update = {VECTOR_LAYER: as_float_tensor(update)}
        state, problem = state_tensors(update)
        wrong = problem or mismatch(state, self.layers)
        if wrong is None and not is_checked:
            floats = [state[layer.name] for layer in self.of_kind(Kind.PARAMETER)]
            if not all(map(is_finite, floats)):
                wrong = "holds NaN or infinite values"
        if wrong:
            raise InputError(f"{REFERENCES[name]} {wrong}")
        return replace(self, references={**self.references, name: state})

    def with_anchor(self, update: Any) -> Updates:
        """Return the round with the server's own update, which rules may compare clients with.

        Parameters
        ----------
        update
            What the server got by training the same global model on a little data of its own: a
            state dict of differences, or a vector if the clients' updates are vectors.
        """
        return self.with_reference("anchor", update)

    def with_server_loss(self, loss: Callable[[Any], float]) -> Updates:
        """Return the round with a measure of how good an update is, for rules that ask for it.

        Parameters
        ----------
        loss
            Called with a state dict of differences (or a vector, if clients send vectors), returns
            the loss of the global model moved by it on data that the server trusts. One client's
            update after the other is given to it, and zeros, which stand for no change.
        """
        return replace(self, server_loss=loss)

    def supplying(self, needs: Iterable[str]) -> Updates:
        """Return the round with the global model as a reference if that is needed and known."""
        layers = self.of_kind(Kind.PARAMETER)
        if "model" not in needs or "model" in self.references or not layers:
            return self
        if self.source.base_of(layers[0]) is None:
            return self
        return self.with_reference(
            "model", {layer.name: self.source.base_of(layer) for layer in self.layers}
        )

    @property
    def supplied(self) -> frozenset[str]:
        """What comes with the round besides the clients' updates."""
        found = frozenset(self.references)
        return found if self.server_loss is None else found | {"server_loss"}

    # ---------------------------------------------------------------- leaving clients out

    def only(self, clients: Iterable[ClientId]) -> Updates:
        """Return the round of some clients alone (the others are not *rejected*, just not read)."""
        wanted = set(clients)
        rows = [row for row, client in enumerate(self.clients) if client in wanted]
        if len(rows) == len(self):
            return self
        kept = tuple(self.clients[row] for row in rows)
        return replace(self, clients=kept, source=self.source.take(rows))

    def reject(self, reasons: Mapping[ClientId, str]) -> Updates:
        """Return the round without these clients, who are listed as rejected with the reason."""
        rest = self.only(client for client in self.clients if client not in reasons)
        return replace(rest, rejected={**self.rejected, **reasons})

    def set_aside(self, reasons: Mapping[ClientId, str]) -> Updates:
        """Return the round without these clients, who are suspected for the reason given."""
        rest = self.only(client for client in self.clients if client not in reasons)
        return replace(rest, aside={**self.aside, **reasons})

    def checked(self) -> Updates:
        """Return the round without the clients that sent NaN or infinite values, each named."""
        if self.is_checked:
            return self
        floats = self.of_kind(Kind.PARAMETER, Kind.BUFFER)
        reasons: dict[ClientId, str] = {}
        if self.shards is not None:
            reasons, floats = self.shards.rejected(self), self.of_kind(Kind.BUFFER)
        reading = self.reading(floats)
        bad = self._invalid(floats) if reading is None else reading.check()
        what = "holds NaN or infinite values"
        has_layers = self.kind.has_layers
        for row, layer in sorted(bad.items()):
            said = f"layer {shown(layer.name)} {what}" if has_layers else what
            reasons.setdefault(self.clients[row], said)
        return replace(self.reject(reasons), is_checked=True)

    def _invalid(self, layers: Iterable[Layer]) -> dict[int, Layer]:
        """Find the rows that hold values that are not finite, with the first such layer."""
        found: dict[int, Layer] = {}
        for block in replace(self, is_checked=True).blocks(layers, check=False):
            for row in _doubtful(block.rows):
                if not bool(torch.isfinite(block.rows[row]).all()):
                    found.setdefault(row, block.layer)
        return found


def _doubtful(rows: Rows) -> list[int]:
    """Which rows may hold a value that is not finite.

    A finite sum proves that all its terms are finite; one that is not may only be too large.
    """
    sums = rows.sum(1) if isinstance(rows, Tensor) else torch.stack([r.sum() for r in rows])
    finite = torch.isfinite(sums)
    return [] if bool(finite.all()) else (~finite).nonzero().flatten().tolist()
