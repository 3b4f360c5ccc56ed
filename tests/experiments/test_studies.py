"""Tables of studies are what their parts say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedimmune.experiments.artefacts import artefact
from fedimmune.experiments.asking import Ask
from fedimmune.experiments.other_parts import Dealt, Searched
from fedimmune.experiments.store import Store
from fedimmune.experiments.studies import Sweep

COUNTS = st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=2), min_size=1, max_size=9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(COUNTS)
def test_the_partition_is_summed_up(tmp_path: Path, counts: list[list[int]]) -> None:
    store, ask = Store(tmp_path), Ask("smoke")
    first = artefact("partition").parts(ask)[0]
    assert isinstance(first, Dealt)
    first._write(store, counts)
    sizes = [sum(each) for each in counts]
    cells = [first.clients, min(sizes), f"{median(sizes):g}", max(sizes)]
    shown = artefact("partition").results(ask, store)
    assert f"| {' | '.join(map(str, cells))} |" in shown.markdown
    assert (shown.shown, shown.wanted) == (1, 2)


SHARES = st.floats(0, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(SHARES, SHARES, SHARES, st.none() | SHARES)
def test_a_search_is_told_in_per_cent(
    tmp_path: Path, accuracy: float, exact: float, kept: float, weight: float | None
) -> None:
    store, ask = Store(tmp_path), Ask("smoke")
    part = artefact("sweep").parts(ask)[0]
    assert isinstance(part, Searched)
    point = dict(part.point)
    shares = {"accuracy": accuracy, "exact": exact, "benign_kept": kept, "attacker_weight": weight}
    part._write(store, {"settings": point, **shares, "epoch": 1})
    shown = artefact("sweep").results(ask, store)
    cells = ["–" if share is None else f"{100 * share:.1f}" for share in shares.values()]
    assert f"| {point['c']:g} | {point['eps']:g} | {' | '.join(cells)} |" in shown.markdown
    (row,) = csv.DictReader(shown.csv.splitlines())
    assert {name: float(row[name]) if row[name] else None for name in shares} == shares


@pytest.mark.parametrize("damage", ["{", "{}", "[]"])
def test_a_damaged_point_of_a_search_is_named(tmp_path: Path, damage: str) -> None:
    store, ask = Store(tmp_path), Ask("smoke")
    sweep = artefact("sweep")
    assert isinstance(sweep, Sweep)
    part = sweep.parts(ask)[0]
    assert isinstance(part, Searched)
    part._write(store, json.loads("[]"))
    part.file(store).write_text(damage)
    with pytest.raises(Exception, match="remove it, and it is made again") as error:
        sweep.results(ask, store)
    assert part.file(store).name in str(error.value)
