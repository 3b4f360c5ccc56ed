"""A round that lies on disk: from client files to the next global model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedimmune.aggregation import Aggregation
from fedimmune.errors import InputError, ParameterError
from fedimmune.files import DESCRIPTION, load_mapped, read_metadata, writable, write_atomically
from fedimmune.layers import FLOATS
from fedimmune.rules import Rule
from fedimmune.updates import Updates

__all__ = ["aggregate_files"]

AnyPath = str | os.PathLike[str]


def aggregate_files(
    rule: Rule,
    files: Iterable[AnyPath],
    *,
    global_file: AnyPath | None = None,
    output: AnyPath | None = None,
    are_updates: bool = False,
    buffers: Iterable[str] = (),
    samples: Mapping[Any, float] | None = None,
    history: AnyPath | None = None,
    anchor: AnyPath | None = None,
    on_start: Callable[[int], None] | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Aggregation:
    """Aggregate client files and write the next global model.

    Parameters
    ----------
    rule
        The rule; see `fedimmune.rules.get`.
    files
        One safetensors file a client, whose stem is the client's id.
    global_file
        The model that the clients started from. May be left out where `are_updates`; then the
        aggregated update itself is written.
    output
        Where to write; replaced whole or not at all. None writes nothing.
    are_updates
        The client files hold differences to the global model, not models.
    buffers
        Patterns of further layers that are not trained.
    samples
        How many samples each client says it trained on.
    history
        Where a rule with history keeps it; read if it is there, written when all has gone well.
    anchor
        The server's own model, or its difference where `are_updates`, for a rule that compares
        clients with it.
    on_start, on_read
        Called with the number of bytes to be read in all, and after each block with its own.

    Raises
    ------
    FedimmuneError
        There is no result; nothing has been written.
    """
    paths = [Path(file) for file in files]
    _check_places(output, history, paths, global_file)
    _take_up(rule, history)
    updates = Updates.from_files(
        paths, global_file=global_file, are_updates=are_updates, buffers=buffers, samples=samples
    )
    rule.check_needs(() if anchor is None else {"anchor"})
    if anchor is not None:
        updates = updates.with_anchor(_anchor(anchor, None if are_updates else global_file))
    if on_start is not None:
        on_start(updates.nbytes * rule.reads)
    aggregation = rule.aggregate(replace(updates, on_read=on_read))
    if output is not None:
        tensors, metadata = _next_model(aggregation, global_file)
        write_atomically(tensors, output, metadata)
    if history is not None:
        rule.save(history)
    return aggregation


def _check_places(
    output: AnyPath | None,
    history: AnyPath | None,
    clients: Iterable[Path],
    global_file: AnyPath | None,
) -> None:
    """Refuse what could not be written, or would overwrite what was sent, before any work."""
    taken = {os.path.realpath(client): "is one of the client files" for client in clients}
    if output is not None:
        place = str(writable(output))
        if place in taken:
            raise ParameterError(f"the output {output} {taken[place]}: choose another name")
        taken[place] = "is the output too"
    if history is not None:
        if global_file is not None:
            taken[os.path.realpath(global_file)] = "is the global model too"
        place = str(writable(history))
        if place in taken:
            raise ParameterError(f"the history {history} {taken[place]}: choose another name")


def _anchor(file: AnyPath, global_file: AnyPath | None) -> Mapping[str, Tensor]:
    """Read the server's own update; a model is seen as its difference to the global one."""
    try:
        found = load_mapped(file)
    except InputError as error:
        raise InputError(f"the anchor {error}") from error
    base = {} if global_file is None else load_mapped(global_file)
    return {
        name: tensor - base[name]
        if name in base and tensor.shape == base[name].shape and tensor.dtype in FLOATS
        else tensor
        for name, tensor in found.items()
    }


def _take_up(rule: Rule, history: AnyPath | None) -> None:
    if history is None:
        return
    if not rule.has_history:
        raise ParameterError(f"{rule.name} keeps no history, as it was made")
    if Path(history).exists():
        rule.restore(history)


def _next_model(
    aggregation: Aggregation, global_file: AnyPath | None
) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    if global_file is None:
        return aggregation.update, {}
    metadata = read_metadata(global_file)
    metadata.pop(DESCRIPTION, None)  # of a run's model; it is not of this one
    return aggregation.apply(load_mapped(global_file)), metadata
