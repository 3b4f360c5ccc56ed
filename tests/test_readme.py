"""The examples that people copy really run, and what is listed is what there is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

import fedimmune
from fedimmune import attacks, rules, tasks
from fedimmune.cli import app
from fedimmune.federation import partition

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

SHORTER = {
    "simulate": ("--rounds", "2"),
    "record": (
        *("--rounds", "1", "--attacks", "backdoor", "--attackers", "0,4", "--runs", "2"),
        *("--workers", "1"),
    ),
    "train": ("--epochs", "2"),
}
"""What makes a command of the README short enough for a test; the last of two options counts."""


def commands_in(text: str) -> Iterator[list[str]]:
    """Give the words of every command in a text's blocks, with continued lines joined."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


# ---------------------------------------------------------------- Python


def test_there_are_no_blocks_besides_those_that_are_run() -> None:
    kinds = re.findall(r"^```(\w*)\n.*?^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert set(kinds) == {"python", "sh"}
    assert kinds.count("python") == 3, "each has a test below"


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


# ---------------------------------------------------------------- commands


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in a folder with a global model and what clients sent."""
    monkeypatch.chdir(tmp_path)
    for name in ("base", *(f"client-{number}" for number in range(7))):
        save_file({"w": torch.rand(5)}, f"{name}.safetensors")


def run(words: Sequence[str]) -> Result:
    found = [sorted(str(file) for file in Path().glob(word)) or [word] for word in words]
    expanded = [word for some in found for word in some]
    result = CliRunner().invoke(app, [*expanded, *SHORTER.get(words[0], ())])
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result


@pytest.mark.usefixtures("sent")
def test_every_command_runs_one_after_the_other() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = []
    for program, *words in commands_in(TEXT):
        called.append(words[0])
        if program == "make":
            assert words[0] in targets
        else:
            assert program == "fedimmune"
            run(words)
    assert {"demo", "test", "simulate", "record", "train", "report", "aggregate"} <= set(called)
    assert Path("next.safetensors").is_file()
    assert "adaptive" in Path("report.html").read_text()


def test_every_command_in_the_guides_is_one() -> None:
    program = get_command(app)
    for page in (ROOT / "docs").glob("*.md"):
        for name, *words in commands_in(page.read_text(encoding="utf-8")):
            if name == "fedimmune" and not words[0].startswith("-"):
                command = program.commands[words[0]]  # type: ignore[attr-defined]
                command.make_context(words[0], words[1:])


# ---------------------------------------------------------------- tables


def first_column(heading: str) -> list[str]:
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_tables_list_what_there_is() -> None:
    assert first_column("Rules") == list(rules.names())
    assert first_column("Attacks") == list(attacks.names())
    assert first_column("Tasks") == list(tasks.names())


def test_everything_is_in_its_guide() -> None:
    guides = {page.name: page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md")}
    assert all(f"`{name}`" in guides["rules.md"] for name in rules.names())
    assert all(f"`{name}`" in guides["tasks.md"] for name in tasks.names())
    assert all(f"`{name}`" in guides["simulation.md"] for name in attacks.names())
    assert all(f"`{name}`" in guides["simulation.md"] for name in partition.names())
    program = get_command(app)
    assert all(f"`{name}`" in guides["command-line.md"] for name in program.commands)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- links and the picture


def test_links_lead_somewhere() -> None:
    for page in (README, *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} → {target}"


def test_the_picture_is_small_and_drawn_by_the_code(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = ROOT / "docs" / "images" / "story.png"
    assert picture.stat().st_size < 200_000
    import runpy  # noqa: PLC0415

    from fedimmune.demo import RULES, Demo  # noqa: PLC0415

    records = list(
        fedimmune.simulate(Demo(tmp_path).scenario("krum").model_copy(update={"rounds": 3}))
    )
    draw = runpy.run_path(str(ROOT / "docs" / "picture.py"))["draw"]
    draw(dict.fromkeys(RULES, records), tmp_path / "story.png")
    size = slice(16, 24)  # of a PNG: width and height
    assert (tmp_path / "story.png").read_bytes()[size] == picture.read_bytes()[size]
