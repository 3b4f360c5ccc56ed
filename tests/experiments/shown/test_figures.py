"""Pictures: what is drawn is what the tables say, and nothing that is missing fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from fedimmune.adaptive.outcomes import Outcome, described_search
from fedimmune.adaptive.sweeping import points_of
from fedimmune.errors import InputError
from fedimmune.experiments.contenders import ABLATIONS, RULES
from fedimmune.experiments.rows import Row
from fedimmune.experiments.shown import defence_figures, figures, partition_figure, saving
from fedimmune.experiments.shown.laying_out import lay_out
from fedimmune.experiments.shown.layouts import LAYOUTS
from fedimmune.experiments.shown.naming import Line
from fedimmune.experiments.shown.panels import Legend, PanelDrawing
from fedimmune.experiments.shown.published import published
from fedimmune.experiments.shown.styles import CLASSES, label_of, style_of
from fedimmune.synthetic import demonstrate
from fedimmune.traces import Trace, Traces
from tests.experiments.shown.making import any_rows, made_up, rows_of
from tests.report.making import make_run, scenario_of


class Caught:
    """Takes the place of `save_both`: drawing is quick, and files are not."""

    def __init__(self, patch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self.figures: dict[Path, Figure] = {}
        patch.setattr(module, "save_both", self._take)

    def _take(self, figure: Figure, stem: Path) -> list[Path]:
        assert stem not in self.figures
        self.figures[stem] = figure
        return []


# -------------------------------------------------------------------- panels


@settings(max_examples=4)
@given(rows_of("mnist-attackers"))
def test_lines_are_the_means_and_their_spreads(rows: list[Row]) -> None:
    for table in lay_out(LAYOUTS["mnist-attackers"], rows):
        for measure in table.measures:
            axes = Figure().subplots()
            legend = Legend(table.lines)
            low, high = PanelDrawing(axes, table, measure, legend).draw(as_bars=False)
            columns = [
                column
                for column in table.columns
                if column is not None
                and any(table.cell(line, measure, column).mean is not None for line in table.lines)
            ]
            if len(columns) < 2:  # then there are no lines
                continue
            shown = [
                line
                for line in table.lines
                if any(table.cell(line, measure, c).mean is not None for c in columns)
            ]
            assert legend.entries()[1] == [label_of(line) for line in shown]
            for line, drawn in zip(shown, axes.containers, strict=True):
                x, y = (np.asarray(each, float) for each in drawn[0].get_data())
                assert np.abs(x - columns).max() < 0.15, "a rule stays in its column"
                bars = drawn[2][0]
                assert isinstance(bars, LineCollection)
                parts = [np.asarray(part) for part in bars.get_segments() if len(part)]
                ends = {round(part[0, 0]): part[:, 1] for part in parts}
                for k, column in enumerate(columns):
                    cell = table.cell(line, measure, column)
                    if cell.mean is None:
                        assert math.isnan(y[k])
                        continue
                    assert y[k] == cell.mean
                    assert low <= y[k] <= high
                    if cell.spread is not None:
                        around = [y[k] - cell.spread, y[k] + cell.spread]
                        assert ends[column] == pytest.approx(around)


def test_bars_are_the_means_with_the_papers_figures_on_them() -> None:
    (table,) = lay_out(
        LAYOUTS["cifar10-backdoor"], made_up("cifar10-backdoor"), published("cifar10-backdoor")
    )
    axes = Figure().subplots()
    PanelDrawing(axes, table, "asr", Legend(table.lines)).draw(as_bars=True)
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    places = {}
    for line in table.lines:
        for number, column in enumerate(table.columns):
            mean = table.cell(line, "asr", column).mean
            (bar,) = [b for b in bars if b.get_height() == mean and round(b.get_x()) == number]
            places[line, column] = bar.get_x(), bar.get_x() + bar.get_width()
    marks = [each for each in axes.lines if each.get_color() == "black"]
    assert len(marks) == len(table.paper) / 2, "of one of two measures"
    for (line, measure, column), figure in table.paper.items():
        if measure == "asr":
            left, right = places[line, column]
            assert any(
                np.asarray(mark.get_ydata())[0] == figure
                and left <= np.asarray(mark.get_xdata()).mean() <= right
                for mark in marks
            )


def test_a_single_column_is_drawn_as_bars_and_columns_that_were_not_run_are_left_out() -> None:
    rows = [row for row in made_up("mnist-attackers") if row.attackers == 4]
    for table in lay_out(LAYOUTS["mnist-attackers"], rows, published("mnist-attackers")):
        for measure in table.measures:
            axes = Figure().subplots()
            PanelDrawing(axes, table, measure, Legend(table.lines)).draw(as_bars=False)
            assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4"]
            left, right = axes.get_xlim()
            drawn = [np.asarray(each.get_xdata(), float) for each in axes.lines]
            bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
            drawn += [np.asarray([bar.get_x(), bar.get_x() + bar.get_width()]) for bar in bars]
            assert len(drawn) >= len(table.lines)
            assert all(left <= x.min() <= x.max() <= right for x in drawn)


@pytest.mark.filterwarnings("ignore:Glyph")  # a font need not have what a name has
@settings(max_examples=5)
@given(any_rows(st.text(max_size=5)), st.sampled_from(sorted(LAYOUTS)))
def test_nothing_that_rows_say_fails(rows: list[Row], artefact: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        caught = Caught(patch, figures)
        figures.draw(LAYOUTS[artefact], rows, published(artefact), Path("folder/stem"))
    assert next(iter(caught.figures)) == Path("folder/stem")
    assert {stem.parent for stem in caught.figures} == {Path("folder")}


# -------------------------------------------------------------------- files


def check_files(written: list[Path], names: list[str]) -> None:
    assert [file.name for file in written] == names
    for file in written:
        if file.suffix == ".pdf":
            assert file.read_bytes().startswith(b"%PDF")
            continue
        with Image.open(file) as image:
            shades = image.convert("L").tobytes()
            assert min(shades) < 128 < max(shades), "something is drawn"
    (folder,) = {file.parent for file in written}
    assert sorted(folder.iterdir()) == sorted(written), "and nothing else is left there"


def test_a_picture_as_png_and_pdf_always_the_same(tmp_path: Path) -> None:
    layout, rows = LAYOUTS["imdb-attackers"], made_up("imdb-attackers", 0.8)
    written = figures.draw(layout, rows, [], tmp_path / "deep" / "v1.2")
    check_files(written, ["v1.2.png", "v1.2.pdf"])
    again = figures.draw(layout, rows, [], tmp_path / "again")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in written]


def test_details_have_pictures_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = Caught(monkeypatch, figures)
    layout, parameters = LAYOUTS["transfer-patterns"], ("shift_y", "shift_x", "gap")
    figures.draw(layout, made_up("transfer-patterns"), [], Path("p"))
    titles = {
        stem.name: [axes.get_title() for axes in figure.axes]
        for stem, figure in caught.figures.items()
    }
    assert list(titles) == ["p", *(f"p-{name}" for name in parameters)]
    assert titles["p"] == [*(f"average over {name}" for name in parameters), "", "", ""]
    counts = ("1 attacker", "2 attackers", "3 attackers", "4 attackers")
    for name in parameters:
        assert titles[f"p-{name}"] == [f"{name} varied, {count}" for count in counts] + [""] * 4
    figures.draw(layout, [], [], Path("nothing"))
    nothing = caught.figures[Path("nothing")]
    assert [t.get_text() for axes in nothing.axes for t in axes.texts] == ["not run yet"] * 6


def test_tasks_are_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their figures are on scales of their own, and titles say whose they are."""
    caught = Caught(monkeypatch, figures)
    rows = made_up("transfer-patterns")
    both = [*rows, *(replace(row, task="mnist") for row in rows)]
    figures.draw(LAYOUTS["transfer-patterns"], both, [], Path("p"))
    titles = [axes.get_title() for axes in caught.figures[Path("p")].axes]
    assert titles == [
        title
        for task in ("CIFAR-10", "MNIST")
        for title in (
            *(f"{task}, average over {n}" for n in ("shift_y", "shift_x", "gap")),
            *[""] * 3,
        )
    ]
    assert len(caught.figures[Path("p-gap")].axes) == 2 * 2 * 4


