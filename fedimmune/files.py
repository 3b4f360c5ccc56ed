"""Models and updates on disk: safetensors, mapped when read, replaced whole when written.

Nothing here uses pickle: a client's file is hostile until shown otherwise.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedimmune.errors import InputError

__all__ = [
    "described",
    "load_mapped",
    "read_description",
    "read_metadata",
    "writable",
    "write_atomically",
    "write_bytes_atomically",
    "write_text_atomically",
]

_DESCRIPTION = "fedimmune"


def load_mapped(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Map a safetensors file: the tensors are views of the file, read from disk when touched.

    Raises
    ------
    InputError
        The file does not exist, is damaged or truncated, or is no safetensors file.
    """
    path = Path(path)
    try:
        is_file, exists = path.is_file(), path.exists()
    except OSError as error:  # a name too long, a circle of links
        raise InputError(f"cannot be read: {error.strerror} ({path})") from error
    if not is_file:
        problem = "is not a file" if exists else "no such file"
        raise InputError(f"cannot be read: {problem} ({path})")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        # The last three: dtypes that the format knows and this PyTorch does not.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise InputError(f"cannot be read as safetensors: {reason} ({path})") from error


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the text that a safetensors file carries beside its tensors."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `described` packed; empty where there is nothing of the kind."""
    try:
        found = json.loads(read_metadata(path)[_DESCRIPTION])
    except (KeyError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def described(**about: Any) -> dict[str, str]:
    """Pack plain values into metadata of one key.

    The format writes several keys in any order; with one, equal contents have equal bytes.
    """
    return {_DESCRIPTION: json.dumps(about)}


def write_atomically(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file so that `path` holds the old one or the whole new one, never a part.

    Raises
    ------
    InputError
        The folder does not exist or cannot be written.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with _replacing(path) as temporary:
        save_file(whole, temporary, metadata=dict(metadata) if metadata else None)


def write_text_atomically(text: str, path: str | os.PathLike[str]) -> None:
    """Write a text file (UTF-8) so that `path` holds the old one or the whole new one.

    Raises
    ------
    InputError
        The folder does not exist or cannot be written.
    """
    write_bytes_atomically(text.encode(), path)


def write_bytes_atomically(content: bytes, path: str | os.PathLike[str]) -> None:
    """Write a file so that `path` holds the old one or the whole new one.

    Raises
    ------
    InputError
        The folder does not exist or cannot be written.
    """
    with _replacing(path) as temporary:
        Path(temporary).write_bytes(content)


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Name a file to be written, which then replaces `path`, or vanishes on an error."""
    path = writable(path)
    try:
        temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        # A replaced file keeps its permissions; a new one gets what any new file gets here.
        mode = os.stat(path if path.exists() else temporary).st_mode & 0o777
        os.close(handle)
        yield temporary
        _sync(temporary)
        os.chmod(temporary, mode)  # whoever wrote may have made a file of its own
        os.replace(temporary, path)
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        raise InputError(f"cannot write {path}: {error}") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def writable(path: str | os.PathLike[str]) -> Path:
    """Give the place that a new file at `path` will have, links followed.

    Raises
    ------
    InputError
        No file can be written there: there is no such folder, or something that is no file.
    """
    place = Path(os.path.realpath(path))
    try:
        exists, is_file, has_folder = place.exists(), place.is_file(), place.parent.is_dir()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    if place.is_symlink():
        raise InputError(f"cannot write {path}: it is a link in a circle")
    if not has_folder:
        raise InputError(f"cannot write {path}: there is no folder {place.parent}")
    if exists and not is_file:
        kind = "a folder" if place.is_dir() else "no ordinary file"
        raise InputError(f"cannot write {path}: it is {kind}")
    return place


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
