"""`fedimmune report` as people use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedimmune.cli import app
from tests.report.making import make_run, scenario_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_run_and_many(folder: Path) -> None:
    make_run(folder / "runs" / "one")
    make_run(folder / "runs" / "two", scenario_of(seed=2))
    result = CliRunner().invoke(app, ["report", "runs/one"])
    assert result.exit_code == 0
    assert "wrote report.html" in result.stderr
    assert "krum · digits" in (folder / "report.html").read_text()
    result = CliRunner().invoke(app, ["report", "runs", "-o", "both.html", "--title", "Both"])
    assert result.exit_code == 0
    assert "<title>Both</title>" in (folder / "both.html").read_text()


def test_figures_for_a_paper_too(folder: Path) -> None:
    make_run(folder / "run", scenario_of(attack="none", rounds=2), weighs=False, partition=False)
    result = CliRunner().invoke(app, ["report", "run", "--figures", "figures"])
    assert result.exit_code == 0
    assert "wrote 6 figures to figures" in result.stderr
    for kind in ("png", "svg", "pdf"):
        assert len(list((folder / "figures").glob(f"*.{kind}"))) == 2


def test_errors_are_one_line_that_names_the_run(folder: Path, refused: Callable[..., str]) -> None:
    make_run(folder / "good")
    make_run(folder / "bad")
    (folder / "bad" / "rounds.jsonl").write_text("garbage\n")
    assert "nowhere does not exist" in refused("report", "nowhere")
    assert "the run bad is damaged" in refused("report", "good", "bad")
    assert "no folder" in refused("report", "good", "-o", "not/there/report.html")
    assert "cannot write" in refused("report", "good", "-o", "good")
    assert not (folder / "report.html").exists()
