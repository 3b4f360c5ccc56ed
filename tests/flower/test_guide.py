"""The guide names what there is, and what starts processes stops them, willing or not."""

from __future__ import annotations

import importlib
import inspect
import re
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from fedimmune.flower import RobustStrategy
from tests.flower.running import APP

pytestmark = pytest.mark.flower

GUIDE = (APP.parents[1] / "docs" / "flower.md").read_text(encoding="utf-8")
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", child], start_new_session=True).pid, flush=True)
time.sleep(600)
"""
ORPHANING = """
import subprocess, sys, time
from pathlib import Path
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", child], start_new_session=True).pid, flush=True)
while not Path("{folder}", "go").exists():
    time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(APP)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "deploy"]:
        del sys.modules[name]


def test_every_setting_of_the_app_is_in_the_guide() -> None:
    app = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    listed = re.search(r"`-c` sets (.*?)\. Data", GUIDE, re.DOTALL)
    assert listed is not None
    assert re.findall(r"`([a-z-]+)`", listed[1]) == list(app["config"])


def test_options_of_the_guide_are_the_strategys() -> None:
    rows = re.findall(r"^\| (`.*?) \| .* \| .* ?\|$", GUIDE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)(?:=.*?)?`", row)}
    there = set(inspect.signature(RobustStrategy.__init__).parameters)
    assert {"runs", "about", "exclude", "timeout", "fraction_train"} <= named & there
    assert named <= there


def test_scripts_of_the_guide_are_there() -> None:
    for script in set(re.findall(r"deploy/[a-z]+\.sh", GUIDE)):
        assert (APP / script).stat().st_mode & 0o100, script
    modules = set(re.findall(r"python -m (deploy\.[a-z_]+)", GUIDE))
    assert modules == {"deploy.certificates", "deploy.loopback", "deploy.node_key"}
    for module in modules:
        assert callable(importlib.import_module(module).main)


def test_whoever_ignores_a_request_to_end_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = importlib.import_module("deploy.processes")
    monkeypatch.setattr(processes, "_GRACE", 0.5)
    with processes.Processes(tmp_path) as started:
        pid = started.start("it", [sys.executable, "-c", STUBBORN], {})
        child = int(wait_for(lambda: started.log("it").read_text().strip()))
        assert _runs(pid)
        assert _runs(child)
    assert not _runs(pid)
    assert not _runs(child)


@pytest.mark.parametrize("is_linux", [True, False])
def test_who_has_lost_its_parent_is_ended_too(
    is_linux: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = importlib.import_module("deploy.processes")
    monkeypatch.setattr(processes, "_GRACE", 0.5)
    # Either is enough: who is seen now and then, or who bears a mark.
    monkeypatch.setattr(processes, "_LOOK_EVERY", 0.0)
    other = "_descendants" if is_linux else "_marked"
    monkeypatch.setattr(processes, other, lambda _: set())
    with processes.Processes(tmp_path) as started:
        started.start("it", [sys.executable, "-c", ORPHANING.format(folder=tmp_path)], {})
        started.start("other", [sys.executable, "-c", "import time; time.sleep(600)"], {})
        pids = wait_for(lambda: started.log("it").read_text().split())
        orphan = int(pids[0])
        assert started.ended() == set()
        (tmp_path / "go").touch()
        wait_for(lambda: "it" in started.ended())
        assert _runs(orphan)
        started.stop("it")
        assert not _runs(orphan)
        assert "other" not in started.ended(), "it has nothing to do with the others"


def test_signals_stop_once() -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        importlib.import_module("deploy.processes").stop_on_signals()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # stopping goes on
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_keys_and_certificates_that_are_there_are_kept(tmp_path: Path) -> None:
    certificates = importlib.import_module("deploy.certificates")
    certificates.make_certificates(tmp_path, ["fl.example.org", "10.0.0.5"])
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    certificates.make_certificates(tmp_path, ["elsewhere"])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == made
    assert set(made) == {"ca.pem", "ca.key", "server.pem", "server.key"}
    for name in ("ca.key", "server.key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


T = TypeVar("T")


def wait_for(ask: Callable[[], T]) -> T:
    """Ask until there is an answer."""
    until = time.monotonic() + 60
    while not (answer := ask()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return answer


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
