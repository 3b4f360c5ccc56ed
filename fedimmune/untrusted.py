"""What strangers may have written: read within limits, and shown without control characters.

The limits are listed in docs/limits.md.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedimmune.errors import InputError

__all__ = ["MIB", "first_problem", "naming", "printable", "read_bytes", "read_json", "read_toml"]

MIB = 1 << 20
_MOST_TOML = MIB
_MOST_DEPTH = 32
_WHOLE = range(-(1 << 63), 1 << 64)


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Read an ordinary file of limited size.

    A pipe or a device, which may never end, is refused.

    Raises
    ------
    InputError
        It cannot be read, or has more than `most` bytes.
    """
    try:
        found = os.stat(path)
        is_file, content = stat.S_ISREG(found.st_mode), b""
        if is_file and found.st_size <= most:
            with open(path, "rb") as file:
                content = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if not is_file:
        raise InputError(f"cannot read {path}: it is not a file")
    if max(found.st_size, len(content)) > most:
        raise InputError(f"cannot read {path}: it has more than {most:,} bytes")
    return content


def read_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises
    ------
    InputError
        It is not JSON, is nested too deeply, has a name twice in one object, or holds numbers that
        are not finite or have more than 64 bits.
    """
    try:
        found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_each_once)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise InputError(f"is not valid JSON: {error}") from error
    _check_plain(found)
    return found


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Parse a TOML file, within the same limits as JSON.

    Raises
    ------
    InputError
        It cannot be read, or is not such TOML; the message names it.
    """
    content = read_bytes(path, _MOST_TOML)
    try:
        found = tomllib.loads(content.decode())
        _check_plain(found)
    except RecursionError as error:
        raise InputError(f"{path} {_too_deep()}") from error
    except InputError as error:
        raise InputError(f"{path} {error}") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    return found


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Report whatever is found wrong within as damage of this."""
    try:
        yield
    except ValueError as error:  # ours, pydantic's and Python's own
        raise InputError(f"{what} is damaged: {first_problem(error)}") from error


def first_problem(error: Exception) -> str:
    """Word in one line what is wrong; of pydantic's findings, the first."""
    from pydantic import ValidationError  # noqa: PLC0415 (slow: only when something is wrong)

    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in found["loc"])
        message = found["msg"].removeprefix("Value error, ")
        return f"{place}: {message}" if place else message
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def printable(text: object) -> str:
    """Return text with everything escaped that a terminal would not just show.

    Control characters move the cursor and change colors, and direction marks reverse text: a
    client's id could forge a line.
    """
    found = str(text)
    if found.isprintable():
        return found
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in found)


def _check_plain(value: Any) -> None:
    """Check everything within a parsed value, level by level."""
    level = [value]
    for _ in range(_MOST_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, float) and not math.isfinite(each):
                raise InputError("holds a number that is not finite")
            elif isinstance(each, int) and each not in _WHOLE:
                raise InputError("holds a whole number of more than 64 bits")
        if not below:
            return
        level = below
    raise _too_deep()


def _too_deep() -> InputError:
    return InputError(f"is nested more than {_MOST_DEPTH} levels deep")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found
