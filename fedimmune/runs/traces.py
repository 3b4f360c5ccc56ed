"""Traces: what a run keeps of a round's updates, so that its verdicts can be explained later.

One safetensors file per round in the run's folder ``traces``: the inner products that the learned
rule weighed the clients by, and every client's update of the layers to be saved. A run without the
learned rule and without layers to save has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from fedimmune._inputs import savable_ids
from fedimmune._layers import FLOATS, Layer
from fedimmune.errors import InputError
from fedimmune.io import read_described, read_description, write_described
from fedimmune.rules.base import DecisionInputs
from fedimmune.untrusted import naming
from fedimmune.updates import ClientId, Updates

__all__ = ["Trace", "Traces", "trace_of"]

_FORMAT = "fedimmune-trace-3"
_FILE = re.compile(r"round-(\d{4,})\.safetensors")
_UNFINISHED = re.compile(r"\.round-\d{4,}\.safetensors\.[0-9a-f]{8}")
_KEPT = "kept/"
"""Before a layer's name, so that no layer can be taken for the inner products."""
_Size = Annotated[int, Field(ge=0, lt=2**53, strict=True)]
_Shapes = TypeAdapter(tuple[Annotated[tuple[_Size, ...], Field(max_length=64)], ...])


@dataclass(frozen=True)
class Trace:
    """What is kept of one round.

    Parameters
    ----------
    round
        From 1.
    clients
        Whom the rule weighed, in the order of the rows of `grams`. Ids are text once written.
    layers
        Names of the measured layers.
    grams
        Inner products by layer, (layers, rows, rows), float64: of the clients, then of the
        references; None if the rule is not the learned one, or could not weigh.
    evidence
        What earlier rounds held against each client, as the rule added it up; None without memory.
    senders
        Whose updates were kept, in the order of the rows of `kept`.
    kept
        Updates by layer, (senders, *shape).
    references
        What the rows of `grams` are that follow the clients': ``anchor`` for the server's own
        update.
    shapes
        Of the measured layers, in their order; empty if they are not known.
    """

    round: int
    clients: tuple[ClientId, ...] = ()
    layers: tuple[str, ...] = ()
    grams: Tensor | None = None
    evidence: Tensor | None = None
    senders: tuple[ClientId, ...] = ()
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    references: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()


def trace_of(
    number: int, updates: Updates, basis: DecisionInputs | None, save_updates: Sequence[str]
) -> Trace:
    """Gather what is to be kept of a round.

    Parameters
    ----------
    number
        Of the round.
    updates
        Everything that was sent.
    basis
        What the rule's answer rests on; None if the rule keeps nothing.
    save_updates
        Names of the layers whose updates are kept.
    """
    by_name = {layer.name: layer for layer in updates.layers}
    kept = {name: _rows(updates, by_name[name]) for name in save_updates if name in by_name}
    senders = updates.clients if kept else ()
    if basis is None:
        return Trace(number, senders=senders, kept=kept)
    geometry = basis.geometry
    return Trace(
        round=number,
        clients=geometry.clients,
        layers=geometry.layers,
        grams=geometry.grams(*geometry.references),
        evidence=basis.evidence,
        references=geometry.references,
        shapes=geometry.shapes,
        senders=senders,
        kept=kept,
    )


def _rows(updates: Updates, layer: Layer) -> Tensor:
    """Copy one layer of every client: the next round writes to where it was read."""
    blocks = updates.blocks([layer], check=False, stacked=True)
    parts = [block.values.cpu().clone() for block in blocks]
    if not parts:
        return torch.zeros(len(updates), *layer.shape)
    return torch.cat(parts, 1).reshape(len(updates), *layer.shape)


