"""Files: safetensors, mapped when read; everything replaced whole when written.

Nothing here uses pickle: a client's file may be hostile.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedimmune import __version__
from fedimmune.errors import InputError
from fedimmune.untrusted import MIB, naming, read_json

__all__ = [
    "DESCRIPTION",
    "described",
    "load_mapped",
    "read_described",
    "read_description",
    "read_metadata",
    "writable",
    "write_atomically",
    "write_bytes_atomically",
    "write_described",
    "write_text_atomically",
]

DESCRIPTION = "fedimmune"
"""The one name in the metadata of our own files."""
_MOST_TENSORS = 100_000
_MOST_HEADER = 16 * MIB
_HEADER_BYTES, _HEADER_BYTES_PER_TENSOR = 64 << 10, 1 << 10
"""A file that may have few tensors may only have a short header."""
_METADATA = "__metadata__"


def load_mapped(path: str | os.PathLike[str], *, most: int = _MOST_TENSORS) -> dict[str, Tensor]:
    """Map a safetensors file: the tensors are views of the file, read from disk when touched.

    A file with more than `most` tensors is refused by its header.

    Raises
    ------
    InputError
        The file does not exist, is damaged or truncated, or is not a safetensors file.
    """
    path = Path(path)
    _read_header(path, most)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        # The last three: dtypes that the format has and this PyTorch does not.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise InputError(f"cannot be read as safetensors: {reason} ({path})") from error


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the text in a safetensors file's header.

    Raises
    ------
    InputError
        As `load_mapped`.
    """
    found = _read_header(Path(path), _MOST_TENSORS).get(_METADATA)
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: text for name, text in pairs if isinstance(text, str)}


def _read_header(path: Path, most: int) -> dict[str, Any]:
    """Read a safetensors file's header, and check it against the file's length and the limits."""
    try:
        is_file, exists = path.is_file(), path.exists()
    except OSError as error:  # too long a name, a circle of links
        raise InputError(f"cannot be read: {error.strerror} ({path})") from error
    if not is_file:
        problem = "is not a file" if exists else "no such file"
        raise InputError(f"cannot be read: {problem} ({path})")
    try:
        with path.open("rb") as file:
            return _header(file, os.fstat(file.fileno()).st_size, most)
    except (OSError, InputError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read as safetensors: {reason} ({path})") from error


def _header(file: IO[bytes], size: int, most: int) -> dict[str, Any]:
    longest = min(_MOST_HEADER, _HEADER_BYTES + most * _HEADER_BYTES_PER_TENSOR)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise InputError("the file is shorter than it says")
    if length > longest:
        raise InputError(f"its header has {length:,} bytes, and at most {longest:,} are read")
    text = file.read(length)
    # Counted before it is parsed: parsed, each takes some hundred bytes more.
    count = text.count(b'"data_offsets"')
    header = read_json(text) if count <= most else {}
    if not isinstance(header, dict):
        raise InputError("its header is not an object")
    count = max(count, len(header) - (_METADATA in header))
    if count > most:
        raise InputError(f"it has {count:,} tensors, and at most {most:,} are read")
    return header


# -------------------------------------------------------------------- files of our own


def write_described(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str], **about: Any
) -> None:
    """Write a file of our own, whole or not at all: tensors, what they are, and a digest of both.

    `about` are plain values; ``format`` is the kind of file, ``fedimmune-KIND-VERSION``. A number
    that is not finite becomes None.
    """
    write_atomically(tensors, path, described(tensors, **about))


def read_described(
    path: str | os.PathLike[str], form: str, *, made_by: str = ""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Map what `write_described` wrote; return the tensors and what they are.

    The digest reveals damage, not fraud: anybody can write another one to a changed file.

    Parameters
    ----------
    path
        The file.
    form
        The expected `format`.
    made_by
        A command that makes such files.

    Raises
    ------
    InputError
        It cannot be read, is of another kind or version, or is damaged; the message names it.
    """
    kind = form.removeprefix("fedimmune-").rpartition("-")[0]
    try:
        metadata, tensors = read_metadata(path), load_mapped(path)
    except InputError as error:
        raise InputError(f"the {kind} {error}") from error
    with naming(f"the {kind} {path}"):
        about = _unpacked(metadata)
    found = str(about.get("format", ""))
    if not found.startswith(f"fedimmune-{kind}-"):
        hint = f": `{made_by}` makes one" if made_by else ""
        raise InputError(f"{path} is not a {kind}{hint}")
    if found != form:
        raise InputError(
            f"{path} is a {kind} of an unknown version ({found}); fedimmune {__version__} reads "
            f"{form}"
        )
    if about.pop(_DIGEST, None) != _digest(tensors, about):
        raise InputError(f"the {kind} {path} is damaged: its content does not match its digest")
    return tensors, about


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the description in a file of our own, without its tensors; empty if there is none."""
    about = _unpacked(read_metadata(path))
    about.pop(_DIGEST, None)
    return about


def described(tensors: Mapping[str, Tensor], **about: Any) -> dict[str, str]:
    """Pack plain values, and a digest of them and of tensors, into metadata of one name.

    Several names would be written in any order; with one, equal contents have equal bytes.
    """
    plain = _plain(about)
    return {DESCRIPTION: json.dumps({_DIGEST: _digest(tensors, plain), **plain})}


_DIGEST = "digest"


def _unpacked(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read what `described` packed; empty if there is nothing."""
    try:
        found = read_json(metadata.get(DESCRIPTION, "{}"))
    except InputError as error:
        raise InputError(f"its description {error}") from error
    return found if isinstance(found, dict) else {}


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    names = sorted(tensors)
    outline = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    found = hashlib.sha256(json.dumps([about, outline]).encode())
    for name in names:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _plain(value: Any) -> Any:
    """Return what JSON can hold: it has no infinite numbers and no NaN."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -------------------------------------------------------------------- writing


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
        _read_header(Path(temporary), _MOST_TENSORS)  # do not write what cannot be read


def write_text_atomically(text: str, path: str | os.PathLike[str]) -> None:
    """Write a text file (UTF-8) as `write_bytes_atomically` does."""
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
    """Yield the name of a file to write, which then replaces `path`, or vanishes on an error."""
    path = writable(path)
    try:
        temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        # A replaced file keeps its permissions; a new one gets those of any new file here.
        mode = os.stat(path if path.exists() else temporary).st_mode & 0o777
        os.close(handle)
        yield temporary
        _sync(temporary)
        os.chmod(temporary, mode)  # the writer may have made another file
        os.replace(temporary, path)
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        raise InputError(f"cannot write {path}: {error}") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def writable(path: str | os.PathLike[str]) -> Path:
    """Return the real path of a file to be written, links followed.

    Raises
    ------
    InputError
        No file can be written there: the folder is missing, or something else is in the place.
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
        kind = "a folder" if place.is_dir() else "not an ordinary file"
        raise InputError(f"cannot write {path}: it is {kind}")
    return place


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
