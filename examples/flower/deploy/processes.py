"""Processes that are started here are stopped here, with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

__all__ = ["Processes", "environment", "stop_on_signals"]

_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Flower and Ray call nobody but each other, and use the packages that are there."""

_GRACE = 15.0
"""Seconds in which a process may end by itself when it is asked to."""


class _Id(NamedTuple):
    """A process: numbers are used again, but not in the same second."""

    pid: int
    began: str


def environment(home: Path) -> dict[str, str]:
    """Give the variables of a process of Flower's.

    Parameters
    ----------
    home
        Where it keeps its config and unpacks apps.
    """
    # Commands call each other by name: those of this Python come first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **_OFFLINE, "PATH": path, "FLWR_HOME": str(home)}


def stop_on_signals() -> None:
    """Make Ctrl-C and TERM raise `KeyboardInterrupt`, once: stopping must come to its end."""

    def stop(_: int, __: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)


class Processes:
    """Starts processes, and stops them when the ``with`` block is left, the last one first.

    Parameters
    ----------
    folder
        Each process writes its output to ``NAME.log`` there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str | Path], variables: Mapping[str, str]) -> int:
        """Start a process with these environment variables; the answer is its number."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this process alone, which then stops the others in their order.
                start_new_session=True,
            )
        self._running[name] = process
        return process.pid

    def log(self, name: str) -> Path:
        """Give the file that a process writes its output to."""
        return self._folder / f"{name}.log"

    def ended(self) -> set[str]:
        """Say which processes run no more.

        To be asked now and then: only a process that was asked after is gone for good, and those
        that it has started end when it is.
        """
        return {name for name, process in self._running.items() if process.poll() is not None}

    def stop(self, name: str) -> None:
        """Ask a process to end, and end it and what it has left where it does not."""
        process = self._running.pop(name)
        family = _descendants(process.pid)
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _wait_or_kill(family)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)


def _descendants(pid: int) -> set[_Id]:
    children: dict[int, list[_Id]] = {}
    for parent, child in _all():
        children.setdefault(parent, []).append(child)
    found: set[_Id] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.add(child)
            waiting.append(child.pid)
    return found


def _wait_or_kill(family: set[_Id]) -> None:
    until = time.monotonic() + _GRACE
    while family := family & {child for _, child in _all()}:
        if time.monotonic() > until:
            for each in family:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            return
        time.sleep(0.2)


def _all() -> list[tuple[int, _Id]]:
    """List every process that runs, with its parent."""
    command = ["ps", "-A", "-o", "ppid=,pid=,stat=,lstart="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split(maxsplit=3) for line in listed.splitlines())
    # A zombie has ended; it only waits to be noticed by its parent.
    return [(int(ppid), _Id(int(pid), began)) for ppid, pid, stat, began in rows if stat[0] != "Z"]
