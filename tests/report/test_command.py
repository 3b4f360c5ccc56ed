"""The command in a report runs the very same scenario again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedimmune import Scenario, federation
from fedimmune.cli import app
from fedimmune.errors import InputError
from fedimmune.report.command import command_of
from fedimmune.report.reading import Run

SCENARIOS: list[dict[str, Any]] = [
    {"rounds": 1},
    {"rounds": 1, "attack": {"name": "backdoor", "shift_x": 2}, "attackers": 3, "rule": "krum"},
    {
        "rounds": 1,
        "attack": {"name": "label-flip", "kind": "swap"},
        "partition": {"name": "by-label", "shards": 3},
        "rule": {"name": "multi-krum", "attackers": 2, "keep": 4},
        "optimiser": {"name": "adam", "lr": 0.002},
        "clients": 12,
        "participation": 0.75,
        "seed": 12345,
    },
]


@pytest.mark.parametrize("fields", SCENARIOS, ids=lambda f: str(f.get("rule", "mean")))
def test_it_gives_the_same_digest(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Scenario] = []

    def play(given: Scenario, **_: object) -> None:
        seen.append(given)
        raise InputError("what is meant is known: it need not be run")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(federation, "simulate", play)
    scenario = Scenario(task="digits", batch=64, **fields)
    run = Run(Path("run"), scenario.model_dump(), (), is_finished=True)
    lines = command_of(run)
    assert lines is not None
    program, *words = shlex.split(" ".join(lines))
    assert program == "fedimmune"
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, InputError), result.stderr
    assert [one.digest for one in seen] == [scenario.digest]


def test_text_that_looks_like_a_number_stays_text() -> None:
    scenario = {"task": "digits", "rule": {"name": "adaptive", "defence": "a b", "digest": "12e4"}}
    run = Run(Path("run"), scenario, (), is_finished=True)
    words = shlex.split(" ".join(command_of(run) or []))
    assert 'rule.digest="12e4"' in words
    assert "a b" in words
