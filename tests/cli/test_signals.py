"""Signals that stop it: one line, an exit code, nothing half-written, nobody left, it resumes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedimmune.cli import main
from fedimmune.simulation.workers import WorkerError
from fedimmune.tasks.digits import Digits
from tests.cli.programs import bare, on_a_terminal, start
from tests.simulation.processes import PATIENCE, alive, wait_until, worker_pids

SIMULATE = ("simulate", "--rounds", "400", "--json", "--workers", "2")
RECORD = (
    *("rehearse", "--rounds", "1", "--attacks", "sign-flip", "--attackers", "3", "--runs", "500"),
)


def stopped(process: subprocess.Popen[str], number: int) -> tuple[str, list[int]]:
    """Stop a program with two workers; give its one line and the workers that are left."""
    wait_until(lambda: len(worker_pids(process.pid)) == 2, "there are two workers")
    workers = worker_pids(process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    lines = said.strip().splitlines()
    assert "Traceback" not in said
    assert sum(line.startswith("fedimmune: stopped") for line in lines) == 1
    return lines[-1], alive(workers)


def half_written(folder: Path) -> list[Path]:
    return [file for file in folder.rglob(".*") if file.name != ".lock"]


def test_a_simulation_goes_on_after_its_last_round(tmp_path: Path) -> None:
    first = start(tmp_path, *SIMULATE)
    assert first.stdout is not None
    line = first.stdout.readline()
    said, left = stopped(first, signal.SIGINT)
    assert first.returncode == 130
    assert left == []
    (run,) = (tmp_path / "runs").iterdir()
    found = re.fullmatch(
        r"fedimmune: stopped; the same command resumes after round (\d+) \((.+)\)", said
    )
    assert found
    assert found[2] == f"runs/{run.name}"
    rounds = [json.loads(each)["round"] for each in (run / "rounds.jsonl").open()]
    assert len(rounds) - 1 <= int(found[1]) <= len(rounds), "one may be finished and not yet shown"
    assert half_written(tmp_path) == []

    again = start(tmp_path, *SIMULATE)
    assert again.stdout is not None
    assert again.stdout.readline() == line, "even the seconds: it was not run again"
    _, left = stopped(again, signal.SIGTERM)
    assert again.returncode == 143
    assert left == []
    assert half_written(tmp_path) == []


@pytest.fixture
def heard() -> Iterator[None]:
    """Let programs hear SIGHUP, which `nohup` has all that it starts ignore."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heard")
def test_rehearsals_that_are_recorded_are_kept(tmp_path: Path) -> None:
    process = start(tmp_path, *RECORD, "--workers", "2", "-o", "recordings")
    folder = tmp_path / "recordings"
    wait_until(lambda: any(folder.glob("*.recording")), "something is recorded")
    said, left = stopped(process, signal.SIGHUP)
    assert process.returncode == 129
    assert left == []
    kept = len(list(folder.glob("*.recording")))
    assert said == (
        f"fedimmune: stopped; {kept} of 500 rehearsals are recorded, "
        "and the same command resumes with the others"
    )
    assert half_written(tmp_path) == []


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RecursionError, WorkerError])
def test_whatever_becomes_of_a_signal_it_is_a_stop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: type[BaseException],
) -> None:
    def load(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE)
        finally:
            raise raised  # as a module does that is interrupted while it is imported

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Digits, "load", load)
    monkeypatch.setattr(sys, "argv", ["fedimmune", "simulate", "--rounds", "3"])
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 143
    said = capsys.readouterr().err
    assert said.startswith("fedimmune: stopped; the same command starts over (runs/digits-")
    assert len(said.splitlines()) == 1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_ctrl_c_on_a_terminal_gives_the_cursor_back(tmp_path: Path) -> None:
    code, shown = on_a_terminal(
        tmp_path,
        *("simulate", "--rounds", "400", "--workers", "2"),
        stop_when=lambda text: " 3/400" in text,
    )
    assert code == 130
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    last = bare(shown).strip().splitlines()[-1]
    assert re.match(r"fedimmune: stopped; the same command resumes after round \d+ \(", last)
    assert "Traceback" not in shown


def test_a_demo_goes_on_from_there(tmp_path: Path) -> None:
    process = start(tmp_path, "demo", "-o", "story")
    wait_until(lambda: any((tmp_path / "story").rglob("*.recording")), "something is recorded")
    said, left = stopped(process, signal.SIGINT)
    assert process.returncode == 130
    assert said == "fedimmune: stopped; the same command resumes from there (story)"
    assert left == []
    assert half_written(tmp_path) == []
