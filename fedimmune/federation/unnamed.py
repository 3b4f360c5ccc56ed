"""Files without a name: shared by processes, and gone with the last of them, however they end."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

__all__ = ["UnnamedFile"]

_SHARED_MEMORY = Path("/dev/shm")


class UnnamedFile:
    """A file that other processes can open while this one holds it.

    Where there is a ``/proc``, its name is removed at once and others reach it through this
    process's handle, so that even a kill leaves nothing behind. Elsewhere it has a name until it is
    closed.

    Parameters
    ----------
    size
        How large it will be: it goes to memory rather than to a disk where that has room for it.
    """

    def __init__(self, size: int) -> None:
        self._handle, name = tempfile.mkstemp(prefix="fedimmune-", dir=_room_for(size))
        through = Path(f"/proc/{os.getpid()}/fd/{self._handle}")
        self._named = None if through.exists() else Path(name)
        if self._named is None:
            os.unlink(name)
        self.path = self._named or through

    def write(self, content: bytes) -> None:
        """Fill it."""
        with os.fdopen(os.dup(self._handle), "wb") as file:
            file.write(content)

    def close(self) -> None:
        """Let go of it; whoever has mapped it keeps what is in it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._named is not None:
            self._named.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _room_for(size: int) -> str | None:
    usable = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    enough = usable and shutil.disk_usage(_SHARED_MEMORY).free > 1.25 * size
    return str(_SHARED_MEMORY) if enough else None
