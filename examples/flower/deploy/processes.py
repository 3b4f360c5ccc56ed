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
from uuid import uuid4

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

_LOOK_EVERY = 1.0
"""Seconds between two looks at who was started by whom."""

_MARK = "FEDIMMUNE_FAMILY"
"""Variable by which Linux tells a process's family, whatever became of those in between."""


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
        self._marks: dict[str, str] = {}
        self._seen: set[_Id] = set()
        self._looked = -_LOOK_EVERY

    def start(self, name: str, command: Sequence[str | Path], variables: Mapping[str, str]) -> int:
        """Start a process with these environment variables; the answer is its number."""
        self._marks[name] = uuid4().hex
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                env={**variables, _MARK: self._marks[name]},
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
        that it has started end when it is. It is also when those are looked for: one whose parent
        has ended belongs to nobody any more, and would not be found later on.
        """
        if time.monotonic() - self._looked > _LOOK_EVERY:
            self._look()
        return {name for name, process in self._running.items() if process.poll() is not None}

    def stop(self, name: str) -> None:
        """Ask a process to end, and end it and what it has left where it does not."""
        self._look()
        process = self._running.pop(name)
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        others = self._families()
        _wait_or_kill(self._seen - others, self._marks.pop(name))
        self._seen &= others

    def _look(self) -> None:
        self._seen |= self._families()
        self._looked = time.monotonic()

    def _families(self) -> set[_Id]:
        # The number of one that has ended may be somebody else's by now.
        alive = {process.pid for process in self._running.values() if process.poll() is None}
        return _descendants(alive) if alive else set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)


def _descendants(pids: set[int]) -> set[_Id]:
    children: dict[int, list[_Id]] = {}
    for parent, child in _all():
        children.setdefault(parent, []).append(child)
    found: set[_Id] = set()
    waiting = [*pids]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.add(child)
            waiting.append(child.pid)
    return found


def _wait_or_kill(family: set[_Id], mark: str) -> None:
    """Wait until they have ended, ask and then end those that do not, and see that they are gone.

    Parameters
    ----------
    family
        Who was seen.
    mark
        Of the same family: some may have been started since.
    """
    began, asked = time.monotonic(), set[_Id]()
    while family := _alive(family, mark):
        waited = time.monotonic() - began
        if waited > 2 * _GRACE:
            return  # the kernel does not let go of it
        if waited > _GRACE:
            _signal(family, signal.SIGKILL)
        elif waited > _GRACE / 10:  # most notice by themselves
            _signal(family - asked, signal.SIGTERM)
            asked |= family
        time.sleep(0.1)


def _signal(family: set[_Id], number: int) -> None:
    for each in family:
        with suppress(ProcessLookupError):
            os.kill(each.pid, number)


def _alive(family: set[_Id], mark: str) -> set[_Id]:
    listed = {child.pid: child for _, child in _all()}
    marked = {listed[pid] for pid in _marked(mark) if pid in listed}
    return {each for each in family if listed.get(each.pid) == each} | marked


def _marked(mark: str) -> set[int]:
    """Find who has inherited a mark; nobody where the system does not tell."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if f"{_MARK}={mark}".encode() in file.read_bytes():
                found.add(int(file.parent.name))
    return found


def _all() -> list[tuple[int, _Id]]:
    """List every process that runs, with its parent."""
    command = ["ps", "-A", "-o", "ppid=,pid=,stat=,lstart="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split(maxsplit=3) for line in listed.splitlines())
    # A zombie has ended; it only waits to be noticed by its parent.
    return [(int(ppid), _Id(int(pid), began)) for ppid, pid, stat, began in rows if stat[0] != "Z"]
