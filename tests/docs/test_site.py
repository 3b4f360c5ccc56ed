"""What the site has that no page has: the command reference, formulas, the API."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from fedimmune.cli import app
from tests.docs.pages import DOCS, ROOT

SHOWN = {
    "fedimmune": ("aggregate_files", "measure", "simulate"),
    "fedimmune.attacks": (),
    "fedimmune.bounds": (),
    "fedimmune.simulation": (),
    "fedimmune.flower": (),
    "fedimmune.report": (),
    "fedimmune.rules": (),
    "fedimmune.tasks": (),
}
OF_A_REGISTRY = {
    "advice",
    "available",
    "exported",
    "find",
    "get",
    "known",
    "register",
    "resolve",
}


def hook(name: str) -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "hooks" / f"{name}.py"))


def test_every_command_and_option_is_in_the_reference() -> None:
    made = hook("commands")
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert made["MARK"] in page
    filled = made["on_page_markdown"](page)
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    for name, command in program.commands.items():
        section = re.search(
            rf"^### `{name}` \{{ #{name} \}}$(.*?)(?=^### |\Z)", filled, re.M | re.S
        )
        assert section, name
        for parameter in command.params:
            if isinstance(parameter, TyperOption) and not parameter.hidden:
                for option in parameter.opts:
                    assert re.search(rf"\| `[^`]*{option}\b", section[1]), (name, option)
        assert f"fedimmune {name}" in section[1]
        assert "\\[" not in section[1]


def test_other_pages_are_left_alone() -> None:
    assert hook("commands")["on_page_markdown"]("# Words") == "# Words"


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml")
    shown = '<span class="arithmatex">\\(a &lt; \\varepsilon\'\\)</span>'
    made = hook("formulas")["on_page_content"](f"<p>{shown} and</p>")
    assert made.startswith("<p><math")
    assert "arithmatex" not in made
    assert "&lt;" in made or "&#x0003C;" in made
    with pytest.raises(ValueError, match="nothing"):
        hook("formulas")["as_mathml"]("\\nothing", "inline")


def test_published_experiments_are_found(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "sweep.md").write_text("# Sweep")
    config = {
        "docs_dir": str(tmp_path),
        "nav": [{"Start": "index.md"}, {"Results": ["results.md"]}],
    }
    assert hook("published")["on_config"](config)["nav"][1] == {
        "Results": ["results.md", "results/sweep.md"]
    }


@pytest.mark.parametrize("module", SHOWN)
def test_public_names_are_in_the_api(module: str) -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", pages, re.M)}
    whole = {"FedimmuneError", "attacks", "rules", "tasks"}  # on the page of a whole module
    for name in importlib.import_module(module).__all__:
        if name.startswith("__") or name in whole or name in OF_A_REGISTRY:
            continue
        assert name in shown, f"{module}.{name} is in no page of the API"


def test_what_the_api_shows_is_there() -> None:
    for page in (DOCS / "api").glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.M):
            if name.startswith("fedimmune.flower."):
                continue  # may not be installed
            module, _, attribute = name.rpartition(".")
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.docs
def test_the_site_is_built_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for file in tmp_path.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)\b[^>]*src=\"?(https?://[^\" >]+)", text)
        fetched += re.findall(r"<link\b[^>]*href=\"?(https?://[^\" >]+)", text)
        assert not fetched, (file.name, fetched)
        assert 'class="arithmatex"' not in text, file
    assert "simulate" in (tmp_path / "command-line.html").read_text(encoding="utf-8")
    assert not list(tmp_path.rglob("*.py"))
