"""The pictures of "How it works" are drawn by the code that is there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from fedimmune import simulate
from fedimmune.demo import Demo
from fedimmune.simulation import run_folder
from tests.docs.pages import DOCS

pytest.importorskip("matplotlib")

SIZE = slice(16, 24)
"""Of a PNG: width and height."""


class Short(Demo):
    """A demo with a defense that somebody else made, and few rounds."""

    def __init__(self, folder: Path, things: Path) -> None:
        super().__init__(folder)
        self.defense = things / "digits.defense"


def size_of(picture: Path) -> bytes:
    return picture.read_bytes()[SIZE]


def test_the_pattern(tmp_path: Path) -> None:
    draw = runpy.run_path(str(DOCS / "pictures.py"))["draw_pattern"]
    draw(tmp_path / "pattern.png")
    # No network, no chance: the same picture to the last bit, with the same matplotlib.
    assert size_of(tmp_path / "pattern.png") == size_of(DOCS / "images" / "pattern.png")


def test_weights(tmp_path: Path) -> None:
    scenario = Demo(tmp_path).scenario("krum").model_copy(update={"rounds": 2})
    records = list(simulate(scenario))
    draw = runpy.run_path(str(DOCS / "pictures.py"))["draw_weights"]
    draw(dict.fromkeys(("mean", "krum", "adaptive", "oracle"), records), tmp_path / "w.png")
    assert size_of(tmp_path / "w.png") == size_of(DOCS / "images" / "weights.png")


@pytest.mark.docs
def test_a_round(tmp_path: Path, things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Short(tmp_path, things)
    monkeypatch.setattr(
        demo,
        "scenario",
        lambda rule: Demo.scenario(demo, rule).model_copy(update={"rounds": 2}),
    )
    records = list(simulate(demo.scenario("adaptive"), runs=demo.runs))
    assert run_folder(demo.scenario("adaptive"), demo.runs).is_finished
    draw = runpy.run_path(str(DOCS / "pictures.py"))["draw_round"]
    draw(demo, records[-1], tmp_path / "round.png")
    assert size_of(tmp_path / "round.png") == size_of(DOCS / "images" / "round.png")
