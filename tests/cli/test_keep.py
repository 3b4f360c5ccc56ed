"""`fedimmune simulate --save-updates`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedimmune.cli import app
from fedimmune.runs.folder import RunFolder

SIMULATE = (
    *("simulate", "--task", "tests.simulation.own_task:Blobs", "--rounds", "3", "--clients", "4"),
    *("--workers", "1"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, [*SIMULATE, *words])
    assert result.exit_code == 0, result.output
    return result


def the_run() -> RunFolder:
    (place,) = Path("runs").iterdir()
    return RunFolder(place)


def test_layers_are_kept_and_a_finished_run_that_did_not_is_said() -> None:
    first = call("--save-updates", "fc.bias")
    assert "without saving" not in first.stderr
    assert the_run().traces.kept_layers() == ["fc.bias"]
    again = call("--save-updates", "fc.bias", "--save-updates", "fc.weight")
    assert "all rounds were played without saving fc.weight: --force runs it again" in again.stderr
    assert "without saving fc.bias" not in again.stderr
    assert again.stdout == first.stdout
    assert call("--save-updates", "fc.weight", "--quiet").stderr == ""
    call("--save-updates", "fc.weight", "--force")
    assert the_run().traces.kept_layers() == ["fc.weight"]


@pytest.mark.parametrize(
    ("kept", "said"),
    [((1, 2), "round 3 was"), ((1,), "2 rounds from 2 to 3 were"), ((), "all rounds were")],
)
def test_rounds_that_were_played_without_it_are_named(kept: tuple[int, ...], said: str) -> None:
    call("--save-updates", "fc.bias")
    traces = the_run().traces
    for number in {1, 2, 3} - set(kept):
        (traces.path / f"round-{number:04}.safetensors").unlink()
    assert f"{said} played without saving fc.bias" in call("--save-updates", "fc.bias").stderr


def test_an_unknown_layer_is_refused_with_those_there_are(refused: Callable[..., str]) -> None:
    told = refused(*SIMULATE, "--save-updates", "conv")
    assert "no trained layer 'conv'" in told
    assert "it has fc.weight, fc.bias" in told
    assert not Path("runs").exists()
