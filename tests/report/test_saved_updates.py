"""The traits picture: what is drawn is what was kept, in a page that stays small."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedimmune import load_runs
from fedimmune.report import write_report
from fedimmune.report.charts import save, traits
from fedimmune.report.saved_updates import Panel, traits_of
from fedimmune.report.summary import settings_of
from fedimmune.runs.traces import Trace, Traces
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


def traits_in(*places: Path) -> tuple[list[Panel], list[str]]:
    results = load_runs(places)
    (setting,) = settings_of(results)
    return traits_of(results, setting.runs)


def shades_of(panel: Panel, shape: tuple[int, int]) -> dict[tuple[int, str], np.ndarray]:
    """Read the cells back: the shade of every value of every tile, from −1 to 1."""
    height, width = shape
    found: dict[tuple[int, str], np.ndarray] = {}
    for cell in panel.cells.to_dict("records"):
        tile = found.setdefault((cell["round"], cell["client"]), np.zeros(shape))
        left, top = cell["column"] * 1.12, cell["row"] * 1.12
        if cell["size"] == 0.03:
            assert (cell["x2"] - cell["x"], cell["y"] - cell["y2"]) == pytest.approx((1, 1))
            continue
        start, end = (round((cell[name] - left) * width) for name in ("x", "x2"))
        row = round((-cell["y"] - top) * height)
        assert 0 <= start < end <= width, "no cell leaves its tile"
        assert (tile[row, start:end] == 0).all(), "no cell is drawn twice"
        tile[row, start:end] = cell["size"] if cell["sign"] == "positive" else -cell["size"]
    return found


# -------------------------------------------------------------------- what is shown


def test_fedavg_is_beside_the_defense_and_values_are_those_sent(tmp_path: Path) -> None:
    by_rule = {
        "adaptive": kept_run(tmp_path / "1", ADAPTIVE, contaminated=-1.0),
        "krum": kept_run(tmp_path / "2", "krum"),
        "mean": kept_run(tmp_path / "3", "mean"),
    }
    panels, notes = traits_in(tmp_path)
    assert [panel.label for panel in panels] == ["mean", "adaptive"]
    assert any("krum" in note for note in notes)
    top = float(re.findall(r"full at ±([\d.]+\d)", panels[0].reading)[0])
    for panel in panels:
        assert dict(panel.cells.groupby("client")["marked"].first()) == {
            str(client): client < 4 for client in range(10)
        }
        for (number, client), shades in shades_of(panel, (5, 4)).items():
            sent = by_rule[panel.label][number]["fc.weight"][int(client)].double().numpy()
            np.testing.assert_allclose(shades, np.clip(sent / top, -1, 1), atol=0.0625 + 0.05)
    assert set(panels[0].cells["round"]) == {1, 2, 3, 4, 5, 6}


def test_the_caption_says_how_much_the_honest_send_what_attackers_do(tmp_path: Path) -> None:
    kept_run(tmp_path / "1", "mean", contaminated=1.0)
    kept_run(tmp_path / "2", ADAPTIVE, contaminated=-1.0)
    panels, _ = traits_in(tmp_path)
    told = [re.search(r"have a cosine of ([−\d.]+)\.$", panel.reading) for panel in panels]
    contaminated, clean = (float(one[1].replace("−", "-")) for one in told if one)
    assert contaminated > 0.9
    assert clean < -0.9


def test_large_layers_are_averaged_and_vectors_are_rows(tmp_path: Path) -> None:
    layers = {"conv.weight": (240, 40, 3, 3), "conv.bias": (7,), "scale": ()}
    sent = kept_run(tmp_path / "run", layers=layers, rounds=2)
    panels, _ = traits_in(tmp_path)
    by_layer = {panel.layer: panel for panel in panels}
    shades = shades_of(by_layer["conv.bias"], (1, 7))[1, "0"][0]
    signs = torch.sign(sent[1]["conv.bias"][0]).numpy()
    assert ((shades == 0) | (np.sign(shades) == signs)).all()
    assert len(shades_of(by_layer["scale"], (1, 1))) == 20
    assert len(by_layer["conv.weight"].cells) < 20_000


@pytest.mark.parametrize(("clients", "attackers"), [(10, 0), (10, 10), (12, 7), (30, 1), (60, 20)])
def test_of_many_rounds_and_clients_a_few_are_shown(
    clients: int, attackers: int, tmp_path: Path
) -> None:
    kept_run(tmp_path / "run", rounds=20, clients=clients, attackers=attackers)
    (panel,), _ = traits_in(tmp_path)
    tiles = panel.cells.drop_duplicates("client")
    assert len(tiles) == min(12, clients)
    if 0 < attackers < clients:
        assert set(tiles["marked"]) == {True, False}
    rounds = sorted(set(panel.cells["round"]))
    assert (rounds[0], rounds[-1]) == (1, 20)
    assert 3 <= len(rounds) <= 8


def test_runs_that_kept_nothing_or_nothing_in_common_have_no_picture(tmp_path: Path) -> None:
    make_run(tmp_path / "plain")
    assert traits_in(tmp_path) == ([], [])
    kept_run(tmp_path / "kept", layers={"a": (3,)})
    kept_run(tmp_path / "other", ADAPTIVE, layers={"b": (3,)})
    panels, _ = traits_in(tmp_path)
    assert [(panel.layer, panel.label) for panel in panels] == [("a", "mean"), ("b", "adaptive")]


def test_a_client_that_sent_nothing_or_nonsense_is_left_blank(tmp_path: Path) -> None:
    make_run(tmp_path / "run", scenario_of("mean", rounds=1))
    rows = torch.ones(9, 2, 2)
    rows[4] = torch.nan
    kept = Trace(1, senders=tuple(range(1, 10)), kept={"fc": rows})
    Traces(tmp_path / "run" / "traces").write(kept)
    (panel,), _ = traits_in(tmp_path)
    shades = shades_of(panel, (2, 2))
    assert sorted(client for _, client in shades) == [*"1234", *"6789"]
    assert all((tile == 1).all() for tile in shades.values())
    write_report([tmp_path / "run"], tmp_path / "report.html")


def test_a_damaged_trace_is_said_and_the_rest_is_reported(tmp_path: Path) -> None:
    kept_run(tmp_path / "1", "mean")
    kept_run(tmp_path / "2", ADAPTIVE)
    file = tmp_path / "2" / "traces" / "round-0003.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    panels, notes = traits_in(tmp_path)
    assert [panel.label for panel in panels] == ["mean"]
    assert any("round-0003" in note for note in notes)
    file.write_bytes(b"garbage")
    assert len(traits_in(tmp_path)[0]) == 1


# -------------------------------------------------------------------- the page


def test_the_page_has_the_pictures_and_stays_small(tmp_path: Path) -> None:
    layers = {f"layer{k}.weight": (128, 64, 3, 3) for k in range(4)}
    for place, rule in (("1", "mean"), ("2", ADAPTIVE)):
        kept_run(tmp_path / place, rule, layers=layers, rounds=3)
    text = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert len(text.encode()) < 3 * MEGABYTE
    assert text.count('data-name="traits"') == 6
    assert "to keep this page small: layer3.weight" in text


def test_where_nobody_knows_who_attacks_nobody_is_called_an_attacker(tmp_path: Path) -> None:
    make_run(tmp_path / "run", scenario_of("mean", rounds=2), truth=False)
    for number in (1, 2):
        kept = Trace(number, senders=tuple(range(10)), kept={"fc": torch.randn(10, 3, 3)})
        Traces(tmp_path / "run" / "traces").write(kept)
    text = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    words = visible_text(text[text.index("What the clients sent") :].partition("</section>")[0])
    assert "fc under mean" in words
    assert "attack" not in words
    assert "honest" not in words


def test_names_of_layers_and_clients_are_text(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>$\\frac"
    make_run(tmp_path / "run", scenario_of("mean", rounds=1), names={2: bad})
    kept = Trace(1, senders=(0, 1, bad), kept={bad: torch.randn(3, 4)})
    Traces(tmp_path / "run" / "traces").write(kept)
    text = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert text.count("<script>") == 2
    assert "&lt;script&gt;" in text


def test_the_same_as_a_figure(tmp_path: Path) -> None:
    kept_run(tmp_path / "1", "mean", rounds=2)
    (panel,), _ = traits_in(tmp_path / "1")
    figure = traits(panel.cells, panel.layer, panel.label, panel.reading)
    (png,) = save(figure, tmp_path / "figure", ["png"])
    with Image.open(png) as image:
        colors = np.asarray(image.convert("RGB")).astype(int)
    red, blue = colors[..., 0], colors[..., 2]
    assert (blue - red > 100).sum() > 500, "positive values are blue"
    assert (red - blue > 100).sum() > 500, "negative ones are not"
