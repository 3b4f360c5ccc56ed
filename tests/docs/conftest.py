"""What pages that look into things take for given: a defense, recordings, a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedimmune.cli import app
from tests.docs.running import link_repository

_SHORT = ("--attackers", "0,4", "--runs", "2", "--rounds", "5", "--local-epochs", "1")
_COMMANDS = (
    ("rehearse", "--attacks", "omniscient", *_SHORT, "--workers", "1", "-o", "recordings"),
    ("rehearse", "--attacks", "backdoor", *_SHORT, "--workers", "1", "-o", "new-recordings"),
    ("train", "recordings", "--epochs", "40", "-o", "digits.defense"),
    (
        *("simulate", "--rule", "adaptive", "--defense", "digits.defense"),
        *("--attack", "omniscient", "--attackers", "4", "--rounds", "7"),
    ),
)


@pytest.fixture(scope="session")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``digits.defense``, ``recordings``, ``new-recordings`` and ``runs/RUN``."""
    folder = tmp_path_factory.mktemp("given")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in _COMMANDS:
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, (words, result.output, result.exception)
    (run,) = (folder / "runs").iterdir()
    run.rename(folder / "runs" / "RUN")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to follow a page in; modules written there are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    link_repository(tmp_path)
    yield tmp_path
    os.chdir("/")  # a class of the page may have added the folder by itself
    shutil.rmtree(tmp_path, ignore_errors=True)
