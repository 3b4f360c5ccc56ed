"""Figures: what they draw is what the tables hold, and they look the same wherever they are."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedimmune import load_runs, rules
from fedimmune.adaptive.sweep import Outcome, described_search, points_of
from fedimmune.report import charts, write_figures
from fedimmune.report.charts import Figure, rule_styles, save
from fedimmune.report.summary import confusion_of, settings_of, written
from tests.report.making import make_run, scenario_of, with_kinds, with_probabilities


def data_of(figure: Figure | None) -> list[pd.DataFrame]:
    """The tables that a figure draws, as its specification holds them."""
    assert figure is not None
    return [pd.DataFrame(rows) for rows in figure.spec()["datasets"].values()]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


# -------------------------------------------------------------------- data


def test_lines_are_means_over_seeds_and_bands_their_range(tmp_path: Path) -> None:
    make_run(tmp_path / "a", scenario_of(seed=1))
    make_run(tmp_path / "b", scenario_of(seed=2), played=4)
    (found,) = data_of(charts.lines(load_runs(tmp_path).rounds, "accuracy", "ACC"))
    one, other = ([line["accuracy"] for line in lines(tmp_path / name)] for name in "ab")
    assert list(found["round"]) == [1, 2, 3, 4, 5, 6]
    for row in found.to_dict("records"):
        there = [values[row["round"] - 1] for values in (one, other) if row["round"] <= len(values)]
        assert row["value"] == pytest.approx(sum(there) / len(there))
        assert (row["low"], row["high"]) == (min(there), max(there))


def test_a_map_has_a_cell_per_client_and_round(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", names={3: "three", 9: "x" * 300})
    figure = charts.trust_map(load_runs(folder), "run", "Trust map")
    (found,) = data_of(figure)
    wanted = {
        (line["round"], client["client"]): client
        for line in lines(folder)
        for client in line["clients"]
    }
    assert len(found) == len(wanted) == 60
    marked = [str(row)[2:] for row in dict.fromkeys(found["row"]) if str(row).startswith("▲")]
    assert sorted(marked) == ["0", "1", "2", "three"]
    for row in found.to_dict("records"):
        name = row["row"].removeprefix("▲ ")
        client = wanted[row["round"], "x" * 300 if name.startswith("x") else name]
        assert row["verdict"] == client["verdict"]
        assert row["weight"] == pytest.approx(client["weight"])
        assert row["side"] == ("attacker" if client["is_attacker"] else "honest")
        if client["reason"] is not None:
            assert row["reason"] == client["reason"]


def test_a_reliability_diagram_counts_who_attacked_by_what_was_said(tmp_path: Path) -> None:
    folder = with_probabilities(tmp_path / "run")
    figure = charts.reliability(load_runs(folder), ["run"], "adaptive")
    drawn = next(table for table in data_of(figure) if "said" in table)
    said = [
        (client["probability"], client["is_attacker"])
        for line in lines(folder)
        for client in line["clients"]
        if client["probability"] is not None
    ]
    assert drawn["count"].sum() == len(said) == 54
    error = 0.0
    for row in drawn.to_dict("records"):
        low, high = (float(end) / 100 for end in row["called"].removesuffix(" %").split("–"))
        inside = [(p, attacks) for p, attacks in said if low <= p < high or p == high == 1]
        assert row["count"] == len(inside)
        assert row["said"] == pytest.approx(sum(p for p, _ in inside) / len(inside))
        assert row["attacked"] == pytest.approx(sum(a for _, a in inside) / len(inside))
        error += abs(row["said"] - row["attacked"]) * len(inside) / len(said)
    assert figure is not None
    assert f"{100 * error:.1f} points" in figure.reading
    sure = [attacks for p, attacks in said if p >= 0.5]
    assert f"{sum(sure) / len(sure):.1%} did" in figure.reading


def test_there_is_none_without_probabilities_or_truth(tmp_path: Path) -> None:
    make_run(tmp_path / "plain")
    with_probabilities(tmp_path / "real", truth=False)
    results = load_runs(tmp_path)
    for run in ("plain", "real"):
        assert charts.reliability(results, [run], "adaptive") is None


def test_clients_cannot_pass_for_each_other(tmp_path: Path) -> None:
    long = "y" * 400
    names: dict[int, int | str] = {
        4: "▲ 0",
        5: "▲ 0 (2)",
        6: long + "a",
        7: long + "b",
        8: "\x1b[2J",
    }
    folder = make_run(tmp_path / "run", names=dict(names))
    (found,) = data_of(charts.trust_map(load_runs(folder), "run", "Trust map"))
    assert found.groupby("row").size().tolist() == [6] * 10
    assert "\x1b" not in "".join(found["row"])


def test_the_standing_is_that_of_the_last_round(tmp_path: Path) -> None:
    for rule in ("mean", "krum", "oracle"):
        make_run(tmp_path / rule, scenario_of(rule))
    results = load_runs(tmp_path)
    found = {frozenset(table): table for table in data_of(charts.standing(results.figures))}
    limit = found[frozenset({"limit"})]["limit"].item()
    (dots,) = (table for names, table in found.items() if "score" in names)
    last = {rule: lines(tmp_path / rule)[-1] for rule in ("mean", "krum", "oracle")}
    assert limit == pytest.approx(last["oracle"]["accuracy_without_success"])
    for row in dots.to_dict("records"):
        assert row["score"] == pytest.approx(last[row["run"]]["accuracy_without_success"])


@pytest.mark.parametrize("clients", [10, 40])
def test_the_partition_is_as_it_was_dealt(tmp_path: Path, clients: int) -> None:
    folder = make_run(tmp_path / "run", scenario_of(clients=clients, rounds=1))
    data = {c["client"]: c for c in json.loads((folder / "partition.json").read_text())}
    (found,) = data_of(charts.partition(load_runs(folder), "run"))
    assert len(found) == 10 * clients
    for row in found.to_dict("records"):
        client = data[row["row"].removeprefix("▲ ")]
        assert client["samples"][row["class"]] == row["samples"]
        assert row["row"].startswith("▲") == client["is_attacker"] == (row["side"] == "attacker")


def test_sides_are_apart(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (found,) = data_of(charts.sides(load_runs(folder), ["run"], "krum", "weight"))
    for row in found.to_dict("records"):
        there = [
            client["weight"]
            for client in lines(folder)[row["round"] - 1]["clients"]
            if client["is_attacker"] == (row["side"] == "attacker")
        ]
        assert row["value"] == pytest.approx(sum(there) / len(there))
        assert (row["low"], row["high"]) == (min(there), max(there))
    assert charts.sides(load_runs(folder), ["run"], "krum", "score") is None


def test_every_client_round_is_counted_once_among_the_kinds(tmp_path: Path) -> None:
    path = with_kinds(tmp_path / "a")
    wanted: Counter[tuple[str, str]] = Counter()
    for line in lines(path):
        for client in line["clients"]:
            truth = "backdoor" if client["is_attacker"] else "honest"
            wanted[truth, client.get("kind") or client["verdict"]] += 1
    (setting,) = settings_of(load_runs(path))
    counted = confusion_of(setting, "adaptive")
    assert counted is not None
    counts, reading = counted
    assert list(counts.columns) == ["trusted", "backdoor", "omniscient", "unknown"]
    assert list(counts.index) == ["honest", "backdoor"]
    (found,) = data_of(charts.confusion(counts, "adaptive", reading))
    drawn = {(row["truth"], row["taken_for"]): row["count"] for row in found.to_dict("records")}
    assert {place: count for place, count in drawn.items() if count} == dict(wanted)
    accused = sum(wanted["backdoor", kind] for kind in ("backdoor", "omniscient", "unknown"))
    share = wanted["backdoor", "backdoor"] / accused
    assert f"{share:.1%} of the suspected attackers looked most like backdoor" in reading


def test_there_is_no_confusion_where_no_kind_is_named_or_no_truth_known(tmp_path: Path) -> None:
    for path in (make_run(tmp_path / "a"), with_kinds(tmp_path / "b", truth=False)):
        (setting,) = settings_of(load_runs(path))
        assert confusion_of(setting, setting.rules[0]) is None


# -------------------------------------------------------------------- the look


def test_a_rule_looks_the_same_everywhere_and_rules_differ() -> None:
    names = list(rules.available())
    alone = {name: rule_styles([name])[name] for name in names}
    assert rule_styles([*names, "somebody's"])["krum"] == alone["krum"]
    assert {name: rule_styles(names)[name] for name in names} == alone
    assert len({json.dumps(style) for style in alone.values()}) == len(names)
    variants = rule_styles(["krum (attackers=3)", "krum (attackers=4)"])
    assert len({json.dumps(style) for style in variants.values()}) == 2
    assert {style[0] for style in variants.values()} == {alone["krum"][0]}
    assert rule_styles(["never heard of"]) == rule_styles(["never heard of"])


def luminance(color: str) -> float:
    parts = [part / 255 for part in bytes.fromhex(color[1:])]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("paper", ["#f6f7f8", "#ffffff", "#1d2125", "#15181b"])
def test_colors_can_be_seen_on_every_paper(paper: str) -> None:
    used = {color for color, _ in charts._KNOWN.values()} | set(charts._PALETTE)
    used |= {color for color, _, _ in charts._VERDICTS.values()}
    for color in used:
        bright, dark = sorted((luminance(color), luminance(paper)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 3, color


# -------------------------------------------------------------------- files


def test_every_picture_as_png_svg_and_pdf(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "run")
    written = write_figures([tmp_path / "runs"], tmp_path / "deep" / "figures")
    assert sorted(written) == sorted((tmp_path / "deep" / "figures").iterdir())
    names = {file.name for file in written}
    start = "digits-backdoor-by-4-of-10-clients"
    for name in ("accuracy", "asr", "attacker-weight", "precision", "recall", "time"):
        assert {f"{start}-{name}.{kind}" for kind in ("png", "svg", "pdf")} <= names
    assert {f"{start}-trust-map-of-krum.png", "partition.png"} <= names
    for file in written:
        if file.suffix == ".pdf":
            assert file.read_bytes().startswith(b"%PDF")
        elif file.suffix == ".svg":
            tags = {each.tag.rpartition("}")[2] for each in ET.parse(file).iter()}
            assert not tags & {"script", "image", "a", "foreignObject"}, "nothing loads or runs"
        else:
            with Image.open(file) as image:
                assert min(image.size) > 150
                shades = image.convert("L").tobytes()
                assert min(shades) < 128 < max(shades), "something is drawn"


def test_the_same_run_gives_the_same_files(tmp_path: Path) -> None:
    figure = charts.trust_map(load_runs(make_run(tmp_path / "run")), "run", "Trust map")
    assert figure is not None
    one, other = (
        # Clips are numbered by process; a PDF has the same objects in an order of its own.
        [
            re.sub(rb"clip\d+", b"", file.read_bytes())
            for file in save(figure, place, ["png", "svg"])
        ]
        for place in (tmp_path / "one", tmp_path / "other")
    )
    assert one == other


def test_hostile_names_are_not_paths_and_not_code(tmp_path: Path) -> None:
    bad = "../../$\\frac{1$/\x01x</svg>"
    make_run(
        tmp_path / "run",
        scenario_of(bad.replace("\x01", ""), "none", rounds=2, task={"name": "../up"}),
        names={3: bad},
        reason="datum.x') + alert('1",
    )
    written = write_figures([tmp_path / "run"], tmp_path / "figures")
    assert {file.parent for file in written} == {tmp_path / "figures"}


# -------------------------------------------------------------------- searches

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


@settings(max_examples=25, deadline=None)
@given(searches())
def test_every_cell_has_the_best_over_what_is_not_shown(searched: dict[str, Any]) -> None:
    figure = charts.sweep_map(searched)
    (found,) = data_of(figure)
    by = figure.title.removeprefix("Accuracy on held-out rehearsals, by ").partition(",")[0]
    across, _, down = by.partition(" and ")
    if {"c", "eps"} <= set(searched["grid"]):
        assert (across, down) == ("c", "eps")
    places = {(x, y) for x, y in zip(found["x"], found["y"], strict=True)}
    wanted = {
        (written(x), written(y) if down else "")
        for x in searched["grid"][across]
        for y in searched["grid"].get(down, [None])
    }
    assert places == wanted
    for row in found.to_dict("records"):
        here = [
            point["accuracy"]
            for point in searched["points"]
            if written(point["settings"][across]) == row["x"]
            and (not down or written(point["settings"][down]) == row["y"])
        ]
        assert row["accuracy"] == pytest.approx(max(here), abs=1e-8)
    assert found["chosen"].sum() == 1
    chosen = found.loc[found["chosen"], "accuracy"].item()
    assert chosen == pytest.approx(found["accuracy"].max(), abs=1e-8)


def test_a_search_as_a_file(tmp_path: Path) -> None:
    searched = search({"c": [5], "hidden": [8, 16], "start": ["a", "b"]}, [0.1, 0.2, 0.9, 0.4])
    figure = charts.sweep_map(searched)
    assert "by hidden and start, the best over c" in figure.title
    (file,) = save(figure, tmp_path / "a.sweep", ["svg"])
    words = [each.text for each in ET.parse(file).iter() if each.tag.endswith("text")]
    assert {"10.0%", "20.0%", "90.0%", "40.0%"} <= set(words)
