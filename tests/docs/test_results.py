"""What pages say of results, besides the tables that `reproduction.check` makes anew."""

from __future__ import annotations

import hashlib
import re

from fedimmune import __version__
from fedimmune.adaptive.defense import UNIVERSAL_FILE, universal
from reproduction.check import tables_of
from reproduction.views import cells_of
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
APPENDIX = (DOCS / "reproducibility.md").read_text(encoding="utf-8")
CARD = (DOCS / "model-card.md").read_text(encoding="utf-8")
OWN_COMMANDS = {
    *("paper-form.md", "grid.md", "byzfl.md", "thesis.md", "immunity.md"),
    *("learned-mnist.md", "kinds.md", "patch.md", "steps.md", "scores.md"),
}
"""Pages that are not an experiment of the paper's."""


def table_of(page: str, heading: str) -> list[list[str]]:
    (found,) = [each for each in tables_of("", page) if each.place.heading == heading]
    return cells_of(found.lines)[1:]


def test_every_page_of_results_is_told_of() -> None:
    commands = {
        page: command for page, command, _ in table_of(APPENDIX, "Pages, commands and times")
    }
    for page in (DOCS / "results").glob("*.md"):
        assert f"(results/{page.name}" in PAGE
        listed = commands[f"[{page.stem}](results/{page.name})"]
        if page.name in OWN_COMMANDS:
            continue
        command = re.search(
            r"```sh\n(python -m reproduction (\S+) .*)\n```", page.read_text("utf-8")
        )
        assert command
        assert command[2] == page.stem
        assert listed == f"`{command[1]}`"


def test_every_page_of_an_experiment_has_a_finding() -> None:
    for page in (DOCS / "results").glob("*.md"):
        text = page.read_text("utf-8")
        assert "**" in text, f"{page.name} has no finding"
        assert "```sh" in text, f"{page.name} has no command"


def test_the_model_card_is_of_the_file_that_ships() -> None:
    facts = dict(table_of(CARD, "The file"))
    content = UNIVERSAL_FILE.read_bytes()
    assert facts["digest"] == f"`{hashlib.sha256(content).hexdigest()[:16]}`"
    assert facts["size"] == f"{len(content):,} bytes"
    form = universal().form
    fixed = {name for name, _ in form.named_buffers()}
    learned = [t.numel() for name, t in form.state_dict().items() if name not in fixed]
    assert facts["parameters"] == f"{sum(learned):,}"
    assert facts["made with"] == f"fedimmune {universal().about.version}"
    assert __version__.startswith(universal().about.version)
    assert UNIVERSAL_FILE.relative_to(ROOT).as_posix() in facts["file"]
    assert f"one of {len(universal().about.attacks)} attacks" in CARD
    assert f"--epochs {universal().about.training['epochs']}\n" in CARD


def test_the_appendix_has_the_versions_of_ci() -> None:
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    versions = table_of(APPENDIX, "Versions")
    assert versions
    for package, version in versions:
        assert f"{package}=={version}" in constraints
