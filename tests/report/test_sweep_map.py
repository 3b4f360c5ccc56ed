"""The heat map of a search: each value in its cell, the best over what is not shown, one choice."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedimmune.adaptive.outcomes import Outcome, described_search
from fedimmune.adaptive.sweeping import points_of
from fedimmune.report import sweep_map
from fedimmune.report.sweep_map import draw_sweep, sweep_grid

SVG = "{http://www.w3.org/2000/svg}"
VALUES: dict[str, list[Any]] = {
    "c": [1, 2.5, 20],
    "eps": [0, 0.5],
    "hidden": [8, 16],
    "orient": [True, False, 1],
    "start": ["mean", "<b>&\"'"],
}


def search(grid: dict[str, list[Any]], accuracies: list[float]) -> dict[str, Any]:
    outcomes = [
        Outcome(
            settings=point,
            accuracy=accuracy,
            exact=accuracy / 2,
            benign_kept=1.0,
            attacker_weight=None,
            epoch=1,
        )
        for point, accuracy in zip(points_of(grid), accuracies, strict=True)
    ]
    return described_search(grid, outcomes)


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    grid = {name: VALUES[name][: draw(st.integers(1, 3))] for name in names}
    count = len(points_of(grid))
    return search(grid, draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)))


@settings(max_examples=60)
@given(searches())
def test_every_cell_has_the_best_over_what_is_not_shown(searched: dict[str, Any]) -> None:
    grid = sweep_grid(searched)
    across, down = grid.column_word, grid.row_word
    if {"c", "eps"} <= set(searched["grid"]):
        assert (across, down) == ("c", "eps")
    assert [column.label for column in grid.columns] == [
        sweep_map.written(value) for value in searched["grid"][across]
    ]
    for j, row in enumerate(grid.rows):
        for i, cell in enumerate(row.cells):
            assert cell is not None
            here = [
                point["accuracy"]
                for point in searched["points"]
                if repr(point["settings"][across]) == repr(searched["grid"][across][i])
                and (not down or repr(point["settings"][down]) == repr(searched["grid"][down][j]))
            ]
            assert cell.value == pytest.approx(max(here), abs=1e-8)
    marked = [cell for row in grid.rows for cell in row.cells if cell and cell.verdict]
    assert [cell.value for cell in marked] == [grid.top]

    drawn = ET.fromstring(str(draw_sweep(grid)))
    assert drawn.tag == f"{SVG}svg"
    written = [group.findtext(f"{SVG}text") for group in drawn.iter(f"{SVG}g")]
    assert written == [
        f"{cell.value:.1%}"
        for row in grid.rows
        for cell in row.cells
        if cell and cell.value is not None
    ]
    assert len([each for each in drawn.iter(f"{SVG}rect") if each.get("fill") == "none"]) == 1
    assert {each.tag.removeprefix(SVG) for each in drawn.iter()} <= {
        *("svg", "g", "rect", "text", "title")
    }, "nothing that loads or runs"


def test_settings_without_a_choice_are_shown_last() -> None:
    grid = sweep_grid(search({"c": [5], "hidden": [8, 16], "start": ["a", "b"]}, [0.1] * 4))
    assert (grid.column_word, grid.row_word) == ("hidden", "start")
    assert "the best over c" in grid.title


def test_values_can_be_read_on_every_colour() -> None:
    for share in range(101):
        fill = tuple(
            round(a + share / 100 * (b - a))
            for a, b in zip(sweep_map._LOW, sweep_map._HIGH, strict=True)
        )
        assert max(sweep_map._contrast(ink, fill) for ink in sweep_map._INKS) >= 4.5
    assert sweep_map._contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)


def test_better_is_darker() -> None:
    drawn = draw_sweep(sweep_grid(search({"c": [1, 2, 3]}, [0.2, 0.9, 0.5])))
    fills = [
        group.find(f"{SVG}rect").get("fill")  # type: ignore[union-attr]
        for group in ET.fromstring(str(drawn)).iter(f"{SVG}g")
    ]
    bright = [sum(bytes.fromhex(str(fill)[1:])) for fill in fills]
    assert bright[0] > bright[2] > bright[1]
