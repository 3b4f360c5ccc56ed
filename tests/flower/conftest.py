"""Flower's tests: they call nobody, and are not even read where Flower is not installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ.setdefault(name, "0")
for name in ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"):
    os.environ.setdefault(name, "1")

if find_spec("flwr") is None:
    collect_ignore_glob = ["test_[!w]*.py"]  # test_without_flower.py says so


@pytest.fixture(autouse=True)
def _server_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the server of a run: messages cannot be made without one."""
    if find_spec("flwr") is not None:
        from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415

        for what in ("_run_id", "_node_id", "_task_id"):
            monkeypatch.setattr(TaskIdentity, what, 1)


@pytest.fixture(scope="session")
def digits_defense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a defense for the task `digits`, for whole runs."""
    from tests.flower.running import learn_digits  # noqa: PLC0415 (slow to import)

    return learn_digits(tmp_path_factory.mktemp("digits"))
