"""Defenses that are trained once, for all tests that use one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedimmune.adaptive import train
from tests.adaptive.rehearsed import recordings


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a defense that has learned negated updates alone, without an anchor."""
    path = tmp_path_factory.mktemp("defenses") / "trained.defense"
    made = train(
        recordings(rounds=16), epochs=60, memory=False, synthetic=False, settings={"hidden": 32}
    )
    made.save(path)
    return path


@pytest.fixture(scope="session")
def anchored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an anchor, and hardly trained."""
    path = tmp_path_factory.mktemp("defenses") / "anchored.defense"
    made = train(recordings(anchor=True), epochs=2, memory=False, settings={"hidden": 16})
    made.save(path)
    return path
