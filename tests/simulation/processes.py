"""Processes that tests start, watch and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fedimmune import Scenario

__all__ = [
    "alive",
    "fork_killed_at",
    "shared_files",
    "start_run",
    "wait_until",
    "worker_pids",
]

_FORK_PATIENCE = 30.0
PATIENCE = 120.0
"""Seconds after which a test gives up; no test passes or fails by anything shorter."""

_RUN = """
import sys
from pathlib import Path
import fedimmune.simulation.shared_memory as unnamed
from fedimmune import Scenario, simulate
scenario, runs, workers, unnamed._SHARED_MEMORY = sys.argv[1], sys.argv[2], *map(eval, sys.argv[3:])
for record in simulate(Scenario.from_toml(scenario, trust_code=True), runs=runs, workers=workers):
    pass
"""


def start_run(scenario: Scenario, folder: Path, workers: int = 1) -> subprocess.Popen[bytes]:
    """Simulate in a process of its own; runs go to ``runs``, shared and temporary files nearby."""
    for name in ("shared", "temporary"):
        (folder / name).mkdir(exist_ok=True)
    file = folder / "given.toml"
    file.write_text(scenario.to_toml())
    return subprocess.Popen(
        [
            *(sys.executable, "-c", _RUN, str(file), str(folder / "runs"), str(workers)),
            repr(folder / "shared").replace("PosixPath", "Path"),
        ],
        env={**os.environ, "TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )


def shared_files(folder: Path) -> list[str]:
    """What a process of `start_run` has left lying about."""
    return [
        file.name
        for name in ("shared", "temporary")
        for file in (folder / name).iterdir()
        if file.name.startswith("fedimmune-")
    ]


def wait_until(fact: Callable[[], object], what: str) -> None:
    """Wait for something that will be true, unless there is a fault."""
    end = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.005)


def alive(pids: Iterable[int]) -> list[int]:
    """Which of these processes run; those that nobody has waited for are not counted."""
    return [pid for pid in pids if _status(pid)[0] not in {"", "Z", "X"}]


def worker_pids(master: int) -> list[int]:
    """The worker processes of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _status(int(entry.name))[1] == master:
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"fedimmune.simulation._worker" in command:
                found.append(int(entry.name))
    return sorted(found)


def _status(pid: int) -> tuple[str, int]:
    """State and parent of a process; nothing where there is none."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return after_name[0], int(after_name[1])


def fork_killed_at(moment: int, folder: Path, act: Callable[[], object]) -> bool:
    """Act in a fork that kills itself (SIGKILL) before it touches the folder for that time.

    Returns whether it came to that; a smaller number of touches lets it finish.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _kill_at(moment, str(folder))
            act()
            os._exit(0)
        finally:
            os._exit(1)
    end = time.monotonic() + _FORK_PATIENCE
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            # A fork of a process with threads may wait for a lock that nobody holds any more: no
            # fault of what is tested, and it ends in a kill at a moment as good as any.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
        time.sleep(0.001)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or os.waitstatus_to_exitcode(status) == 0, "the fork failed"
    return killed


def _kill_at(moment: int, folder: str) -> None:
    """Kill this process before its n-th opening, renaming, removing … of a file in the folder."""
    touches = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal touches
        if event not in {"open", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.mkdir"}:
            return
        if str(arguments[0]).startswith(folder):
            touches += 1
            if touches == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