def test_side_by_side_means_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = Caught(monkeypatch, figures)
    rows = [
        Row(
            task="t",
            attack="backdoor",
            attackers=count,
            rule="mean",
            seed=1,
            accuracy=count / 5,
            asr=0.5,
            varied="gap",
            value=value,
        )
        for count in (1, 2, 3, 4)
        for value in (0, 1)
    ]
    figures.draw(LAYOUTS["transfer-patterns"], rows, [], Path("p"))
    accuracies = caught.figures[Path("p-gap")].axes[:4]
    assert len({axes.get_ylim() for axes in accuracies}) == 1
    low, high = accuracies[0].get_ylim()
    assert low < 20 < 80 < high


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    stem = tmp_path / "folder" / "x"
    attempts: list[Callable[[], list[Path]]] = [
        lambda: figures.draw(LAYOUTS["ablation"], [], [], stem),
        lambda: figures.draw_partition([[[1]]], stem),
        lambda: figures.draw_sweep({}, stem),
        lambda: figures.draw_traits_of([], stem),
    ]
    for draw in attempts:
        with pytest.raises(InputError, match=r"pip install 'fedimmune\[figures\]'"):
            draw()
    assert not stem.parent.exists()


# -------------------------------------------------------------------- looks


def test_every_rule_has_a_look_of_its_own() -> None:
    for rules in (RULES, ABLATIONS):
        looks = [style_of(Line(rule)) for rule in rules]
        assert len({look.colour for look in looks}) == len(rules)
        assert len({look.marker for look in looks}) == len(rules)
    every = {(style_of(Line(rule)).colour, style_of(Line(rule)).marker) for rule in RULES}
    others = [rule for rule in ABLATIONS if rule not in RULES]
    assert every.isdisjoint((style_of(Line(r)).colour, style_of(Line(r)).marker) for r in others)
    assert len(set(CLASSES)) == 10
    trainings = ("backdoor", "omniscient", "backdoor+omniscient")
    hatches = {style_of(Line("adaptive", each), trainings).hatch for each in trainings}
    assert len(hatches) == 3


