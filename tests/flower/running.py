"""Programs of ``examples/flower`` that tests start, wait for, and look for the remains of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedimmune.adaptive import train
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.simulation import Scenario
from fedimmune.simulation.rehearsal import plan, record
from fedimmune.tasks import data_folder, load_data

__all__ = ["APP", "Program", "learn_digits", "records_in", "wait_until"]

APP = Path(__file__).parents[2] / "examples" / "flower"
_MARK = "FEDIMMUNE_STARTED_BY"


def learn_digits(folder: Path) -> Path:
    """Rehearse and learn a little: enough for rounds of which the outcome is plain."""
    base = {"task": "digits", "rounds": 6}
    task = Scenario(**base).make_task()
    data = load_data(task, data_folder())
    attacks = ("backdoor", "omniscient")
    rehearsals = plan(base, data.spec, attacks=attacks, attackers=(3,), runs=2, follow=("oracle",))
    record(rehearsals, folder / "recordings", task, data, workers=1)
    defense = train(read_recordings([folder / "recordings"]), epochs=60)
    defense.save(folder / "digits.defense")
    return folder / "digits.defense"


class Program:
    """A command in a process of its own, whose whole family can be told by a mark.

    Parameters
    ----------
    command
        What follows the name of Python, or a program and its arguments.
    output
        File that it writes to.
    variables
        For its environment, beside this process's own.
    """

    def __init__(self, command: list[str], output: Path, **variables: str) -> None:
        self.mark, self.output = uuid4().hex, output
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                cwd=APP,
                env={**os.environ, "PATH": path, _MARK: self.mark, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def wait(self, patience: float) -> int:
        """Wait for its end."""
        return self.process.wait(patience)

    def says(self, words: str, patience: float) -> None:
        """Wait until it has written something."""
        wait_until(lambda: words in self.text or self.process.poll() is not None, patience)
        assert words in self.text, self.text[-4000:]

    def family(self) -> list[str]:
        """Every process that it or those that it started have left running."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                if ") Z " not in (folder / "stat").read_text():
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{folder.name} {words.decode(errors='replace')}")
            except OSError:  # it has ended meanwhile
                continue
        return found

    def end(self) -> None:
        """Leave nothing running, however the test went."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for line in self.family():
            os.kill(int(line.split()[0]), 9)


def records_in(run: Path) -> list[dict[str, Any]]:
    """The rounds of a run that are whole, read without the library."""
    file = run / "rounds.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


def wait_until(holds: Callable[[], object], patience: float, pause: float = 0.5) -> None:
    until = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < until, f"not within {patience:g} seconds"
        time.sleep(pause)
