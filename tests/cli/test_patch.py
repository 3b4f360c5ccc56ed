"""`fedimmune patch`: what it shows, writes and refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedimmune.adaptive import patching, train
from fedimmune.adaptive.defense import Defense
from fedimmune.cli import app, main
from fedimmune.errors import InputError
from tests.adaptive.rehearsed import recording, recordings

PATCH = ("patch", "old.defense", "--with", "new", "-o", "new.defense", "--epochs", "2")


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a defense, what it was made from, and recordings of a new attack."""
    monkeypatch.chdir(tmp_path)
    known = recordings(2, rounds=2)
    made = train(known, epochs=1, settings={"hidden": 8})
    made.save("old.defense")
    for name, found in (
        ("known", known),
        ("new", [recording(run, attack="backdoor", rounds=2) for run in (5, 6)]),
        ("other", [recording(run, layers={"w": (2, 2)}) for run in (5, 6)]),
        ("single", [recording(5, attack="backdoor")]),
    ):
        Path(name).mkdir()
        for number, each in enumerate(found):
            each.save(Path(name) / f"{number}.recording")
    Path("empty").mkdir()
    return tmp_path


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old attack gets worse, whatever is learned: by 3.5 points."""
    compare = patching._compared

    def compared(*arguments: Any, is_old: bool) -> Any:
        found = compare(*arguments, is_old=is_old)
        for row in found:
            share = {"benign_kept": row.before["benign_kept"]}
            share["attacker_weight"] = row.before["attacker_weight"]
            row.after.update(share)  # type: ignore[attr-defined]
            if row.before["attackers"] == 3:
                row.after.update(attacker_weight=share["attacker_weight"] + 0.035)  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(patching, "_compared", compared)


def test_old_and_new_before_and_after() -> None:
    parent = Path("old.defense").read_bytes()
    done = call(*PATCH, "--margin", "100")
    assert done.exit_code == 0, done.output
    rows = [line for line in done.stdout.splitlines() if "→" in line and "│" in line]
    assert [[cell.strip() for cell in row.split("│")[1:4]] for row in rows] == [
        ["old", "none", "0 of 8"],
        ["old", "omniscient", "2 of 8"],
        ["old", "omniscient", "3 of 8"],
        ["new", "backdoor", "2 of 8"],
    ]
    assert done.stderr.startswith("wrote new.defense (epoch ")
    assert done.stderr.endswith("which knows backdoor, omniscient\n")
    assert Path("old.defense").read_bytes() == parent
    made = Defense.load("new.defense")
    assert made.about.lineage[0].digest == Defense.load("old.defense").digest
    assert len(Path("new.defense.curve.csv").read_text().splitlines()) == 3
    again = call(*PATCH, "--margin", "100", "-o", "again.defense")
    assert again.exit_code == 0
    assert Path("again.defense").read_bytes() == Path("new.defense").read_bytes()


@pytest.mark.usefixtures("forgetful")
def test_nothing_is_written_when_an_old_attack_got_worse() -> None:
    done = call(*PATCH[:-2], "--epochs", "1", "--margin", "3.6")
    assert done.exit_code == 0, "not by more than that"
    Path("new.defense").unlink()
    with pytest.raises(InputError, match=r"omniscient by 3 of 8 got worse by 3\.5 .*--force"):
        call(*PATCH)
    assert not Path("new.defense").exists()
    forced = call(*PATCH, "--force")
    assert forced.exit_code == 0
    assert "omniscient by 3 of 8 got worse by 3.5 percentage points" in forced.stderr
    (line,) = (each for each in forced.stdout.splitlines() if "worse" in each)
    assert "omniscient" in line
    assert "3 of 8" in line
    assert Path("new.defense").is_file()


@pytest.mark.usefixtures("forgetful")
def test_as_json_whether_it_is_written_or_not() -> None:
    runner = CliRunner()
    refused = json.loads(runner.invoke(app, [*PATCH, "--json"]).stdout)
    assert not Path("new.defense").exists()
    forced = json.loads(runner.invoke(app, [*PATCH, "--json", "--force"]).stdout)
    assert (refused["written"], forced["written"]) == (False, True)
    assert {**refused, "written": True} == forced
    assert [(row["old"], row["worse"]) for row in forced["attacks"]] == [
        (True, False),
        (True, False),
        (True, True),
        (False, False),
    ]
    assert forced["margin"] == 0.02
    assert forced["output"] == "new.defense"
    assert forced["attacks"][3]["before"]["attack"] == "backdoor"
    assert forced["defense"] == Defense.load("new.defense").about.model_dump(mode="json")


@pytest.mark.usefixtures("forgetful")
def test_a_refusal_is_a_table_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedimmune", *PATCH])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 1
    assert "before → after" in printed.out
    (line,) = printed.err.strip().splitlines()
    assert line.startswith("fedimmune: new.defense is not written: omniscient by 3 of 8 got worse")
    assert not list(Path().glob("new.defense*"))


@pytest.mark.usefixtures("forgetful")
def test_the_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call(*PATCH, "--force").stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert any("worse │ omniscient │ 3 of 8" in line for line in lines)


def test_old_recordings_for_a_defense_that_carries_none() -> None:
    old = Defense.load("old.defense")
    Defense(old.form, old.about).save("old.defense")
    done = call(*PATCH, "--force", "--old-recordings", "known")
    assert done.exit_code == 0, done.output
    assert Defense.load("new.defense").replay.kinds == {"backdoor", "omniscient"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere", "--with", "new"), "no such file"),
        (("new/0.recording", "--with", "new"), "is not a defense"),
        (("old.defense", "--with", "nowhere"), "nowhere"),
        (("old.defense", "--with", "empty"), "no recordings"),
        (("old.defense", "--with", "single"), "two runs at least"),
        (("old.defense", "--with", "other"), "trained for another model"),
        (("old.defense", "--with", "new", "--with", "other"), "of another model"),
        (("old.defense", "--with", "known"), "knows all of these recordings"),
        (("bare.defense", "--with", "new"), "--old-recordings DIR"),
        (("old.defense", "--with", "new", "--old-recordings", "new"), "no recording of 'omnis"),
    ],
)
def test_it_refuses_in_one_line(
    refused: Callable[..., str], words: tuple[str, ...], said: str
) -> None:
    old = Defense.load("old.defense")
    Defense(old.form, old.about).save("bare.defense")
    assert said in refused("patch", *words, "-o", "x.defense", "--epochs", "1")
    assert not Path("x.defense").exists()


def test_the_parent_is_not_written_over(refused: Callable[..., str], folder: Path) -> None:
    (folder / "link").symlink_to("old.defense")
    for name in ("old.defense", "./old.defense", "link", str(folder / "old.defense")):
        said = refused("patch", "old.defense", "--with", "new", "-o", name, "--force")
        assert "choose another name" in said
    assert "no folder" in refused("patch", "old.defense", "--with", "new", "-o", "nowhere/x")
