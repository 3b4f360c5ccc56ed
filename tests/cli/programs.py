"""The program in processes of its own, in a pipe or on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

__all__ = ["PROGRAM", "bare", "on_a_terminal", "piped", "start"]

PROGRAM = (sys.executable, "-m", "fedimmune")
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _environment(**others: str) -> dict[str, str]:
    """What a person's shell has: nothing that says how wide, how colored or how quiet."""
    told = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "FEDIMMUNE_DATA")
    kept = {name: value for name, value in os.environ.items() if name not in told}
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1", **others}


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the program in a folder, its output in pipes."""
    return subprocess.Popen(
        [*PROGRAM, *words],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def piped(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with its output in pipes."""
    return subprocess.run(
        [*PROGRAM, *words],
        cwd=folder,
        env=_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
    )


def on_a_terminal(
    folder: Path,
    *words: str,
    columns: int = 80,
    stop_when: Callable[[str], bool] = lambda _: False,
    **environment: str,
) -> tuple[int, str]:
    """Run the program on a terminal; press Ctrl-C once when its output says so."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    # The first terminal that a new session opens is the one whose Ctrl-C it gets.
    opened = 'exec "$@" <"$TERMINAL" >"$TERMINAL" 2>&1'
    process = subprocess.Popen(
        ["/bin/sh", "-c", opened, "sh", *PROGRAM, *words],
        cwd=folder,
        env=_environment(TERMINAL=os.ttyname(slave), **environment),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown, pressed = b"", False
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # nobody has it open any more
            break
        if not chunk:
            break
        shown += chunk
        if not pressed and stop_when(shown.decode(errors="replace")):
            os.write(master, b"\x03")
            pressed = True
    os.close(master)
    return process.wait(), shown.decode(errors="replace").replace("\r\n", "\n")


def bare(text: str) -> str:
    """Give what was shown without colors and movements."""
    return _CODES.sub("", text)
