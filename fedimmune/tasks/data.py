"""Data sets: where they are, their checks, and prepared files that are mapped into memory."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedimmune.errors import FedimmuneError, InputError
from fedimmune.io import load_mapped, read_metadata, write_atomically
from fedimmune.tasks.base import Data, Samples, SourceFile, Task

__all__ = [
    "build_model",
    "check_labels",
    "count_verdict",
    "data_bytes",
    "data_folder",
    "files_in",
    "load_data",
    "prepared",
    "read_data",
    "tell_subset",
    "user_cache",
    "write_data",
]

_LOG = logging.getLogger("fedimmune")
_FORMAT = "fedimmune-data-1"
_PARTS = ("clients", "server")
_FEW = 2


def user_cache() -> Path:
    """Return the user's cache folder, as the operating system defines it."""
    import pooch  # noqa: PLC0415 (slow to import)

    return Path(pooch.os_cache("fedimmune"))


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Find the folder of data sets: as given, else ``FEDIMMUNE_DATA``, else the user's cache."""
    named = given or os.environ.get("FEDIMMUNE_DATA")
    return Path(named) if named else user_cache() / "data"


def files_in(folder: Path, suffix: str) -> list[Path]:
    """List the files of a folder that end in `suffix`, by name; none if there is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.name.endswith(suffix)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def count_verdict(folder: Path, files: int, published: int) -> SourceFile:
    """Check a folder by its number of files: their checksums were not published."""
    if not folder.is_dir():
        return SourceFile(folder, "missing")
    detail = f"{files:,} of {published:,} files"
    return SourceFile(folder, "unknown" if files == published else "differs", detail)


def check_labels(task: str, source: Path, labels: Tensor, samples: int, classes: int) -> None:
    """Check that there is one label per sample, and at least one sample per class.

    `task` and `source` are for messages.

    Raises
    ------
    InputError
        There is not.
    """
    if len(labels) != samples:
        raise InputError(f"{task}: {source} has {len(labels):,} labels for {samples:,} samples")
    if not samples:
        raise InputError(f"{task}: {source} holds no samples")
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= classes:
        wrong = least if least < 0 else most
        raise InputError(f"{task}: {source} has a label {wrong}; they run from 0 to {classes - 1}")
    empty = torch.nonzero(torch.bincount(labels, minlength=classes) == 0).flatten().tolist()
    if empty:
        which = ", ".join(map(str, empty[:5])) + (", …" if len(empty) > 5 else "")
        noun = "class" if len(empty) == 1 else "classes"
        raise InputError(f"{task}: {source} has no sample of {noun} {which}")


def tell_subset(task: str, data: Data, train: int, test: int, noun: str = "images") -> None:
    """Warn if a data set is not as large as published, with `train` and `test` samples."""
    if (len(data.clients), len(data.server)) != (train, test):
        _LOG.warning(
            f"{task}: {len(data.clients):,} of {train:,} training and {len(data.server):,} of "
            f"{test:,} test {noun}: a subset"
        )


def write_data(data: Data, path: Path) -> None:
    """Write a data set to one safetensors file, atomically."""
    tensors, metadata = _contents(data)
    write_atomically(tensors, path, metadata)


def data_bytes(data: Data) -> bytes:
    """Return what `write_data` writes."""
    tensors, metadata = _contents(data)
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)


def _contents(data: Data) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors = {f"extras.{name}": tensor for name, tensor in data.extras.items()}
    for part in _PARTS:
        samples: Samples = getattr(data, part)
        tensors |= {f"{part}.inputs": samples.inputs, f"{part}.labels": samples.labels}
    seen: set[int] = set()
    for name, tensor in tensors.items():  # the format has no views of shared memory
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen:
            tensors[name] = tensor.clone()
        seen.add(memory)
    about = json.dumps({"classes": data.classes, "highest": data.highest, "words": data.words})
    return tensors, {"format": _FORMAT, "about": about}


def read_data(path: Path) -> Data:
    """Map what `write_data` wrote."""
    tensors = load_mapped(path)
    metadata = read_metadata(path)
    if metadata.get("format") != _FORMAT:
        raise InputError(
            f"{path} is not a prepared data set of this version ({_FORMAT}): delete it"
        )
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
        return Data(clients, server, about["classes"], highest, extras, path, about.get("words"))
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged: delete it, and it is made again") from error


def prepared(
    name: str,
    place: Path,
    sources: Iterable[Path],
    settings: Mapping[str, object],
    make: Callable[[], Data],
) -> Data:
    """Map the prepared file of a data set, which is made if there is none.

    Parameters
    ----------
    name
        Name of the data set.
    place
        The folder of data sets. The file goes to ``prepared/`` in it, or to the user's cache if
        that cannot be written.
    sources
        The files that it is made from. If one of them changes, it is made again.
    settings
        What else it depends on, such as the version of the preparation.
    make
        Reads the sources.
    """
    key = _key(sources, settings)
    folders = (place / "prepared", user_cache() / "prepared")
    for folder in folders:
        file = folder / f"{name}-{key}.safetensors"
        if os.path.isfile(file):  # not Path.is_file, which may raise
            try:
                return read_data(file)
            except InputError:
                continue  # damaged: made again
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
    _LOG.warning(f"{name}: cannot be saved, and is prepared again next time: {problem}")
    return data


def _key(sources: Iterable[Path], settings: Mapping[str, object]) -> str:
    # Size and time show whether a file was replaced, without reading gigabytes.
    stats = sorted(
        (str(source.absolute()), found.st_size, found.st_mtime_ns)
        for source in sources
        for found in [os.stat(source)]
    )
    text = json.dumps([stats, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_data(task: Task, place: Path) -> Data:
    """Load a task's data.

    Raises
    ------
    InputError
        It cannot be loaded, or is not `Data`.
    """
    with _named(task, "load"):
        data = task.load(place)
    if not isinstance(data, Data):
        raise InputError(f"task {task.name}: load must return fedimmune.Data, not {_kind(data)}")
    return data


def build_model(task: Task, data: Data) -> nn.Module:
    """Build a task's model and check that it takes the data.

    Raises
    ------
    InputError
        It cannot be built, or does not map samples to one number per class.
    """
    with _named(task, "model"):
        model = task.model(data)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"task {task.name}: model must return a torch.nn.Module, not {_kind(model)}"
        )
    with _named(task, "the model, given two samples,"), torch.no_grad():
        outputs = model.eval()(data.server.inputs[:_FEW])
    wanted = (len(data.server.inputs[:_FEW]), data.classes)
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != wanted:
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else _kind(outputs)
        raise InputError(
            f"task {task.name}: the model must map {wanted[0]} samples to {wanted}, one number "
            f"per class; it returns {found}"
        )
    return model


@contextmanager
def _named(task: Task, step: str) -> Iterator[None]:
    try:
        yield
    except FedimmuneError:
        raise
    except Exception as error:
        raise InputError(f"task {task.name}: {step} failed: {_kind(error)}: {error}") from error


def _kind(value: object) -> str:
    return type(value).__name__
