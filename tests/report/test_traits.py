"""The traits picture: what is drawn is what was kept, in a page that stays small."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from fedimmune.report import figures, write_figures, write_report
from fedimmune.report.charts import Column
from fedimmune.report.contents import Contents, contents_of
from fedimmune.report.reading import read_runs
from fedimmune.report.traits import Panel, Traits
from fedimmune.report.traits_drawn import draw_traits
from fedimmune.traces import Trace, Traces
from tests.report.making import make_run, scenario_of, visible_text

MEGABYTE = 1_000_000
ADAPTIVE = {"name": "adaptive"}


def kept_run(
    place: Path,
    rule: str | dict[str, Any] = "mean",
    *,
    layers: Mapping[str, tuple[int, ...]] | None = None,
    rounds: int = 6,
    seed: int = 1,
    contaminated: float = 1.0,
    truth: bool = True,
    **fields: Any,
) -> dict[int, dict[str, Tensor]]:
    """Make a run whose attackers all send one pattern, and the honest some of it and noise."""
    scenario = scenario_of(rule, rounds=rounds, seed=seed, **fields)
    make_run(place, scenario, truth=truth)
    random = torch.Generator().manual_seed(seed)
    sent = {}
    n, attackers = scenario["clients"], scenario["attackers"]
    shapes = layers or {"fc.weight": (5, 4)}
    patterns = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    for number in range(1, rounds + 1):
        sent[number] = {
            name: torch.stack(
                [
                    (pattern if client < attackers else contaminated * pattern)
                    + 0.1 * torch.randn(pattern.shape, generator=random)
                    for client in range(n)
                ]
            )
            for name, pattern in patterns.items()
        }
        kept = Trace(number, senders=tuple(range(n)), kept=sent[number])
        Traces(place / "traces").write(kept)
    return sent


def traits_in(*places: Path) -> tuple[list[Traits], list[str]]:
    (setting,) = contents_of(read_runs(places)).settings
    groups = [group for group in setting.groups if group.title == "What the clients sent"]
    if not groups:
        return [], []
    charts = [chart for chart in groups[0].charts if isinstance(chart, Traits)]
    assert len(charts) == len(groups[0].charts)
    return charts, groups[0].notes


# -------------------------------------------------------------------- what is shown


def test_fedavg_is_beside_the_defence_and_values_are_those_sent(tmp_path: Path) -> None:
    by_rule = {
        "adaptive": kept_run(tmp_path / "1", ADAPTIVE, contaminated=-1.0),
        "krum": kept_run(tmp_path / "2", "krum"),
        "mean": kept_run(tmp_path / "3", "mean"),
    }
    (chart,), notes = traits_in(tmp_path)
    assert [panel.label for panel in chart.panels] == ["mean", "adaptive"]
    assert any("krum" in note for note in notes)
    assert chart.shape == (5, 4)
    for panel in chart.panels:
        assert panel.rounds == (1, 2, 3, 4, 5, 6)
        assert [column.marked for column in panel.clients] == [True] * 4 + [False] * 6
        for row, number in enumerate(panel.rounds):
            expected = by_rule[panel.label][number]["fc.weight"].double().numpy()
            np.testing.assert_allclose(panel.values[row], expected)
    sizes = np.abs([panel.values for panel in chart.panels])
    assert np.median(sizes) < chart.top <= sizes.max(), "one scale for both"


def test_the_caption_says_how_much_the_honest_send_what_attackers_do(tmp_path: Path) -> None:
    kept_run(tmp_path / "1", "mean", contaminated=1.0)
    kept_run(tmp_path / "2", ADAPTIVE, contaminated=-1.0)
    (chart,), _ = traits_in(tmp_path)
    cosines = re.search(
        r"cosine of ([−\d.]+) under mean and ([−\d.]+) under adaptive", chart.reading
    )
    assert cosines is not None
    contaminated, clean = (float(one.replace("−", "-")) for one in cosines.groups())
    assert contaminated > 0.9
    assert clean < -0.9


def test_large_layers_are_averaged_and_vectors_are_rows(tmp_path: Path) -> None:
    layers = {"conv.weight": (240, 40, 3, 3), "conv.bias": (7,), "scale": ()}
    sent = kept_run(tmp_path / "run", layers=layers, rounds=2)
    charts, _ = traits_in(tmp_path)
    by_layer = {chart.title.removeprefix("Updates of "): chart.panels[0].values for chart in charts}
    large = by_layer["conv.weight"]
    height, width = large.shape[2:]
    assert 4 <= height <= 24
    whole = sent[2]["conv.weight"][3].double().reshape(240, 360)
    if 240 % height == 0 and 360 % width == 0:
        blocks = whole.reshape(height, 240 // height, width, 360 // width).mean((1, 3))
        np.testing.assert_allclose(large[1, 3], blocks.numpy(), atol=1e-12)
    # Averaging keeps the sum where bins are equal, and nothing is beyond what was sent.
    assert np.abs(large[1, 3]).max() <= float(whole.abs().max())
    assert by_layer["conv.bias"].shape[2:] == (1, 7)
    np.testing.assert_allclose(by_layer["conv.bias"][0, 0, 0], sent[1]["conv.bias"][0].double())
    assert by_layer["scale"].shape[2:] == (1, 1)


def test_of_many_rounds_and_clients_a_few_are_shown(tmp_path: Path) -> None:
    kept_run(tmp_path / "run", rounds=40, clients=60, attackers=20)
    (chart,), _ = traits_in(tmp_path)
    (panel,) = chart.panels
    assert panel.rounds[0] == 1
    assert panel.rounds[-1] == 40
    assert 3 <= len(panel.rounds) <= 8
    assert len(panel.clients) <= 12
    assert sum(column.marked for column in panel.clients) == 6


@pytest.mark.parametrize(("clients", "attackers"), [(10, 0), (10, 10), (12, 7), (30, 1), (30, 29)])
def test_the_clients_shown_are_always_a_full_dozen_at_most(
    clients: int, attackers: int, tmp_path: Path
) -> None:
    kept_run(tmp_path / "run", rounds=1, clients=clients, attackers=attackers)
    (chart,), _ = traits_in(tmp_path)
    shown = chart.panels[0].clients
    assert len(shown) == min(12, clients)
    if 0 < attackers < clients:
        assert {column.marked for column in shown} == {True, False}


def test_runs_that_kept_nothing_or_nothing_in_common_have_no_picture(tmp_path: Path) -> None:
    make_run(tmp_path / "plain")
    assert traits_in(tmp_path) == ([], [])
    kept_run(tmp_path / "kept", layers={"a": (3,)})
    kept_run(tmp_path / "other", ADAPTIVE, layers={"b": (3,)})
    charts, _ = traits_in(tmp_path)
    assert [(chart.title, len(chart.panels)) for chart in charts] == [
        ("Updates of a", 1),
        ("Updates of b", 1),
    ]


def test_a_client_that_sent_nothing_or_nonsense_is_left_blank(tmp_path: Path) -> None:
    make_run(tmp_path / "run", scenario_of("mean", rounds=1))
    rows = torch.ones(9, 2, 2)
    rows[4] = torch.nan
    kept = Trace(1, senders=tuple(range(1, 10)), kept={"fc": rows})
    Traces(tmp_path / "run" / "traces").write(kept)
    (chart,), _ = traits_in(tmp_path)
    values = chart.panels[0].values[0]
    assert np.isnan(values[0]).all()
    assert np.isnan(values[5]).all()
    assert (values[[1, 2, 3, 4, 6, 7, 8, 9]] == 1).all()
    assert chart.top == 1
    write_report([tmp_path / "run"], tmp_path / "report.html")


def test_a_damaged_trace_is_said_and_the_rest_is_reported(tmp_path: Path) -> None:
    kept_run(tmp_path / "1", "mean")
    kept_run(tmp_path / "2", ADAPTIVE)
    file = tmp_path / "2" / "traces" / "round-0003.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    (chart,), notes = traits_in(tmp_path)
    assert [panel.label for panel in chart.panels] == ["mean"]
    assert any("round-0003" in note for note in notes)
    file.write_bytes(b"garbage")
    assert len(traits_in(tmp_path)[0]) == 1


# -------------------------------------------------------------------- the page


def test_the_page_has_the_picture_and_stays_small(tmp_path: Path) -> None:
    layers = {f"layer{k}.weight": (128, 64, 3, 3) for k in range(4)}
    for place, rule in (("1", "mean"), ("2", ADAPTIVE)):
        kept_run(tmp_path / place, rule, layers=layers, rounds=3)
    text = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert len(text.encode()) < MEGABYTE
    assert text.count('data-name="traits"') == 3
    assert "to keep this page small: layer3.weight" in text
    pictures = re.findall(r'<svg[^>]*class="tiles"[^>]*>', text)
    assert len(pictures) == 6
    assert all('role="img"' in one and "aria-label" in one for one in pictures)


def test_where_nobody_knows_who_attacks_nobody_is_called_an_attacker(tmp_path: Path) -> None:
    make_run(tmp_path / "run", scenario_of("mean", rounds=2), truth=False)
    for number in (1, 2):
        kept = Trace(number, senders=tuple(range(10)), kept={"fc": torch.randn(10, 3, 3)})
        Traces(tmp_path / "run" / "traces").write(kept)
    text = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    words = visible_text(text[text.index("What the clients sent") :].partition("</section>")[0])
    assert "Updates of fc" in words
    assert "attack" not in words
    assert "honest" not in words


def test_names_of_layers_and_clients_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = "<script>alert(1)</script>$\\frac"
    make_run(tmp_path / "run", scenario_of("mean", rounds=1), names={2: bad})
    kept = Trace(1, senders=(0, 1, bad), kept={bad: torch.randn(3, 4)})
    Traces(tmp_path / "run" / "traces").write(kept)
    text = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert text.count("<script") == 1
    assert "&lt;script&gt;" in text
    (png, pdf) = figures_of(tmp_path / "run", tmp_path / "figures", monkeypatch)
    assert {png.parent, pdf.parent} == {tmp_path / "figures"}


def figures_of(runs: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Write the figures of the updates alone: all take a while."""

    def only_traits(*arguments: Any) -> Contents:
        found = contents_of(*arguments)
        for shown in found.settings:
            shown.groups[:] = [g for g in shown.groups if g.title == "What the clients sent"]
        nothing = replace(found.partitions, charts=[])
        return replace(found, partitions=nothing, defences=[])

    monkeypatch.setattr(figures, "contents_of", only_traits)
    return write_figures([runs], folder)


