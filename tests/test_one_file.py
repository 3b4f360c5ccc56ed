"""A new rule, attack or task is one file: everything else finds it through its registry."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedimmune import attacks, rules, tasks
from fedimmune.adaptive.reputation import Case
from fedimmune.adaptive.rule import _suspicion
from fedimmune.aggregation import Aggregation
from fedimmune.attacks.registry import _ATTACKS
from fedimmune.cli import app, completion
from fedimmune.registry import Registry
from fedimmune.results import ClientResult, Verdict
from fedimmune.rules.registry import _RULES
from fedimmune.runs import RoundRecord
from fedimmune.tasks.registry import _TASKS

FILES = {
    "rules": '''
from fedimmune.rules.median import Median

class Fresh(Median):
    """The median."""

    name = "fresh-rule"
    summary = "a rule of one file"
''',
    "attacks": '''
from fedimmune.attacks.base import Attack

class Fresh(Attack):
    """Send nothing."""

    name = "fresh-attack"
    summary = "an attack of one file"
    label = "freshness"
    advice = "check that you send anything"
    ranges = {"left": (0.0, 0.5)}

    def __init__(self, *, left: float = 0.0) -> None:
        self.left = left

    def on_update(self, update, context) -> None:
        for tensor in update.values():
            tensor.mul_(self.left)
''',
    "tasks": '''
from fedimmune.tasks.digits import Digits

class Fresh(Digits):
    """Digits."""

    name = "fresh-task"
    summary = "a task of one file"
''',
}
REGISTRIES: dict[str, Registry[Any]] = {"rules": _RULES, "attacks": _ATTACKS, "tasks": _TASKS}
ROOMS: dict[str, Any] = {"rules": rules, "attacks": attacks, "tasks": tasks}


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose folders have one more file each, discovered as those of fedimmune are."""
    for room, source in FILES.items():
        folder = tmp_path / "fresh_package" / room
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "fresh.py").write_text(source)
        registry = REGISTRIES[room]
        registry.available()  # those of fedimmune are there
        monkeypatch.setattr(registry, "_members", dict(registry._members))
        monkeypatch.setattr(registry, "_homes", (f"fresh_package.{room}",))
    (tmp_path / "fresh_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("fresh_package")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("room", FILES)
def test_it_is_listed_exported_and_made(room: str) -> None:
    name = f"fresh-{room[:-1]}"
    assert name in ROOMS[room].available()
    assert ROOMS[room].find(name) is ROOMS[room].Fresh
    assert type(ROOMS[room].get(name)) is ROOMS[room].Fresh
    (listed,) = (each for each in json.loads(run(room, "--json")) if each["name"] == name)
    assert "of one file" in listed["summary"]


def test_it_is_completed(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_PACKAGE", fresh / "fresh_package")
    assert completion.one_of(completion.RULES)("f") == ["fresh-rule"]
    assert completion.one_of(completion.TASKS)("f") == ["fresh-task"]
    assert completion.listed(completion.ATTACKS)("none,f") == ["none,fresh-attack"]


@pytest.mark.usefixtures("fresh")
def test_it_is_simulated_reported_rehearsed_and_told(tmp_path: Path) -> None:
    common = ("--task", "fresh-task", "--rounds", "1", "--workers", "1", "--quiet")
    words = ("--rule", "fresh-rule", "--attack", "fresh-attack", "--runs", str(tmp_path / "runs"))
    run("simulate", *words, *common)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("fresh-task-fresh-rule-fresh-attack-4of10")
    run("report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert all(f"fresh-{kind}" in page for kind in ("task", "rule", "attack"))
    assert "4 of them attackers (freshness)" in page
    rehearsed = ("--attacks", "fresh-attack", "--attackers", "0,2", "--runs", "1", "--randomize")
    run("rehearse", *rehearsed, *common, "-o", str(tmp_path / "recordings"))
    names = [file.name for file in (tmp_path / "recordings").iterdir()]
    assert sum(name.startswith("fresh-attack-2of10-oracle") for name in names) >= 1


@pytest.mark.usefixtures("fresh")
def test_whoever_looks_like_it_is_told_what_to_check() -> None:
    case = Case(since=1, evidence=(0.0, -9.0), rounds=1)
    suspicion = _suspicion(["fresh-attack", "unknown"], case, remembers=False)
    suspect = ClientResult(1, Verdict.SUSPECTED, 0.0, suspicion=suspicion)
    answer = Aggregation("adaptive", {}, None, None, {}, (suspect,))
    told = "If you mean no harm, check that you send anything."
    assert str(answer.notices()[1]).endswith(told)
    assert answer.to_json()["clients"][0]["notice"].endswith(told)
    read = RoundRecord.model_validate_json(
        '{"round": 1, "seconds": {"training": 0, "aggregating": 0, "testing": 0}, "clients": ['
        '{"client": "1", "verdict": "suspected", "kind": "fresh-attack", "confidence": 0.9}]}'
    )
    assert str(read.clients[0].notice()).endswith(told)


@pytest.mark.usefixtures("fresh")
def test_the_harness_takes_it() -> None:
    """Its properties are checked for whatever there is when it is collected."""
    harness = runpy.run_path(str(Path(__file__).parent / "properties" / "test_every_rule.py"))
    assert "fresh-rule" in harness["every_rule"].args[1]


def test_names_are_completed_without_importing_pytorch() -> None:
    code = (
        "import sys; from fedimmune.cli.completion import ATTACKS, RULES, TASKS; "
        "print(len(RULES()) * len(ATTACKS()) * len(TASKS())); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count = len(rules.available()) * len(attacks.available()) * len(tasks.available())
    assert int(done.stdout) == count