@given(st.text(max_size=8))
def test_any_rule_has_a_look_and_a_name(rule: str) -> None:
    assert style_of(Line(rule)) == style_of(Line(rule))
    assert "$" not in label_of(Line(rule)).replace(r"\$", "")


# -------------------------------------------------------------------- the others


@pytest.mark.parametrize("classes", [3, 25])
def test_a_partition_is_stacked_by_class_and_sorted_by_size(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught = Caught(monkeypatch, partition_figure)
    counts = np.random.default_rng(0).integers(0, 9, (6, classes))
    figures.draw_partition([counts.tolist(), [[1], [2, 3]]], Path("x"))
    (figure,) = caught.figures.values()
    axes, other = figure.axes
    assert (axes.get_title(), other.get_title()) == ("6 clients", "2 clients")
    bars = np.array([[bar.get_height() for bar in each] for each in axes.containers])
    below = np.array([[bar.get_y() for bar in each] for each in axes.containers])
    assert sorted(map(tuple, bars.T)) == sorted(map(tuple, counts))
    assert (np.diff(bars.sum(0)) >= 0).all()
    assert below[1:] == pytest.approx(np.cumsum(bars, axis=0)[:-1])
    assert bool(figure.legends) == (classes <= 20)


def test_a_partition_of_nobody_fails_nowhere(tmp_path: Path) -> None:
    check_files(figures.draw_partition([], tmp_path / "p"), ["p.png", "p.pdf"])


def test_a_search_has_its_values_in_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = Caught(monkeypatch, defence_figures)
    grid: dict[str, list[Any]] = {"c": [1, 10, 20], "eps": [0.0, 0.5]}
    accuracies = [0.5, 0.6, 0.9, 0.7, 0.8, 0.55]
    outcomes = [
        Outcome(
            settings=point,
            accuracy=accuracy,
            exact=0.1,
            benign_kept=1.0,
            attacker_weight=None,
            epoch=1,
        )
        for point, accuracy in zip(points_of(grid), accuracies, strict=True)
    ]
    figures.draw_sweep(described_search(grid, outcomes), Path("x"))
    (figure,) = caught.figures.values()
    (axes,) = figure.axes
    assert sorted(t.get_text() for t in axes.texts) == sorted(f"{a:.1%}" for a in accuracies)
    (frame,) = axes.patches
    assert isinstance(frame, Rectangle)
    (best,) = [text for text in axes.texts if text.get_text() == "90.0%"]
    x, y = best.get_position()
    assert frame.get_bbox().contains(x, y)


def test_traits_are_drawn_where_a_layer_was_kept(tmp_path: Path) -> None:
    for rule in ("mean", "krum"):
        run = make_run(tmp_path / "runs" / rule, scenario_of(rule, rounds=2))
        for number in (1, 2):
            kept = Trace(number, senders=tuple(range(10)), kept={"fc": torch.randn(10, 3, 4)})
            Traces(run / "traces").write(kept)
    written = figures.draw_traits_of([tmp_path / "runs"], tmp_path / "drawn" / "traits")
    check_files(written, ["traits.png", "traits.pdf"])
    make_run(tmp_path / "bare")
    with pytest.raises(InputError, match="no run has kept the updates of a layer"):
        figures.draw_traits_of([tmp_path / "bare"], tmp_path / "traits")


def test_the_synthetic_sheet(tmp_path: Path) -> None:
    shown = demonstrate(sets=64, epochs=1)
    check_files(figures.draw_synthetic_sheet(shown, tmp_path / "s"), ["s.png", "s.pdf"])


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write figures to"):
        saving.save_both(Figure(), tmp_path / "file" / "x")
