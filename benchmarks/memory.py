"""What a call takes of the process' own memory, read from the kernel (Linux only).

`RssAnon` are the pages that belong to the process alone: what it allocated and touched. Pages of
mapped files are not among them; the kernel takes those back whenever it needs room.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["AnonymousPeak", "available_bytes", "can_measure", "settle", "trim"]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_INTERVAL = 0.001


def can_measure() -> bool:
    """Whether this system tells."""
    return _STATUS.exists() and "RssAnon:" in _STATUS.read_text()


def available_bytes() -> int | None:
    """Give how much memory is free or can be made free; None where that is unknown."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    return _kilobytes(text, "MemAvailable") * 1024


def settle() -> None:
    """Give back to the system all memory that is not in use."""
    gc.collect()
    trim()


def trim() -> None:
    """Have the allocator give back to the system what it keeps for later."""
    with suppress(AttributeError, OSError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


class AnonymousPeak:
    """Measures the highest RssAnon while it is entered, in bytes.

    Two lower bounds are taken and the larger one counts. A thread samples RssAnon, which may miss
    a short peak. The kernel's own high-water mark misses nothing, but counts file pages too: less
    those that are there in the end, it is anonymous memory for sure, unless files are unmapped.

    Parameters
    ----------
    unmaps_files
        Whether what is measured unmaps files; the high-water mark then says nothing.
    """

    def __init__(self, *, unmaps_files: bool = False) -> None:
        self.before = 0
        self.peak = 0
        self._wants_mark = not unmaps_files
        self._has_mark = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> AnonymousPeak:
        self._thread.start()
        self._has_mark = self._wants_mark and _reset_high_water_mark()
        self.before = self.peak = _read("RssAnon")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, _read("RssAnon"))
        if self._has_mark:
            of_files = _read("RssFile") + _read("RssShmem")
            self.peak = max(self.peak, _read("VmHWM") - of_files)

    @property
    def extra(self) -> int:
        """How far the peak is above what there was on entering."""
        return self.peak - self.before

    def _sample(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self.peak = max(self.peak, _read("RssAnon"))


def _reset_high_water_mark() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _read(name: str) -> int:
    return _kilobytes(_STATUS.read_text(), name) * 1024


def _kilobytes(text: str, name: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])
