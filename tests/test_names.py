"""Names that were given up do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("fedimmune", "reproduction", "benchmarks", "examples")

MODULES = {
    "": "intake sources layers combining summing sorting guarded on_disk verdicts notices "
    "inspecting checks files records traces threads synthetic",
    "adaptive": "forms relational principal making parting kinds inventing memory explaining "
    "importance validation promises sweeping outcomes facts defence",
    "simulation": "rounds testing measuring plan seeds arena unnamed pool worker workbench",
    "flower": "addressing grids contents concluding outcomes course journal telling making anchors "
    "exclusion tables",
    "report": "reading grouping measures truth confusion lines maps svg svg_lines svg_maps figures "
    "drawing traits traits_drawn sweep_map words contents",
    "tasks": "place using words weights folders splits prepared downloads pickles idx",
    "attacks": "nothing omniscient",
    "cli": "lists scalars stopping shown epochs durations display terminal defence_tables record "
    "reproduce reproducing artefact_list",
}
"""Modules by room; a module may bear such a name in another room."""

CLASSES = {
    *("Judgement", "ClientRecord", "Told", "Weighing", "Basis", "Sent", "Facts", "Recipe"),
    *("Choice", "Trial", "Named", "Form", "Parted", "Crew", "Here", "Processes", "Hands"),
    "Workbench",
}

FUNCTIONS = {
    *("whole", "number", "flag", "computing_with", "corrupt", "poison", "trial", "move", "create"),
    *("make_defense", "notice_of"),
}

BRITISH = re.compile(
    r"defence|optimiser|colour|artefact|behaviour|normalis|neighbour|judgement|\bcentred?\b"
    r"|\bgrey\b|favour|serialis|minimis|initialis|labelled|\bper cent\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("room", MODULES)
def test_no_module_bears_a_name_that_was_given_up(room: str) -> None:
    there = {path.stem for path in (ROOT / "fedimmune" / room).glob("*")}
    assert not there & set(MODULES[room].split())


def test_rooms_that_were_given_up_are_empty() -> None:
    assert not [
        room for room in ("federation", "experiments") if (ROOT / "fedimmune" / room).exists()
    ]


def defined(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in nodes if isinstance(node, kinds)}


@pytest.mark.parametrize("path", sorted((ROOT / "fedimmune").rglob("*.py")), ids=str)
def test_nothing_in_the_package_bears_a_name_that_was_given_up(path: Path) -> None:
    assert not defined(path) & (CLASSES | FUNCTIONS)


def texts() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    code = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return [path for path in [*pages, *code] if ROOT / "docs/results" not in path.parents]


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_spelling_is_american(path: Path) -> None:
    found = BRITISH.findall(path.read_text(encoding="utf-8"))
    assert not found
