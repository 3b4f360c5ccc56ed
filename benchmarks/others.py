"""How much of the processors other programs take while something is timed (Linux only).

It matters more than it seems: PyTorch's threads wait for each other after every operation, so
that one that has to share its processor slows all of them down many times over.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter, sleep

__all__ = ["Others", "wait_for_quiet"]

_STAT = Path("/proc/stat")
_AT_WORK = (0, 1, 2, 5, 6, 7)
"""Of the kernel's counts: user, nice, system, irq, softirq, and what other machines stole."""


class Others:
    """Watches from when it is made."""

    def __init__(self) -> None:
        self._begun = perf_counter()
        self._own = _own_seconds()
        self._all = _all_seconds()

    def share(self) -> float | None:
        """Return the share of all processors that others took, 0 to 1; None where it is unknown."""
        now, elapsed = _all_seconds(), perf_counter() - self._begun
        if now is None or self._all is None or elapsed == 0:
            return None
        taken = (now - self._all) - (_own_seconds() - self._own)
        return min(1.0, max(0.0, taken / (elapsed * (os.cpu_count() or 1))))


def wait_for_quiet(share: float, patience: float) -> None:
    """Wait until others take no more than a share of the machine, or for so many seconds."""
    begun = perf_counter()
    while perf_counter() - begun < patience:
        others = Others()
        sleep(1)
        if (others.share() or 0) <= share:
            return


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _all_seconds() -> float | None:
    try:
        ticks = _STAT.read_text().splitlines()[0].split()[1:]
    except OSError:
        return None
    return sum(int(ticks[column]) for column in _AT_WORK) / os.sysconf("SC_CLK_TCK")
