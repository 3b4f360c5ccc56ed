"""The documentation's pictures are drawn by the code that is there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from PIL import Image

from fedimmune import simulate
from fedimmune.demo import RULES, Demo
from fedimmune.simulation import run_folder
from tests.docs.pages import DOCS


class Short(Demo):
    """A demo with a defense that somebody else made, and few rounds."""

    def __init__(self, folder: Path, things: Path) -> None:
        super().__init__(folder)
        self.defense = things / "digits.defense"


def assert_same_shape(picture: Path) -> None:
    """Other runs have other labels, which may be a little longer."""
    with Image.open(picture) as drawn, Image.open(DOCS / "images" / picture.name) as shown:
        assert drawn.size == pytest.approx(shown.size, rel=0.05)


def test_the_pattern(tmp_path: Path) -> None:
    draw = runpy.run_path(str(DOCS / "pictures.py"))["draw_pattern"]
    draw(tmp_path / "pattern.png")
    assert_same_shape(tmp_path / "pattern.png")


def test_the_story(tmp_path: Path) -> None:
    scenario = Demo(tmp_path).scenario("krum").model_copy(update={"rounds": 3})
    records = list(simulate(scenario))
    draw = runpy.run_path(str(DOCS / "pictures.py"))["draw_story"]
    draw(dict.fromkeys(RULES, records), tmp_path / "story.png")
    assert_same_shape(tmp_path / "story.png")


def test_weights(tmp_path: Path) -> None:
    scenario = Demo(tmp_path).scenario("krum").model_copy(update={"rounds": 2})
    records = list(simulate(scenario))
    draw = runpy.run_path(str(DOCS / "pictures.py"))["draw_weights"]
    draw(dict.fromkeys(("mean", "krum", "adaptive", "oracle"), records), tmp_path / "weights.png")
    assert_same_shape(tmp_path / "weights.png")


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
    assert_same_shape(tmp_path / "round.png")
