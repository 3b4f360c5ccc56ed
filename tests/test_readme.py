"""What the README says of the product is so: its example, its lists, its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import fedimmune
from fedimmune import attacks, rules, tasks
from fedimmune.cli import app
from fedimmune.simulation import partition

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    scope: dict[str, object] = {}
    exec(example, scope)
    printed = capsys.readouterr().out
    assert re.search(r"mallory +0\.00\d\d suspected \(geometric-median gave it 0\.\d% of", printed)
    assert re.search(r"broken +rejected \(layer 'weight' holds NaN", printed)
    answer = scope["answer"]
    assert isinstance(answer, fedimmune.Aggregation)
    assert sum(answer.weights.values()) == pytest.approx(1)  # type: ignore[union-attr]


# ---------------------------------------------------------------- lists


def listed(what: str) -> list[str]:
    row = re.search(rf"^\| \[{what}\]\([^)]*\) \| (.*) \|$", TEXT, re.MULTILINE)
    assert row
    return re.findall(r"`([^`]+)`", row[1])


def test_the_lists_have_what_there_is() -> None:
    assert sorted(listed("rules")) == list(rules.available())
    assert sorted(listed("attacks")) == list(attacks.available())
    assert sorted(listed("tasks")) == list(tasks.available())


def test_everything_is_on_its_page() -> None:
    pages = {page.name: page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md")}
    assert all(f"`{name}`" in pages["rules.md"] for name in rules.available())
    assert all(f"`{name}`" in pages["tasks.md"] for name in tasks.available())
    assert all(f"`{name}`" in pages["simulation.md"] for name in attacks.available())
    assert all(f"`{name}`" in pages["simulation.md"] for name in partition.available())
    program = get_command(app)
    assert all(f"`{name}`" in pages["command-line.md"] for name in program.commands)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- figures


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_results_are_those_of_the_results_pages() -> None:
    pages = [ROOT / "docs" / "results.md", *(ROOT / "docs" / "results").glob("*.md")]
    published = "\n".join(page.read_text("utf-8") for page in pages)
    rows = re.findall(r"^\| (?!4 of 10|---)(.*) \|$", section("Results"), re.MULTILINE)
    figures = [figure for row in rows for figure in re.findall(r"\d+\.\d+", row)]
    figures += re.findall(r"ASR (\d+\.\d+)", section("Results"))
    assert len(figures) > 15
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", published), figure


def test_the_times_are_those_of_the_benchmarks() -> None:
    published = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    peers = (ROOT / "docs" / "peers.md").read_text("utf-8")
    row = re.search(r"^\| time of .*$", peers, re.MULTILINE)
    assert row
    cells = row[0].split(" | ")[1:3]
    of = {"krum": 0, "median": 1, "geometric-median": 2}
    for rule, place in of.items():
        ours, theirs = (cell.split(" / ")[place] for cell in cells)
        assert re.search(rf"^\| `{rule}` \| {ours} \| [\d.]+ \| {theirs} \|", published, re.M), rule
