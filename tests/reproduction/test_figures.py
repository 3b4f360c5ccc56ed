"""Figures: what is drawn is what the tables say, and nothing that is missing fails."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedimmune.errors import InputError
from fedimmune.simulation import Scenario, run_folder, simulate
from reproduction.figures import partition_chart, run_charts, save, search_chart, traits_chart
from reproduction.layout import lay_out, printed
from reproduction.methods import METHODS, RULES, color_of
from tests.reproduction.making import LAYOUTS, Row, any_rows, frame_of, made_up, rows_of


def described(chart: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chart.to_json())
    return found


def drawn(chart: Any) -> list[dict[str, Any]]:
    """All rows of all of a chart's data."""
    return [row for rows in described(chart)["datasets"].values() for row in rows]


@settings(max_examples=4)
@given(st.sampled_from(["mnist-attackers", "cifar10-backdoor"]), st.data())
def test_what_is_drawn_is_what_the_table_says(name: str, data: st.DataObject) -> None:
    rows, paper = frame_of(data.draw(rows_of(name))), printed(name)
    (chart,) = run_charts(LAYOUTS[name], rows, paper).values()
    shown = [row for row in drawn(chart) if row.get("mean") is not None]
    cells = [
        (cell.mean, cell.spread, table.paper.get((line, measure, column)))
        for table in lay_out(LAYOUTS[name], rows, paper)
        for (line, measure, column), cell in table.cells.items()
        if cell.mean is not None
    ]
    means = sorted(row["mean"] for row in shown)
    # Altair keeps equal panels once.
    assert {round(mean, 9) for mean in means} == {round(mean, 9) for mean, _, _ in cells}
    for row in shown:
        if row["low"] is not None:
            spreads = [spread for mean, spread, _ in cells if mean == pytest.approx(row["mean"])]
            assert any(row["mean"] - row["low"] == pytest.approx(each) for each in spreads)
            assert row["high"] - row["mean"] == pytest.approx(row["mean"] - row["low"])
        if row["paper"] is not None:
            assert row["paper"] in {each for _, _, each in cells}


@settings(max_examples=2)
@given(any_rows(st.text(max_size=5)), st.sampled_from(sorted(LAYOUTS)))
def test_nothing_that_rows_say_fails(rows: list[Row], name: str) -> None:
    charts = run_charts(LAYOUTS[name], frame_of(rows), printed(name))
    assert "" in charts
    for chart in charts.values():
        described(chart)


def test_files(tmp_path: Path) -> None:
    charts = run_charts(LAYOUTS["transfer-patterns"], frame_of(made_up("transfer-patterns")))
    assert list(charts) == ["", "shift_y", "shift_x", "gap"]
    written = save(charts["gap"], tmp_path / "gap")
    assert [file.name for file in written] == ["gap.png", "gap.pdf"]
    with Image.open(written[0]) as image:
        assert min(image.size) > 150
        shades = image.convert("L").tobytes()
        assert min(shades) < 128 < max(shades), "something is drawn"
    assert written[1].read_bytes().startswith(b"%PDF")
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        save(charts["gap"], tmp_path / "file" / "gap")


def test_a_method_has_one_color_of_its_own() -> None:
    assert len({color_of(rule) for rule in RULES}) == len(RULES)
    assert all(color_of(key).startswith("#") for key in (*METHODS, "a rule of one's own"))


def test_the_best_point_of_a_search_is_framed() -> None:
    points = pd.DataFrame(
        [(c, e, (c == "2") + (e == "0")) for c in "12" for e in ("0", "0.5")],
        columns=["c", "eps", "accuracy"],
    )
    (best,) = [row for row in drawn(search_chart(points)) if row["best"]]
    assert (best["c"], best["eps"]) == ("2", "0")


def test_a_partition_is_drawn_whole() -> None:
    counts = [(2, client, label, client + label) for client in range(2) for label in range(3)]
    frame = pd.DataFrame(counts, columns=["clients", "client", "class", "samples"])
    rows = drawn(partition_chart(frame))
    assert sum(row["samples"] for row in rows) == frame["samples"].sum()
    assert {row["client"]: row["size"] for row in rows} == {0: 3, 1: 6}


def test_the_traits_are_what_was_sent(tmp_path: Path) -> None:
    runs, layer = {}, "fc2.weight"
    for rule in ("mean", "median"):
        scenario = Scenario(task="digits", rounds=2, rule=rule, attack="backdoor", attackers=4)
        for _ in simulate(scenario, runs=tmp_path, workers=1, save_updates=[layer]):
            pass
        runs[rule] = run_folder(scenario, tmp_path).path
    rows = drawn(traits_chart(runs, layer))
    record = run_folder(scenario, tmp_path).records()[1]
    trace = run_folder(scenario, tmp_path).traces.read(2)
    for client, sent in zip(trace.senders, trace.kept[layer], strict=True):
        (attacks,) = [
            each.is_attacker for each in record.clients if str(each.client) == str(client)
        ]
        name = f"{client} ▲" if attacks else f"{client}"
        own = [row for row in rows if (row["client"], row["round"]) == (name, 2)]
        # Both runs begin with the same model and differ from the second round on.
        means = [fmean(each["value"] for each in some) for some in halves(own)]
        assert any(mean == pytest.approx(float(sent.mean()), abs=1e-3) for mean in means)
    with pytest.raises(InputError, match="has saved no updates of other"):
        traits_chart(runs, "other")


def halves(rows: list[Any]) -> tuple[list[Any], list[Any]]:
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]
