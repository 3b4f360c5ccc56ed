"""Data sets as the models take them, in one file each: written once, mapped ever after.

A prepared file is also how several processes share one data set: each maps it, and the operating
system keeps its pages once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.files import load_mapped, read_metadata, write_atomically
from fedimmune.tasks.base import Data, Samples
from fedimmune.tasks.place import user_cache

__all__ = ["data_bytes", "prepared", "read_data", "write_data"]

_LOG = logging.getLogger("fedimmune")
_FORMAT = "fedimmune-data-1"
_PARTS = ("clients", "server")


def write_data(data: Data, path: Path) -> None:
    """Write a data set to one safetensors file; replaced whole or not at all."""
    tensors, metadata = _contents(data)
    write_atomically(tensors, path, metadata)


def data_bytes(data: Data) -> bytes:
    """Give what `write_data` writes."""
    tensors, metadata = _contents(data)
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)


def _contents(data: Data) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors = {f"extras.{name}": tensor for name, tensor in data.extras.items()}
    for part in _PARTS:
        samples: Samples = getattr(data, part)
        tensors |= {f"{part}.inputs": samples.inputs, f"{part}.labels": samples.labels}
    _part(tensors)
    about = json.dumps({"classes": data.classes, "highest": data.highest})
    return tensors, {"format": _FORMAT, "about": about}


def _part(tensors: dict[str, Tensor]) -> None:
    """Give views of one tensor a memory each: the format has no shared ones."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen:
            tensors[name] = tensor.clone()
        seen.add(memory)


def read_data(path: Path) -> Data:
    """Map what `write_data` wrote."""
    tensors = load_mapped(path)
    metadata = read_metadata(path)
    if metadata.get("format") != _FORMAT:
        raise InputError(f"{path} is no prepared data set of this version ({_FORMAT}): delete it")
    try:
        about = json.loads(metadata["about"])
        clients, server = (
            Samples(tensors[f"{part}.inputs"], tensors[f"{part}.labels"]) for part in _PARTS
        )
        extras = {
            name.removeprefix("extras."): tensor
            for name, tensor in tensors.items()
            if name.startswith("extras.")
        }
        highest = None if about["highest"] is None else tuple(about["highest"])
        return Data(clients, server, about["classes"], highest, extras, path)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged: delete it, and it is made anew") from error


def prepared(
    name: str,
    place: Path,
    sources: Iterable[Path],
    settings: Mapping[str, object],
    make: Callable[[], Data],
) -> Data:
    """Map the prepared file of a data set, having made it where there is none.

    Parameters
    ----------
    name
        Of the data set.
    place
        The folder of data sets. The file goes to ``prepared/`` in it, or, where that cannot be
        written, to the user's cache.
    sources
        The files that it is made from. Where one of them changes, it is made anew.
    settings
        What else it depends on; a number for the way of preparing among them.
    make
        Reads the sources.
    """
    key = _key(sources, settings)
    folders = (place / "prepared", user_cache() / "prepared")
    for folder in folders:
        file = folder / f"{name}-{key}.safetensors"
        if os.path.isfile(file):  # not Path.is_file, which raises where looking is not allowed
            try:
                return read_data(file)
            except InputError:
                continue  # damaged: made anew
    data = make()
    problem: Exception | None = None
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{name}-{key}.safetensors"
            write_data(data, file)
            return read_data(file)
        except (OSError, InputError) as error:
            problem = error
    _LOG.warning(f"{name}: cannot be kept, and is prepared again next time: {problem}")
    return data


def _key(sources: Iterable[Path], settings: Mapping[str, object]) -> str:
    # Size and time say whether a file was replaced, without reading gigabytes.
    stats = sorted(
        (str(source.absolute()), found.st_size, found.st_mtime_ns)
        for source in sources
        for found in [os.stat(source)]
    )
    text = json.dumps([stats, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
