"""Worker processes that are told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedimmune.io import _replacing
from fedimmune.simulation.workers import Pool
from tests.simulation.processes import alive, wait_until, worker_pids

LONG = 300.0
"""Seconds that a job would take, were it not stopped: a test that waits for it has failed."""


class Writer:
    """Writes a file at once, or is at it for a long time."""

    def do(self, job: tuple[Path, float]) -> None:
        path, seconds = job
        with _replacing(path) as temporary:
            Path(temporary).write_text("half")
            time.sleep(seconds)


def test_an_interrupt_waits_for_no_job_and_leaves_no_half_written_file(tmp_path: Path) -> None:
    jobs = [(tmp_path / "a", 0.0), (tmp_path / "b", 0.0), *[(tmp_path / "c", LONG)] * 4]

    def interrupt_when_both_are_at_it() -> None:
        while len(list(tmp_path.glob(".c.*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with Pool(2, Writer, {}) as pool:
        threading.Thread(target=interrupt_when_both_are_at_it, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            pool.do(jobs)
    assert time.monotonic() - began < LONG / 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


_MASTER = """
import sys
from pathlib import Path
from fedimmune.simulation.workers import Pool
from tests.simulation.test_workers import LONG, Writer
with Pool(2, Writer, {}) as pool:
    pool.do([(Path(sys.argv[1]) / "c", LONG)] * 2)
"""


def test_workers_end_with_a_master_that_was_killed(tmp_path: Path) -> None:
    """In the middle of a job: it would keep the folder of its run locked, and a core busy."""
    master = subprocess.Popen([sys.executable, "-c", _MASTER, str(tmp_path)])
    wait_until(lambda: len(list(tmp_path.glob(".c.*"))) == 2, "both are at it")
    workers = worker_pids(master.pid)
    assert len(workers) == 2
    master.kill()
    master.wait()
    wait_until(lambda: not alive(workers), "they have ended")
    assert list(tmp_path.iterdir()) == [], "and have tidied up"
