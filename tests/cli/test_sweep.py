"""`fedimmune train --sweep`: what it prints and leaves, by one process or several, and stopped."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedimmune.adaptive.defense import Defense
from fedimmune.cli import app
from tests.adaptive.rehearsed import recordings
from tests.cli.programs import on_a_terminal, start
from tests.cli.test_signals import half_written, stopped
from tests.simulation.processes import wait_until

GRID = ("--grid", "c=5,10", "--grid", "eps=0,0.5")
QUICK = ("--epochs", "1", "--set", "hidden=8")


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recordings").mkdir()
    for number, each in enumerate(recordings(2, rounds=3)):
        each.save(tmp_path / "recordings" / f"{number}.recording")
    return tmp_path


def train(output: str, *words: str, workers: int = 1) -> Result:
    return call("train", "recordings", "-o", output, *QUICK, "--workers", str(workers), *words)


def test_it_does_not_matter_how_many_do_the_work() -> None:
    one = train("one.defense", *GRID)
    two = train("two.defense", *GRID, workers=2)
    assert one.stdout == two.stdout
    assert Path("one.defense").read_bytes() == Path("two.defense").read_bytes()
    lines = [
        sorted(Path(f"{name}.defense.sweep.jsonl").read_text().splitlines())
        for name in ("one", "two")
    ]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 4
    picture = Path("one.defense.sweep.svg").read_text(encoding="utf-8")
    assert picture == Path("two.defense.sweep.svg").read_text(encoding="utf-8")
    assert ET.fromstring(picture).tag.endswith("svg")

    assert one.stdout.count("← chosen") == 1
    assert one.stderr.count(": accuracy ") == 4
    assert "wrote one.defense.sweep.svg" in one.stderr
    about = Defense.load("one.defense").about
    best = about.searched["best"]
    assert {name: about.settings[name] for name in best} == best
    assert [each["settings"] for each in about.searched["points"]] == [
        {"c": c, "eps": eps} for c in (5, 10) for eps in (0, 0.5)
    ]


def test_the_defense_is_the_one_that_these_settings_alone_would_give() -> None:
    train("searched.defense", *GRID)
    about = Defense.load("searched.defense").about
    chosen = [f"--set={name}={value}" for name, value in about.searched["best"].items()]
    alone = json.loads(train("alone.defense", "--json", *chosen).stdout)
    assert alone["searched"] == {}
    assert alone["validation"] == [dict(row) for row in about.validation]
    curves = [Path(f"{name}.defense.curve.csv").read_text() for name in ("searched", "alone")]
    assert curves[0] == curves[1]


def test_nothing_is_trained_for_twice() -> None:
    first = train("x.defense", *GRID, "--json")
    stamp = Path("x.defense.sweep.jsonl").stat().st_mtime_ns
    again = train("x.defense", *GRID, "--json")
    assert again.stdout == first.stdout
    assert "4 of 4 points are searched already" in again.stderr
    assert ": accuracy" not in again.stderr
    assert Path("x.defense.sweep.jsonl").stat().st_mtime_ns == stamp
    wider = train("x.defense", *GRID, "--grid", "c=10,20")
    assert "4 of 6 points are searched already" in wider.stderr
    assert wider.stderr.count(": accuracy ") == 2
    other = train("x.defense", *GRID, "--seed", "2")
    assert "already" not in other.stderr


def test_sweep_alone_searches_c_and_eps() -> None:
    printed = json.loads(train("x.defense", "--sweep", "--json", "-q").stdout)
    assert printed["searched"]["grid"] == {"c": [1, 2, 5, 10, 20], "eps": [0, 0.25, 0.5, 0.75]}
    assert len(printed["searched"]["points"]) == 20


def test_quiet_leaves_the_tables() -> None:
    loud = train("x.defense", *GRID)
    quiet = train("x.defense", *GRID, "--quiet")
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout


def test_on_a_terminal_there_is_a_bar_with_the_time_left(folder: Path) -> None:
    words = ("train", "recordings", "-o", "x.defense", *QUICK, *GRID, "--workers", "1")
    code, shown = on_a_terminal(folder, *words, columns=100)
    assert code == 0
    assert "4/4" in shown
    assert "left" in shown
    assert shown.count("← chosen") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grid", "c"), "--grid takes NAME=VALUE"),
        (("--grid", "c="), "--grid takes NAME=VALUE"),
        (("--grid", "=1,2"), "--grid takes NAME=VALUE"),
        (("--grid", "c=1,,2"), "--grid takes NAME=VALUE"),
        (("--grid", "c=1,much"), "c: "),
        (("--grid", "color=1,2"), "color"),
        (("--grid", "c=1,2", "--set", "c=3"), "c cannot be both set and searched"),
        (("--sweep", "--attacks", "flip"), "no recording of 'flip'"),
        (("--sweep", "--form", "oval"), "no form 'oval'"),
    ],
)
def test_refused_in_one_line_before_anything_is_trained(
    folder: Path, refused: Callable[..., str], words: tuple[str, ...], said: str
) -> None:
    assert said in refused("train", "recordings", "-o", "x.defense", *words)
    assert not list(folder.glob("x.defense*"))


def test_what_is_in_the_way_is_refused(folder: Path, refused: Callable[..., str]) -> None:
    (folder / "x.defense.sweep.svg").mkdir()
    (folder / "y.defense.sweep.jsonl").mkdir()
    for name in ("x", "y"):
        assert "is a folder" in refused("train", "recordings", "-o", f"{name}.defense", "--sweep")


def test_points_that_are_searched_are_kept_when_it_is_stopped(folder: Path) -> None:
    many = ",".join(str(c) for c in range(1, 41))
    words = ("train", "recordings", "-o", "x.defense", "--epochs", "60", "--grid", f"c={many}")
    process = start(folder, *words, "--workers", "2")
    kept = folder / "x.defense.sweep.jsonl"
    wait_until(kept.is_file, "a point is searched")
    said, left = stopped(process, signal.SIGINT)
    assert process.returncode == 130
    assert left == []
    done = len(kept.read_text().splitlines())
    assert 0 < done < 40
    assert said == (
        f"fedimmune: stopped; {done} of 40 points are searched, "
        "and the same command resumes with the others"
    )
    assert half_written(folder) == []
    assert not (folder / "x.defense").exists()
