"""What people expect of a program: help, completion, quiet, JSON, colors, pipes, exit codes."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner, Result

import fedimmune.demo
from fedimmune import attacks, rules, tasks
from fedimmune.adaptive.defense import DefenseAbout
from fedimmune.cli import app, completion, main
from fedimmune.cli.help import ENDING, PANELS
from fedimmune.simulation.rehearsal import plan
from tests.adaptive.rehearsed import recording
from tests.cli.programs import bare, on_a_terminal, piped
from tests.report.making import make_run

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = [name for names in PANELS.values() for name in names]
COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)[;\dm]")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDIMMUNE_DATA", raising=False)
    return tmp_path


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result


# ---------------------------------------------------------------- help


def commands_in(text: str) -> Iterator[list[str]]:
    """Give the words of every command of ours in a text, with continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip().startswith("fedimmune ") and "COMMAND" not in line:
            yield shlex.split(line)[1:]


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)], ids=str)
def test_help_is_whole_at_80_columns_with_examples_that_are_right(
    folder: Path, words: tuple[str, ...]
) -> None:
    done = piped(folder, *words, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert not re.search(r"[\x1b…│╭\\]\[?", done.stdout.replace(" \\\n", "\n")), "plain, and uncut"
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    examples = list(commands_in(done.stdout.rpartition("Examples:")[2]))
    assert len(examples) >= 2
    group = get_command(app)
    for name, *arguments in examples:
        assert words in {(), (name,)}
        group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


def test_help_on_a_terminal_says_the_same_in_panels(folder: Path) -> None:
    for words in ((), ("simulate",)):
        code, shown = on_a_terminal(folder, *words, "--help")
        assert code == 0
        assert "╭─" in shown
        assert "…" not in shown
        assert max(len(line) for line in bare(shown).splitlines()) <= 80
        assert COLOR.search(shown)
        ending = piped(folder, *words, "--help").stdout.rpartition("Examples:")[2].strip()
        assert bare(shown).strip().endswith(ending)


def test_the_page_shows_every_command_in_its_group(folder: Path) -> None:
    page = piped(folder, "--help").stdout
    group = get_command(app)
    assert sorted(group.commands) == sorted(COMMANDS)  # type: ignore[attr-defined]
    places = [page.index(f"\n{panel}:") for panel in PANELS]
    assert places == sorted(places)
    for name in COMMANDS:
        sentence = group.commands[name].help.split("\n\n")[0]  # type: ignore[attr-defined]
        assert " ".join(sentence.split()) in " ".join(page.split())
    assert "--version" in page
    assert "--install-completion" in page


# ---------------------------------------------------------------- completion


def completed(folder: Path, line: str) -> list[str]:
    """What a shell offers at the end of a line."""
    told = {"_FEDIMMUNE_COMPLETE": "complete_bash", "COMP_WORDS": line}
    return piped(folder, COMP_CWORD=str(len(line.split(" ")) - 1), **told).stdout.split()


def test_names_are_completed(folder: Path) -> None:
    assert completed(folder, "fedimmune re") == ["rehearse", "report"]
    assert completed(folder, "fedimmune simulate --rule k") == ["krum"]
    assert completed(folder, "fedimmune simulate --attack ") == list(attacks.available())
    assert completed(folder, "fedimmune aggregate --rule me") == ["meamed", "mean", "median"]
    assert completed(folder, "fedimmune rehearse --task f") == ["fashion-mnist"]
    assert completed(folder, "fedimmune rehearse --attacks none,ba") == ["none,backdoor"]
    assert completed(folder, "fedimmune train x --form ") == list(completion.FORMS)
    assert completed(folder, "fedimmune data im") == ["imdb"]


def test_what_is_completed_is_what_there_is() -> None:
    assert list(rules.available()) == completion.RULES()
    assert list(attacks.available()) == completion.ATTACKS()
    assert list(tasks.available()) == completion.TASKS()
    assert get_args(DefenseAbout.model_fields["form"].annotation) == completion.FORMS[:-1]
    assert completion.FORMS[-1] == "spectral"  # which makes a detector, and no defense


def test_a_shell_can_be_taught_completion(folder: Path) -> None:
    # --show-completion asks which shell it was started from, and tests may be started from none.
    for shell in ("bash", "zsh", "fish"):
        shown = piped(folder, _FEDIMMUNE_COMPLETE=f"source_{shell}").stdout
        assert f"complete_{shell}" in shown
    assert "--show-completion" in piped(folder, "--help").stdout


# ---------------------------------------------------------------- quiet, JSON


@pytest.fixture
def round_on_disk(folder: Path) -> list[str]:
    for name in ("base", "a", "b", "c"):
        save_file({"w": torch.rand(3)}, folder / f"{name}.safetensors")
    return ["--global", "base.safetensors", *(f"{name}.safetensors" for name in "abc")]


@pytest.fixture
def quick(folder: Path, monkeypatch: pytest.MonkeyPatch, round_on_disk: list[str]) -> list[str]:
    """Every command that has something to say besides its result, as short as can be."""
    few = {"attacks": ["omniscient"], "attackers": [4], "runs": 2}
    monkeypatch.setattr(fedimmune.demo, "plan", lambda *a, **b: plan(*a, **{**b, **few}))
    monkeypatch.setattr(fedimmune.demo, "usable_cores", lambda: 1)
    monkeypatch.setattr(fedimmune.demo, "_ROUNDS", 1)
    monkeypatch.setattr(fedimmune.demo, "_EPOCHS", 1)
    make_run(folder / "run")
    for number in (0, 1):
        recording(number).save(folder / f"{number}.recording")
        recording(number, attack="backdoor").save(folder / f"new{number}.recording")
    return [
        "simulate --rounds 1 --attackers 3",
        "rehearse --rounds 1 --attacks omniscient --attackers 2 --runs 1 --workers 1 -o recordings",
        "train 0.recording 1.recording -o made.defense --epochs 1",
        "patch made.defense --with new0.recording --with new1.recording -o patched.defense "
        "--epochs 1 --force",
        f"aggregate {' '.join(round_on_disk)} -o next.safetensors",
        "report run",
        "data digits",
        "demo -o story",
    ]


def test_quiet_leaves_the_result_and_json_is_json(quick: list[str]) -> None:
    found = {}
    for command in quick:
        words = command.split()
        loud, quiet = call(*words), call(*words, "--quiet")
        assert loud.stderr != "", command
        assert quiet.stderr == "", command
        assert quiet.stdout == loud.stdout, command
        printed = call(*words, "--quiet", "--json")
        assert printed.stderr == "", command
        found[words[0]] = json.loads(printed.stdout)
    assert all(isinstance(each, dict) for each in found.values())
    assert found["rehearse"] == {
        "output": "recordings",
        "rehearsals": 1,
        "recorded": 0,
        "bytes": sum(file.stat().st_size for file in Path("recordings").iterdir()),
    }
    assert found["report"] == {
        "output": "report.html",
        "bytes": Path("report.html").stat().st_size,
        "figures": [],
    }
    assert [row["rule"] for row in found["demo"]["rules"]] == list(fedimmune.demo.RULES)
    assert Path(found["demo"]["report"]).is_file()


# ---------------------------------------------------------------- colors and pipes


def test_colors_on_a_terminal_unless_no_color(folder: Path, round_on_disk: list[str]) -> None:
    for words in (("--help",), ("aggregate", "--rule", "krum", *round_on_disk)):
        assert COLOR.search(on_a_terminal(folder, *words)[1])
        plain = on_a_terminal(folder, *words, NO_COLOR="1")[1]
        assert not COLOR.search(plain)
        assert bare(plain).strip()


def test_nothing_is_cut_or_colored_in_a_pipe(folder: Path) -> None:
    deep = Path(*["a folder with a long name"] * 8)
    (folder / deep).mkdir(parents=True)
    names = [f"{number}-{'client' * 30}" for number in range(3)]
    for name in ("base", *names):
        save_file({"w": torch.rand(3)}, folder / deep / f"{name}.safetensors")
    files = [str(deep / f"{name}.safetensors") for name in names]
    done = piped(
        *(folder, "aggregate", "--rule", "krum", "--global", str(deep / "base.safetensors")),
        *(*files, str(deep / "missing.safetensors"), "-o", str(deep / "next.safetensors")),
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    for name in names:
        assert re.search(rf"{name}.*(trusted|unused)", done.stdout), "a client is one line"
    assert f"no such file ({deep / 'missing.safetensors'})" in done.stdout
    assert done.stderr == f"wrote {deep / 'next.safetensors'}\n"


def test_lists_have_one_line_a_summary_in_a_pipe(folder: Path) -> None:
    for what, module in (("rules", rules), ("attacks", attacks), ("tasks", tasks)):
        shown = piped(folder, what).stdout
        assert "\x1b" not in shown
        assert "…" not in shown
        for name in module.available():
            assert module.find(name).summary in shown
            assert all(alias in shown for alias in module.find(name).aliases)
    assert "sign-flip, omniscient" in piped(folder, "attacks").stdout


# ---------------------------------------------------------------- exit codes


@pytest.fixture
def things(folder: Path) -> None:
    """What the commands below are given: some of it right, some not."""
    make_run(folder / "run")
    for number in (0, 1):
        recording(number).save(folder / f"{number}.recording")
    (folder / "text").write_text("no defense")
    (folder / "broken.toml").write_text("rounds =")
    (folder / "wrong.toml").write_text("rounds = 0")


TRAIN = "train 0.recording 1.recording -o x.defense --epochs 1"
ROUND = "aggregate --global base.safetensors a.safetensors b.safetensors c.safetensors"


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (0, "--version"),
        (0, "rules"),
        # A file, the data or the disk is not right.
        (1, "aggregate --updates nowhere.safetensors"),
        (1, "report nowhere"),
        (1, "inspect nowhere"),
        (1, "inspect text"),
        (1, "simulate nowhere.toml"),
        (1, "simulate broken.toml"),
        (1, "simulate --rounds 1 --runs text"),
        (1, "train nowhere -o x.defense"),
        (1, "train 0.recording -o x.defense"),
        (1, "patch text --with 0.recording -o x.defense"),
        # Wrong usage.
        (2, ""),
        (2, "aggregat"),
        (2, "simulate --color"),
        (2, "simulate --workers 0"),
        (2, "simulate --workers many"),
        (2, "simulate --rounds 0"),
        (2, "simulate --clients -1"),
        (2, "simulate --clients 10 --attackers 20 --attack omniscient"),
        (2, "simulate --attackers -1 --attack omniscient"),
        (2, "simulate --seed -1"),
        (2, "simulate --rule krumm"),
        (2, "simulate --attack tickle"),
        (2, "simulate --task mnits"),
        (2, "simulate --rule trimmed-mean --set rule.trim=0.7"),
        (2, "simulate --attack backdoor --set attack.shift_x=99"),
        (2, "simulate --set optimizer.lr=0"),
        (2, "simulate --set anchor=899"),
        (2, "simulate --set color=3"),
        (2, "simulate --set device=abacus"),
        (2, "simulate --rule krum --clients 2"),
        (2, "simulate --save-updates nowhere --rounds 1"),
        (2, "simulate --rule adaptive --defense text"),
        (2, "simulate --rule adaptive --defense a.safetensors"),
        (2, "simulate wrong.toml"),
        (2, f"{ROUND} --rule krumm"),
        (2, f"{ROUND} --rule trimmed-mean --set trim=0.7"),
        (2, f"{ROUND} --rule adaptive --defense text"),
        (2, f"{ROUND} --rule krum --history seen"),
        (2, f"{ROUND} -o a.safetensors"),
        (2, "aggregate a.safetensors b.safetensors"),
        (2, "rehearse -o out --attackers 11"),
        (2, "rehearse -o out --attacks tickle"),
        (2, "rehearse -o out --runs 0"),
        (2, "rehearse -o out --seed -1"),
        (2, "rehearse -o out --attackers -1"),
        (2, "rehearse -o out --range shift=5-1"),
        (2, f"{TRAIN} --epochs 0"),
        (2, f"{TRAIN} --seed -1"),
        (2, f"{TRAIN} --set c=-1"),
        (2, f"{TRAIN} --grid c="),
        (2, f"{TRAIN} --attacks tickle"),
        (2, "patch text --with 0.recording -o text"),
        (2, "patch text --with 0.recording -o x.defense --epochs 0"),
        (2, "inspect run --round 0"),
        (2, "inspect run --round 99"),
        (2, "inspect run --client nobody"),
        (2, "report run --figures-as gif"),
        (2, "demo --seed -1"),
        (2, "data mnits"),
        (2, "data digits --set color=3"),
    ],
)
@pytest.mark.usefixtures("things", "round_on_disk")
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, command: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedimmune", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (ended.value.code or 0) == code, said
    assert bool(said) == (code > 0)


def test_exit_codes_are_documented() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    for code in (0, 1, 2, 130, 143):  # the last two: test_stopping.py
        assert re.search(rf"^  {code} +\w", ENDING, re.MULTILINE)
        assert re.search(rf"^\| {code} \|", page, re.MULTILINE)
