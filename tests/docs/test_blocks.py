"""Every block of the documentation is run, in order, or says why not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from typer.main import get_command

from fedimmune import attacks, rules
from fedimmune.cli import app
from reproduction.cli import app as reproduction
from reproduction.immunity import app as immunity
from reproduction.studies import EXPERIMENTS
from tests.docs.pages import DOCS, ROOT, blocks_of, pages
from tests.docs.running import Reader, commands_in

QUICK = (
    *("README.md", "limits", "guides/aggregate", "guides/own-rule", "guides/own-attack"),
    *("guides/own-task", "guides/own-plot", "guides/scale", "conformance"),
)
"""Followed by `make test`: half a minute of one core in all, or so."""
SLOW = (
    *("index", "guides/evaluate", "defenses", "patches"),
    *("simulation", "synthetic", "reproduce"),
)
"""Followed by `make test-docs`."""
LOOKING = ("verdicts", "inspect", "reports")
"""Followed by `make test-docs`, where there are a defense, recordings and a run already."""
ELSEWHERE = {
    "theory": "tests/bounds/test_theory.py",
    "benchmarks": "commands of minutes to hours: only read",
    "results": "commands of hours: only read",
    "model-card": "commands of hours: only read",
    "reproducibility": "commands of a clone with data: only read; tests/reproduction/test_check.py",
}
NOT_RUN = {
    "README.md": 1,
    "command-line": 1,
    "defenses": 1,
    "flower": 8,
    "guides/scale": 1,
    "index": 3,
    "tasks": 1,
}
"""How many blocks a page shows that cannot be run; the reason stands before each."""


def name_of(page: Path) -> str:
    if page.parent == ROOT:
        return page.name
    name = page.relative_to(DOCS).with_suffix("").as_posix()
    return "results" if name.startswith("results/") else name


def page_of(name: str) -> Path:
    return ROOT / name if name == "README.md" else DOCS / f"{name}.md"


def follow(name: str, place: Path) -> Reader:
    reader = Reader(place)
    before = set(sys.modules)
    threads = torch.get_num_threads()
    try:
        for block in blocks_of(page_of(name)):
            reader.follow(block)
    finally:
        torch.set_num_threads(threads)
        for module in set(sys.modules) - before:
            if str(place) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]
    return reader


@pytest.fixture(autouse=True)
def _registries_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (rules.registry._RULES, attacks.registry._ATTACKS):
        registry.available()  # so that all are there
        monkeypatch.setattr(registry, "_members", dict(registry._members))


@pytest.mark.parametrize("name", QUICK)
def test_a_page_can_be_followed(name: str, place: Path) -> None:
    follow(name, place)


@pytest.mark.docs
@pytest.mark.parametrize("name", SLOW)
def test_a_long_page_can_be_followed(name: str, place: Path) -> None:
    follow(name, place)


@pytest.mark.docs
@pytest.mark.parametrize("name", LOOKING)
def test_a_page_that_looks_into_things_can_be_followed(
    name: str, place: Path, things: Path
) -> None:
    shutil.copytree(things, place, dirs_exist_ok=True)
    follow(name, place)


def test_no_page_is_forgotten() -> None:
    followed = {*QUICK, *SLOW, *LOOKING, *ELSEWHERE}
    for page in pages():
        left = [block for block in blocks_of(page) if block.language and not block.why_not]
        assert not left or name_of(page) in followed, f"{left[0]} is followed by no test"
    assert all(page_of(name).is_file() for name in followed)


def test_what_is_not_run_is_listed_with_a_reason() -> None:
    found: dict[str, int] = {}
    for page in pages():
        if name_of(page) in ELSEWHERE:
            continue
        for block in blocks_of(page):
            if "not run" in block.remark:
                assert len(block.why_not) > 10, f"{block} gives no reason"
                found[name_of(page)] = found.get(name_of(page), 0) + 1
    assert found == NOT_RUN


def test_every_command_on_every_page_is_one() -> None:
    program = get_command(app)
    for page in pages():
        for block in blocks_of(page):
            if block.language != "sh":
                continue
            for name, *words in commands_in(block.body):
                if name == "fedimmune" and not words[0].startswith("-"):
                    command = program.commands[words[0]]  # type: ignore[attr-defined]
                    command.make_context(words[0], words[1:])
                if [name, *words[:3]] == ["python", "-m", "reproduction", "immunity"]:
                    steps = get_command(immunity)
                    steps.commands[words[3]].make_context(words[3], words[4:])  # type: ignore[attr-defined]
                elif [name, *words[:2]] == ["python", "-m", "reproduction"]:
                    command = get_command(reproduction)
                    experiments = command.make_context("reproduction", words[2:]).params["ids"]
                    assert {*(experiments or ())} <= EXPERIMENTS.keys(), block
                if name == "make":
                    assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(), block
