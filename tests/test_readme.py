"""The examples that people copy really run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedimmune
from fedimmune import attacks, tasks
from fedimmune.federation import partition

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    exec(EXAMPLES[0], scope)
    printed = capsys.readouterr().out
    assert re.search(r"mallory +0\.0000 unused", printed)
    assert re.search(r"broken +rejected \(layer 'weight' holds NaN", printed)
    answer = scope["answer"]
    assert isinstance(answer, fedimmune.Aggregation)
    assert sum(answer.weights.values()) == pytest.approx(1)  # type: ignore[union-attr]


def test_the_second_example() -> None:
    line = EXAMPLES[1].strip().splitlines()[-1]
    call, _, comment = line.partition("#")
    assert repr(eval(call, {"create": fedimmune.create})) == comment.strip()


def test_the_third_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[2], {})
    assert re.search(r"round 3: ACC \d+%, ASR \d+%", capsys.readouterr().out)


def test_tasks_attacks_and_partitions_are_in_their_guides() -> None:
    guides = {page.name: page.read_text("utf-8") for page in (README.parent / "docs").glob("*.md")}
    assert all(f"`{name}`" in guides["tasks.md"] for name in tasks.names())
    assert all(f"`{name}`" in guides["simulation.md"] for name in attacks.names())
    assert all(f"`{name}`" in guides["simulation.md"] for name in partition.names())


def test_every_rule_is_in_the_readme_and_in_the_guide() -> None:
    guide = (README.parent / "docs" / "rules.md").read_text(encoding="utf-8")
    for name in fedimmune.names():
        assert f"`{name}`" in README.read_text(encoding="utf-8")
        assert f"`{name}`" in guide


def test_links_lead_somewhere() -> None:
    for page in (README, *(README.parent / "docs").glob("*.md"), README.parent / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
