"""Tables of studies are what their parts say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reproduction.jobs import PartitionJob, SearchJob, Store
from reproduction.rows import as_csv
from reproduction.selection import Request
from reproduction.studies import find_experiment

COUNTS = st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=2), min_size=1, max_size=9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(COUNTS)
def test_the_partition_is_summed_up(tmp_path: Path, counts: list[list[int]]) -> None:
    store, request = Store(tmp_path), Request("smoke")
    first = find_experiment("partition").jobs(request)[0]
    assert isinstance(first, PartitionJob)
    first.write(store, counts)
    sizes = [sum(each) for each in counts]
    cells = [first.clients, min(sizes), f"{median(sizes):g}", max(sizes)]
    study = find_experiment("partition")
    frame = study.frame(request, store)
    assert f"| {' | '.join(map(str, cells))} |" in study.markdown(frame)
    assert (study.shown(frame, request, store), len(study.jobs(request))) == (1, 2)


SHARES = st.floats(0, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(SHARES, SHARES, SHARES, st.none() | SHARES)
def test_a_search_is_told_in_percent(
    tmp_path: Path, accuracy: float, exact: float, kept: float, weight: float | None
) -> None:
    store, request = Store(tmp_path), Request("smoke")
    job = find_experiment("sweep").jobs(request)[0]
    assert isinstance(job, SearchJob)
    point = dict(job.point)
    shares = {"accuracy": accuracy, "exact": exact, "benign_kept": kept, "attacker_weight": weight}
    job.write(store, {**point, **shares})
    frame = find_experiment("sweep").frame(request, store)
    cells = ["–" if share is None else f"{100 * share:.1f}" for share in shares.values()]
    assert f"| {point['c']:g} | {point['eps']:g} | {' | '.join(cells)} |" in find_experiment(
        "sweep"
    ).markdown(frame)
    (row,) = csv.DictReader(as_csv(frame).splitlines())
    assert {name: float(row[name]) if row[name] else None for name in shares} == shares


@pytest.mark.parametrize("damage", ["{", "{}", "[]"])
def test_a_damaged_point_of_a_search_is_named(tmp_path: Path, damage: str) -> None:
    store, request = Store(tmp_path), Request("smoke")
    sweep = find_experiment("sweep")
    job = sweep.jobs(request)[0]
    assert isinstance(job, SearchJob)
    job.write(store, json.loads("[]"))
    job.file(store).write_text(damage)
    with pytest.raises(Exception, match="remove it, and it is made again") as error:
        sweep.frame(request, store)
    assert job.file(store).name in str(error.value)
