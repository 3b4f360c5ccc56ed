"""Settings of the whole suite."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Threads that wait for each other make small operations slow wherever the cores are shared.
torch.set_num_threads(1)

# Other work on the machine must not fail a test, and CI must not find what nobody can repeat.
settings.register_profile(
    "fedimmune",
    deadline=None,
    max_examples=int(os.environ.get("FEDIMMUNE_EXAMPLES", "40")),
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedimmune")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A universal defense that has learned nothing, in place of the one that ships."""
    from fedimmune.adaptive import defense  # noqa: PLC0415
    from tests.adaptive.judging import untrained_file  # noqa: PLC0415

    place = untrained_file(tmp_path / "shipped.safetensors")
    monkeypatch.setattr(defense, "UNIVERSAL_FILE", place)
    defense.universal.cache_clear()
    yield place
    defense.universal.cache_clear()


# Tests that run on several cores are told a width, as if there were a terminal.
os.environ.pop("COLUMNS", None)

# A shell has what it starts in the background ignore Ctrl-C, and the programs that tests start with
# it; there are tests that stop programs that way.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
