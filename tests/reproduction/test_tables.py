"""Tables: every number is that of its rows, whatever is finished."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduction import tables
from reproduction.layout import Layout, lay_out, printed
from reproduction.methods import RULES
from tests.reproduction.making import LAYOUTS, Row, any_rows, frame_of, rows_of
from tests.reproduction.reading import parsed

MEASURES = {"ACC": "accuracy", "ASR": "asr"}


def markdown_of(layout: Layout, rows: Sequence[Row], paper: pd.DataFrame | None = None) -> str:
    return tables.markdown_of(layout, frame_of(rows), paper)


def naive(groups: Sequence[Sequence[Row]], measure: str) -> tuple[float, float | None] | None:
    """Average groups of rows that differ in their seeds; None where one is empty."""
    by_seed = [{row.seed: 100 * getattr(row, measure) for row in group} for group in groups]
    if not groups or not all(by_seed):
        return None
    mean = float(np.mean([np.mean(list(each.values())) for each in by_seed]))
    seeds = sorted(by_seed[0])
    if len(seeds) < 2 or any(sorted(each) != seeds for each in by_seed):
        return mean, None
    matrix = np.array([[each[seed] for seed in seeds] for each in by_seed])
    return mean, float(matrix.mean(0).std(ddof=1))


def same(text: str, expected: tuple[float, float | None] | None) -> bool:
    text = text.strip("*")
    if expected is None:
        return text == "–"
    mean, _, spread = text.partition(" ± ")
    if abs(float(mean) - expected[0]) > 0.00501 or bool(spread) != (expected[1] is not None):
        return False
    return expected[1] is None or abs(float(spread) - expected[1]) <= 0.00501


def rule_of(label: str) -> str:
    return label.split("`")[1]


def check(
    found: dict[str, dict[str, str]],
    rows: Sequence[Row],
    columns: Sequence[int],
    column_of: Callable[[Row], int],
    is_in: Callable[[Row, str], bool] = lambda row, label: row.rule == rule_of(label),
    values: Sequence[int] | None = None,
) -> None:
    """Compare a table with its rows."""
    assert found
    for label, cells in found.items():
        own = [row for row in rows if is_in(row, label)]
        for name, text in cells.items():
            if name.startswith("paper"):
                continue
            measure, column = name.split(" %, ")
            within = [c for c in columns if c] if column == "average" else [int(column)]
            groups = [
                [r for r in own if column_of(r) == c and (values is None or r.value == v)]
                for c in within
                for v in (values or [0])
            ]
            assert same(text, naive(groups, MEASURES[measure])), (label, name)


# -------------------------------------------------------------------- the numbers


@settings(max_examples=15)
@given(rows_of("mnist-backdoor"))
def test_a_table_of_rules(rows: list[Row]) -> None:
    known = printed("mnist-backdoor")
    (found,) = parsed(markdown_of(LAYOUTS["mnist-backdoor"], rows, known)).values()
    assert len(found) == len(RULES)
    check(found, rows, (1, 2, 3, 4), lambda row: row.attackers)
    figures = {
        (rule_of(label), name): text.strip("*")
        for label, cells in found.items()
        for name, text in cells.items()
        if name.startswith("paper") and text
    }
    assert figures == {
        (each["rule"], f"paper {name} %, {each['attackers']}"): f"{each[measure]:.2f}"
        for each in known.to_dict("records")
        for name, measure in MEASURES.items()
    }


@settings(max_examples=15)
@given(rows_of("cifar10-attackers"))
def test_runs_without_attack_are_0_attackers_of_the_omniscient_attack(rows: list[Row]) -> None:
    found = parsed(markdown_of(LAYOUTS["cifar10-attackers"], rows))
    names = [f"{'CIFAR-10, ' if rows else ''}{each} attack" for each in ("omniscient", "backdoor")]
    assert list(found) == [name[:1].upper() + name[1:] for name in names]
    left, right = found.values()
    check(
        left,
        [row for row in rows if row.attack in {"none", "omniscient"}],
        (0, 1, 2, 3, 4),
        lambda row: row.attackers,
    )
    assert all(list(cells) == [f"ACC %, {m}" for m in range(5)] for cells in left.values())
    backdoor = [row for row in rows if row.attack == "backdoor"]
    check(right, backdoor, (1, 2, 3, 4), lambda row: row.attackers)


@settings(max_examples=15)
@given(rows_of("imdb-attackers"))
def test_the_average_is_over_those_with_attackers(rows: list[Row]) -> None:
    layout = replace(LAYOUTS["imdb-attackers"], average=True)
    left = next(iter(parsed(markdown_of(layout, rows)).values()))
    assert all({"ACC %, 0", "ACC %, average"} <= set(cells) for cells in left.values())
    own = [row for row in rows if row.attack != "label-flip"]
    check(left, own, (0, 1, 2, 3, 4), lambda row: row.attackers)


@settings(max_examples=15)
@given(rows_of("training-attacks"))
def test_a_table_of_what_was_rehearsed(rows: list[Row]) -> None:
    known = printed("training-attacks")
    found = parsed(markdown_of(LAYOUTS["training-attacks"], rows, known))
    short = {"": "", "backdoor": "B", "omniscient": "O", "backdoor+omniscient": "B+O"}

    def is_in(row: Row, label: str) -> bool:
        trained = label.partition(", trained on ")[2]
        return row.rule == rule_of(label) and short[row.trained] == trained

    for attack, table in zip(("backdoor", "omniscient"), found.values(), strict=True):
        assert len(table) == len(RULES)
        own = [row for row in rows if row.attack == attack]
        check(table, own, (1, 2, 3, 4), lambda row: row.attackers, is_in)
        for label, cells in table.items():
            figures = [text for name, text in cells.items() if name.startswith("paper") and text]
            assert bool(figures) == (rule_of(label) == "adaptive-paper")


@settings(max_examples=15)
@given(rows_of("transfer-patterns"))
def test_averages_and_details_of_what_is_varied(rows: list[Row]) -> None:
    found = parsed(markdown_of(LAYOUTS["transfer-patterns"], rows))
    averages = {name: table for name, table in found.items() if "average" in name}
    assert list(found)[:3] == list(averages)
    for varied, table in zip(("shift_y", "shift_x", "gap"), averages.values(), strict=True):
        own = [row for row in rows if row.varied == varied]
        values = sorted({row.value for row in own})
        check(table, own, (1, 2, 3, 4), lambda row: row.attackers, values=values)
        for count in {row.attackers for row in own}:
            (detail,) = [
                each for name, each in found.items() if f"{varied} varied, {count} attack" in name
            ]
            here = [row for row in own if row.attackers == count]
            check(detail, here, values, lambda row: row.value)


NAMES = st.text(st.characters(exclude_characters="\x00"), max_size=6)
"""Any name that a file can hold: pandas takes a NUL for the end of one."""


@given(any_rows(NAMES).map(lambda rows: [replace(r, varied="") for r in rows]))
def test_every_row_is_somewhere_and_only_seeds_are_averaged(rows: list[Row]) -> None:
    unique = set()
    for row in rows:
        count = 0 if row.attack == "none" else row.attackers
        trained = tuple(sorted(row.trained.split("+")))
        unique.add((row.task, row.clients, row.attack, count, row.rule, trained, row.seed))
    found = lay_out(LAYOUTS["mnist-attackers"], frame_of(rows))
    counted = [
        table.cell(line, "accuracy", column).seeds
        for table in found
        for line in table.lines
        for column in table.columns
    ]
    assert sum(counted) == len(unique)


@settings(max_examples=15)
@given(rows_of("mnist-attackers"))
def test_bold_is_the_best_beyond_doubt(rows: list[Row]) -> None:
    for row in parsed(markdown_of(LAYOUTS["mnist-attackers"], rows)).values():
        columns = next(iter(row.values()))
        for name in columns:
            bold = [label for label, cells in row.items() if cells[name].startswith("**")]
            assert len(bold) <= 1
            assert all("oracle" not in label for label in bold)


def clear(seeds: Sequence[int], best: float) -> list[Row]:
    shares = {"mean": 0.5, "median": 0.6, "adaptive": best, "oracle": 0.99}
    return [
        Row(
            task="t",
            attack="omniscient",
            attackers=1,
            rule=rule,
            seed=seed,
            accuracy=share + seed / 100,
        )
        for rule, share in shares.items()
        for seed in seeds
    ]


def test_bold_needs_seeds_and_a_lead() -> None:
    layout = replace(
        LAYOUTS["mnist-attackers"],
        methods=("mean", "median", "adaptive", "oracle"),
        attacks=("omniscient",),
        columns=(1,),
        with_none=(),
    )
    assert "**" not in markdown_of(layout, clear([1], 0.9))
    assert "**" not in markdown_of(layout, clear([1, 2], 0.601))
    assert "**" not in markdown_of(replace(layout, methods=("krum",)), clear([1, 2], 0.9))
    bold = re.findall(r"`(\w+)`.*\*\*", markdown_of(layout, clear([1, 2], 0.9)))
    assert bold == ["adaptive"]


# -------------------------------------------------------------------- what is said


def test_seeds_rounds_and_rehearsals_are_said() -> None:
    layout = LAYOUTS["mnist-backdoor"]
    few = [
        Row(
            task="mnist",
            attack="backdoor",
            attackers=count,
            rule=rule,
            seed=seed,
            accuracy=0.5,
            asr=0.1,
            rounds=30,
            trained=trained,
        )
        for count, seeds in ((2, (1,)), (4, (1, 2, 3)))
        for seed in seeds
        for rule, trained in (
            ("mean", ""),
            ("adaptive", "omniscient+backdoor"),
            ("adaptive-paper", "backdoor"),
        )
    ]
    text = markdown_of(layout, few)
    for said in (
        "over 3 seeds (attackers: 4) and 1 seed (attackers: 2).",
        "After 30 rounds.",
        "Rehearsed by adaptive-paper: backdoor. Rehearsed by adaptive: backdoor and omniscient.",
        "–: not run.",
    ):
        assert said in text
    assert "One seed." in markdown_of(layout, [row for row in few if row.seed == 1])
    assert "over 3 seeds." in markdown_of(layout, [r for r in few if r.attackers == 4])
    assert "Nothing is run yet." in markdown_of(layout, [])


def test_figures_of_another_task_are_said_to_be() -> None:
    row = Row(task="mnist", attack="backdoor", attackers=4, rule="mean", seed=1, accuracy=0.9)
    known = printed("ablation")
    text = markdown_of(LAYOUTS["ablation"], [row], known)
    assert "on CIFAR-10 and not on MNIST" in text
    assert "*91.02*" in text
    assert "not on" not in markdown_of(LAYOUTS["ablation"], [], known)
    # Ten of a hundred are not one of ten.
    assert "paper" not in markdown_of(
        replace(LAYOUTS["ablation"], methods=("mean",)), [replace(row, clients=100)], known
    )


def test_a_rule_that_rehearsed_differently_has_two_lines() -> None:
    rows = [
        Row(
            task="mnist",
            attack="backdoor",
            attackers=4,
            rule="adaptive",
            seed=1,
            accuracy=share,
            trained=trained,
        )
        for share, trained in ((0.25, "backdoor"), (0.75, "omniscient"))
    ]
    (found,) = parsed(markdown_of(LAYOUTS["mnist-backdoor"], rows)).values()
    assert found["`adaptive` (its own defense), trained on B"]["ACC %, 4"] == "25.00"
    assert found["`adaptive` (its own defense), trained on O"]["ACC %, 4"] == "75.00"


def test_a_model_that_was_not_tested_is_not_finished() -> None:
    row = Row(task="mnist", attack="backdoor", attackers=4, rule="mean", seed=1, accuracy=np.nan)
    (found,) = parsed(markdown_of(LAYOUTS["mnist-backdoor"], [row])).values()
    assert found["`mean` (FedAvg)"]["ACC %, 4"] == "–"
