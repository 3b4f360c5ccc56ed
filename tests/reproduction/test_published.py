"""What is published comes out again, from the published rows themselves."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedimmune.errors import InputError
from reproduction.experiments import RUN_TABLES, RunTable
from reproduction.jobs import Store
from reproduction.results import publish
from reproduction.rows import IDENTITY, as_csv, merge, read_rows, read_table, with_defense
from reproduction.selection import Request
from reproduction.studies import EXPERIMENTS
from tests.reproduction.making import frame_of, made_up

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TABLES = [each for each in RUN_TABLES if (RESULTS / f"{each.id}.csv").exists()]


@pytest.mark.parametrize("experiment", TABLES, ids=lambda each: each.id)
def test_tables_of_runs_come_out_unchanged(experiment: RunTable) -> None:
    """Their keys may match no job any more; their order and figures are the same."""
    file = RESULTS / f"{experiment.id}.csv"
    store = Store(Path("nowhere"))
    request = Request("cpu")
    rows, _ = experiment.with_published(experiment.frame(request, store), request, store, file)
    assert as_csv(with_defense(rows)) == file.read_text("utf-8")


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.csv")), ids=lambda file: file.stem)
def test_any_table_is_read_to_the_last_bit(file: Path) -> None:
    frame = read_table(file)
    assert as_csv(frame) == file.read_text("utf-8")
    if "rule" in frame:
        learned = frame["rule"] == "adaptive"
        assert frame["defense"].astype(bool).tolist() == learned.tolist()


def test_rows_of_unknown_keys_are_carried_over_and_said_to_be(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["cifar10-backdoor"]
    table, page = tmp_path / "cifar10-backdoor.csv", tmp_path / "cifar10-backdoor.md"
    before = (RESULTS / table.name).read_text("utf-8")
    table.write_text(before, encoding="utf-8")
    rows = read_rows(table)
    done = publish(experiment, Request("cpu"), Store(tmp_path / "store"), tmp_path)
    assert {file.suffix for file in done.files} == {".csv", ".md", ".png"}
    assert table.read_text("utf-8") == before
    assert "<!-- finding -->" not in page.read_text("utf-8")
    said = "<!-- finding -->\n**What it shows.**\n<!-- /finding -->"
    page.write_text(f"# Old\n\n{said}\n\nOld words.\n", encoding="utf-8")
    publish(experiment, Request("cpu"), Store(tmp_path / "store"), tmp_path)
    assert said in page.read_text("utf-8")
    assert "Old" not in page.read_text("utf-8")
    if done.carried:
        assert done.carried <= len(rows)
        assert f"{done.carried} rows from an earlier table" in page.read_text("utf-8")
    table.write_text(as_csv(with_defense(rows.assign(key="0" * 16))), encoding="utf-8")
    again = publish(experiment, Request("cpu"), Store(tmp_path / "store"), tmp_path)
    assert again.carried == len(rows)


def test_another_scale_is_not_mixed_in(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["cifar10-backdoor"]
    table = tmp_path / "cifar10-backdoor.csv"
    table.write_bytes((RESULTS / table.name).read_bytes())
    with pytest.raises(InputError, match="of scale cpu, which cannot be shown with scale smoke"):
        experiment.check_published(Request("smoke"), table)


def test_a_study_is_replaced_only_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "partition.csv").write_bytes((RESULTS / "partition.csv").read_bytes())
    with pytest.raises(InputError, match="would get lost: only 0 of 2 jobs"):
        publish(EXPERIMENTS["partition"], Request("smoke"), Store(tmp_path / "store"), tmp_path)


def test_what_is_run_anew_takes_the_place_of_its_cell() -> None:
    rows = made_up("mnist-backdoor", seeds=(1, 2))
    frame = frame_of(rows)
    cells = [{name: getattr(row, name) for name in IDENTITY} for row in rows]
    whole = merge(frame.iloc[:0], frame, cells)
    assert sorted(map(tuple, whole[IDENTITY].values)) == sorted(map(tuple, frame[IDENTITY].values))
    half, rest = frame.iloc[::2], frame.iloc[1::2]
    pd.testing.assert_frame_equal(merge(half, rest, cells), whole)
    pd.testing.assert_frame_equal(merge(rest, half, cells), whole)
    anew = whole.iloc[3:5].assign(accuracy=0.123)
    merged = merge(whole, anew, cells)
    assert merged["accuracy"].iloc[3:5].tolist() == [0.123, 0.123]
    pd.testing.assert_frame_equal(merged.drop(index=[3, 4]), whole.drop(index=[3, 4]))
    # A row of no cell stays behind the one before it.
    odd = pd.concat([whole.iloc[:4], whole.iloc[[3]].assign(rule="own"), whole.iloc[4:]])
    assert merge(odd.reset_index(drop=True), anew, cells)["rule"].tolist() == odd["rule"].tolist()