def test_the_same_as_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_run(tmp_path / "runs" / "1", "mean", rounds=2)
    kept_run(tmp_path / "runs" / "2", ADAPTIVE, rounds=2, contaminated=0.0)
    png, pdf = figures_of(tmp_path / "runs", tmp_path / "figures", monkeypatch)
    assert png.name.endswith("updates-of-fc-weight.png")
    assert pdf.read_bytes().startswith(b"%PDF")
    with Image.open(png) as image:
        colours = np.asarray(image.convert("RGB")).astype(int)
    red, blue = colours[..., 0], colours[..., 2]
    assert (blue - red > 100).sum() > 500, "positive values are blue"
    assert (red - blue > 100).sum() > 500, "negative ones are not"


# -------------------------------------------------------------------- the strokes


def cells_of(svg: str, height: int, width: int, shape: tuple[int, int]) -> np.ndarray:
    """Read the drawing back: the shade of every cell, as a share from −1 to 1."""
    found = np.zeros((*shape, height, width))
    for kind, opacity, d in re.findall(
        r'<path class="(more|less)" opacity="([\d.]+)" d="([^"]*)"', svg
    ):
        sign = 1 if kind == "more" else -1
        for x, y, length in re.findall(r"M([\d.]+),([\d.]+)h(\d+)", d):
            column, left = divmod(float(x) + 0.01, width * 1.12)
            row, top = divmod(float(y) + 0.01, height * 1.12)
            start = round(left)
            assert start + int(length) <= width, "no stroke leaves its tile"
            cells = found[int(row), int(column), int(top), start : start + int(length)]
            assert (cells == 0).all(), "no cell is drawn twice"
            cells[:] = sign * float(opacity)
    return found


@given(
    seed=st.integers(0, 1000),
    height=st.integers(1, 4),
    width=st.sampled_from([1, 3, 5, 9]),
    spread=st.sampled_from([0.2, 1.0, 3.0]),
)
def test_what_is_drawn_is_what_is_described(
    seed: int, height: int, width: int, spread: float
) -> None:
    random = np.random.default_rng(seed)
    values = spread * random.standard_normal((2, 3, height, width)).round(1)
    clients = tuple(Column(str(k)) for k in range(3))
    chart = Traits(
        "traits",
        "Updates",
        "words",
        (Panel("mean", clients, (1, 2), values),),
        1.0,
        (height, width),
    )
    svg = str(draw_traits(chart))
    found = cells_of(svg, height, width, (2, 3))
    np.testing.assert_allclose(found, np.clip(values, -1, 1), atol=0.0625 + 0.006)
