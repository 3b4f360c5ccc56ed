"""Searching settings: each point by itself, nothing trained for twice, refused before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune.adaptive import train
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.adaptive.sweep import (
    GRID,
    Grid,
    Outcome,
    OutcomeFile,
    PointRunner,
    Search,
    TrainOptions,
    best_of,
    described_search,
    figures_of,
    point_runner,
    points_of,
)
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from tests.adaptive.rehearsed import recording, recordings

OPTIONS = TrainOptions(epochs=2, settings={"hidden": 8})
SMALL: Grid = {"c": (2, 10), "eps": (0, 0.5)}


@pytest.fixture(scope="module")
def rehearsals() -> list[Recording]:
    return recordings(2, rounds=3, anchor=True)


@pytest.fixture
def file(tmp_path: Path) -> OutcomeFile:
    return OutcomeFile(tmp_path / "x.sweep.jsonl")


class NeverAsked:
    def do(self, jobs: Sequence[Any], on_done: Callable[[int, Any], None]) -> list[Any]:
        assert not jobs
        return []


class KilledAfter:
    """Measures some points and is killed."""

    def __init__(self, count: int, runner: PointRunner) -> None:
        self._count, self._runner = count, runner

    def do(self, jobs: Sequence[Any], on_done: Callable[[int, Any], None]) -> list[Any]:
        for number in list(range(len(jobs)))[: -self._count - 1 : -1]:  # in any order
            on_done(number, self._runner.do(jobs[number]))
        raise KeyboardInterrupt


def searched(
    rehearsals: Sequence[Recording], grid: Grid, file: OutcomeFile, options: TrainOptions = OPTIONS
) -> list[Outcome]:
    return Search(rehearsals, options, grid, file).carry_out()


# -------------------------------------------------------------------- points


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.lists(st.integers(), min_size=1, unique=True), min_size=1
    )
)
def test_every_point_once(grid: dict[str, list[int]]) -> None:
    found = points_of(grid)
    size = 1
    for values in grid.values():
        size *= len(values)
    assert len(found) == len({tuple(sorted(point.items())) for point in found}) == size
    assert all(point[name] in grid[name] for point in found for name in grid)
    assert all(list(point) == list(grid) for point in found)


def test_the_usual_grid_has_the_papers_choice_and_its_ablations() -> None:
    usual = points_of(GRID)
    assert {"c": 10, "eps": 0.5} in usual
    assert {"c": 1, "eps": 0.5} in usual
    assert {"c": 10, "eps": 0} in usual


# -------------------------------------------------------------------- outcomes


def test_each_point_comes_out_as_if_it_were_trained_alone(
    rehearsals: list[Recording], file: OutcomeFile
) -> None:
    told: list[Outcome] = []
    search = Search(rehearsals, OPTIONS, SMALL, file)
    outcomes = search.carry_out(on_done=told.append)
    assert told == outcomes
    assert [one.settings for one in outcomes] == points_of(SMALL)
    for one in outcomes:
        alone = train(rehearsals, epochs=2, settings={"hidden": 8, **one.settings})
        assert one.model_dump(exclude={"settings", "epoch"}) == figures_of(
            alone.about.validation, alone.about.attacks
        )
        assert one.epoch == min(alone.curve, key=lambda epoch: epoch.validation).number
    assert len({one.attacker_weight for one in outcomes}) > 1, "settings matter"
    # Nobody is left out with ε = 0: none is wrong about the honest, and all about attackers.
    assert {one.benign_kept for one in outcomes if one.settings["eps"] == 0} == {1.0}


def test_kinds_that_are_not_learned_have_no_say(file: OutcomeFile) -> None:
    found = recordings(2, rounds=3)
    unseen = [recording(run, attack="backdoor", rounds=3) for run in (0, 1)]
    options = replace(OPTIONS, attacks=("omniscient",))
    (with_it,) = searched([*found, *unseen], {"c": [5]}, file, options)
    (without,) = searched(found, {"c": [5]}, file, options)
    assert with_it == without


def test_what_a_defense_is_told(rehearsals: list[Recording], file: OutcomeFile) -> None:
    outcomes = searched(rehearsals, SMALL, file)
    told = described_search(SMALL, outcomes)
    assert told["grid"] == {"c": [2, 10], "eps": [0, 0.5]}
    assert told["by"] == "accuracy"
    assert told["best"] == best_of(outcomes).settings
    assert [Outcome.model_validate(point) for point in told["points"]] == outcomes


def test_an_anchor_can_be_searched(rehearsals: list[Recording], file: OutcomeFile) -> None:
    with_it, without = searched(rehearsals, {"anchor": [True, False]}, file)
    assert with_it.attacker_weight != without.attacker_weight
    left_out = OPTIONS.train(rehearsals, {"anchor": False}, epochs=1)
    assert not left_out.references


# -------------------------------------------------------------------- going on


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_search_goes_on_where_it_was(
    rehearsals: list[Recording], file: OutcomeFile, tmp_path: Path, count: int
) -> None:
    runner = PointRunner(rehearsals, OPTIONS)
    search = Search(rehearsals, OPTIONS, SMALL, file)
    with pytest.raises(KeyboardInterrupt):
        search.carry_out(KilledAfter(count, runner))
    assert search.done == count
    again = Search(rehearsals, OPTIONS, SMALL, file)
    told: list[Outcome] = []
    outcomes = again.carry_out(on_done=told.append)
    assert len(told) == 4 - count
    assert again.done == 4
    assert outcomes == searched(rehearsals, SMALL, OutcomeFile(tmp_path / "anew"))
    assert again.carry_out(NeverAsked()) == outcomes


def test_a_wider_grid_trains_what_is_new_alone(
    rehearsals: list[Recording], file: OutcomeFile
) -> None:
    searched(rehearsals, SMALL, file)
    assert Search(rehearsals, OPTIONS, {"c": (2, 5, 10), "eps": (0, 0.5)}, file).done == 4
    # The same settings, parted otherwise.
    options = replace(OPTIONS, settings={"eps": 0.5})
    search = Search(rehearsals, options, {"hidden": [8], "c": [2, 10]}, file)
    outcomes = search.carry_out(NeverAsked())
    assert [one.settings for one in outcomes] == [{"hidden": 8, "c": c} for c in (2, 10)]


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 3},
        {"seed": 2},
        {"anchor": False},
        {"attacks": ("omniscient",)},
        {"form": "paper"},
        {"settings": {"hidden": 9}},
    ],
    ids=str,
)
def test_nothing_is_taken_for_what_it_is_not(change: dict[str, Any]) -> None:
    point = {"c": 5}
    usual = OPTIONS.digest("recordings", point)
    assert replace(OPTIONS, **change).digest("recordings", point) != usual
    assert OPTIONS.digest("others", point) != usual
    assert OPTIONS.digest("recordings", {"c": 6}) != usual
    assert OPTIONS.digest("recordings", {"c": 5}) == usual


def test_a_worker_refuses_other_recordings(rehearsals: list[Recording], tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.recording" for i in range(len(rehearsals))]
    for path, each in zip(files, rehearsals, strict=True):
        each.save(path)
    runner = point_runner(files, digest_of(rehearsals), OPTIONS)
    assert runner.do({"c": 5}) == PointRunner(rehearsals, OPTIONS).do({"c": 5})
    with pytest.raises(InputError, match="have changed"):
        point_runner(files[:-1], digest_of(rehearsals), OPTIONS)


# -------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("grid", "options", "said"),
    [
        ({}, OPTIONS, "values to try"),
        ({"c": []}, OPTIONS, "values to try: c"),
        ({"c": [1, 2], "eps": [0.5, 1.5]}, OPTIONS, "eps: "),
        ({"c": [5, "much"]}, OPTIONS, "c: "),
        ({"color": [1, 2]}, OPTIONS, "color"),
        ({"layers": [3]}, OPTIONS, "layers"),
        ({"hidden": [8, 16]}, OPTIONS, "hidden cannot be both set and searched"),
        ({"anchor": [False, True]}, TrainOptions(form="paper", epochs=2), "no anchor"),
    ],
    ids=str,
)
def test_what_cannot_be_searched_is_refused_before_anything_is_trained(
    rehearsals: list[Recording], file: OutcomeFile, grid: Grid, options: TrainOptions, said: str
) -> None:
    with pytest.raises(FedimmuneError, match=said) as refusal:
        Search(rehearsals, options, grid, file)
    assert isinstance(refusal.value, ParameterError)
    assert not file.path.exists()
