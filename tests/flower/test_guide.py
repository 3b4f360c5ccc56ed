"""The guide names what there is, and what starts processes stops them, willing or not."""

from __future__ import annotations

import importlib
import inspect
import re
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

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
        until = time.monotonic() + 60
        while not (text := started.log("it").read_text()).strip():
            assert time.monotonic() < until
            time.sleep(0.05)
        child = int(text)
        assert _runs(pid)
        assert _runs(child)
    assert not _runs(pid)
    until = time.monotonic() + 10
    while _runs(child):
        assert time.monotonic() < until
        time.sleep(0.05)


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


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