class Traces:
    """The traces of one run; their folder is made when the first is written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def rounds(self) -> list[int]:
        """Return which rounds have one."""
        return sorted(self._files())

    def lacking(self, layer: str, rounds: int) -> list[int]:
        """Return which of the first rounds did not keep a layer."""
        return [number for number in range(1, rounds + 1) if layer not in self._kept(number)]

    def kept_layers(self) -> list[str]:
        """Return the names of the layers that any round kept."""
        names = (name for number in self.rounds() for name in self._kept(number))
        return list(dict.fromkeys(names))

    def read(self, number: int) -> Trace:
        """Read the trace of a round.

        Raises
        ------
        InputError
            There is none, or it is damaged; the message names it.
        """
        file = self._file(number)
        if not file.is_file():
            raise InputError(f"round {number} left no trace: there is no {file}")
        tensors, about = read_described(file, _FORMAT)
        with naming(f"the trace {file}"):
            kept = _names(about.get("kept"))
            wanted = {_KEPT + name for name in kept} | (tensors.keys() & {"grams", "evidence"})
            if tensors.keys() != wanted or about.get("round") != number:
                raise InputError("its parts do not belong together")
            found = Trace(
                round=number,
                clients=tuple(savable_ids(about.get("clients"))),
                layers=_names(about.get("layers")),
                grams=tensors.get("grams"),
                evidence=tensors.get("evidence"),
                references=_names(about.get("references")),
                shapes=_shapes(about.get("shapes", [])),
                senders=tuple(savable_ids(about.get("senders"))),
                kept={name: tensors[_KEPT + name] for name in kept},
            )
            _check(found)
        return found

    def write(self, trace: Trace) -> None:
        """Replace a round's trace; one that holds nothing is not written."""
        if trace.grams is None and not trace.kept:
            self._file(trace.round).unlink(missing_ok=True)
            return
        measured = {"grams": trace.grams, "evidence": trace.evidence}
        tensors = {name: tensor for name, tensor in measured.items() if tensor is not None}
        tensors |= {_KEPT + name: tensor for name, tensor in trace.kept.items()}
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write traces to {self.path}: {error.strerror}") from error
        write_described(
            tensors,
            self._file(trace.round),
            format=_FORMAT,
            round=trace.round,
            clients=[str(client) for client in trace.clients],
            layers=list(trace.layers),
            references=list(trace.references),
            shapes=[list(shape) for shape in trace.shapes],
            senders=[str(client) for client in trace.senders],
            kept=list(trace.kept),
        )

    def forget_after(self, number: int) -> None:
        """Remove the traces of rounds that are going to be played again."""
        for found, file in self._files().items():
            if found > number:
                file.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what a process that was killed had begun to write."""
        if self.path.is_dir():
            for file in self.path.iterdir():
                if _UNFINISHED.fullmatch(file.name):
                    file.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all of them, and the folder if nothing else is in it."""
        self.tidy()
        self.forget_after(0)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _kept(self, number: int) -> list[str]:
        """Return the names of kept layers, without reading the layers."""
        file = self._file(number)
        if not file.is_file():
            return []
        with naming(f"the trace {file}"):
            return list(_names(read_description(file).get("kept")))

    def _file(self, number: int) -> Path:
        return self.path / f"round-{number:04}.safetensors"

    def _files(self) -> dict[int, Path]:
        if not self.path.is_dir():
            return {}
        found = ((_FILE.fullmatch(file.name), file) for file in self.path.iterdir())
        return {int(match[1]): file for match, file in found if match is not None}


def _names(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InputError("it does not name its layers")
    if len(set(found)) < len(found):
        raise InputError("it names a layer twice")
    return tuple(found)


def _shapes(found: object) -> tuple[tuple[int, ...], ...]:
    try:
        return _Shapes.validate_python(found)
    except ValidationError:
        raise InputError("it does not say which shapes its layers have") from None


def _is_finite(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float64 and bool(torch.isfinite(tensor).all())


def _check(trace: Trace) -> None:
    """Refuse parts that do not belong together."""
    clients, layers, grams = len(trace.clients), len(trace.layers), trace.grams
    fits = all(
        tensor.shape[:1] == (len(trace.senders),) and tensor.dtype in FLOATS
        for tensor in trace.kept.values()
    )
    if grams is not None:
        rows = clients + len(trace.references)
        fits &= layers > 0 and clients > 0 and grams.shape == (layers, rows, rows)
        fits &= len(trace.shapes) in (0, layers)
        fits &= _is_finite(grams)
    if trace.evidence is not None:
        fits &= trace.evidence.shape == (clients,) and _is_finite(trace.evidence)
    if not fits:
        raise InputError("its parts do not belong together")
