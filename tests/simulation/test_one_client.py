"""No single client of ten owns a model: each of these took it to 10 % accuracy once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.one_client import NORMED, Harm, defense_for, played

BUFFERS = {"name": "benchmarks.one_client:Buffers", "share": 0.5}
LENGTHS: tuple[Mapping[str, object], ...] = (
    {"name": "benchmarks.one_client:Longer", "times": 1e3},
    {"name": "benchmarks.one_client:Longer", "times": 1e10},
    {"name": "benchmarks.one_client:Longer", "times": -1e4},
    {"name": "benchmarks.one_client:Noise", "scale": 1e30},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a defense for the model with batch norms is."""
    made = tmp_path_factory.mktemp("one-client")
    defense_for(NORMED, made)
    return made


@pytest.mark.parametrize(
    "rule",
    [
        "median",
        "trimmed-mean",
        "geometric-median",
        "krum",
        "multi-krum",
        "foolsgold",
        "residual",
        "adaptive",
    ],
)
def test_buffers_are_not_a_side_door(rule: str, folder: Path) -> None:
    accuracy, trusted = played(Harm("", NORMED, BUFFERS), rule, folder, seed=1)
    assert accuracy > 0.7
    assert trusted == 0


def test_the_mean_does_fall() -> None:
    accuracy, _ = played(Harm("", NORMED, BUFFERS), "mean", Path(), seed=1)
    assert accuracy < 0.2


@pytest.mark.parametrize(
    "attack", LENGTHS, ids=lambda attack: f"{attack.get('times', attack.get('scale'))}"
)
@pytest.mark.parametrize("rule", ["geometric-median", "adaptive"])
def test_length_is_not_a_side_door(rule: str, attack: Mapping[str, object], folder: Path) -> None:
    accuracy, trusted = played(Harm("", NORMED, attack), rule, folder, seed=1)
    assert accuracy > 0.7
    assert rule != "adaptive" or trusted == 0
