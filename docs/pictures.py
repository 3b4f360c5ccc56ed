"""Draw the documentation's pictures from real things: the demo's data, rounds and defense.

``make picture`` plays the demo first, unless it has been played.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch
from torch import Tensor

from fedimmune import attacks, tasks
from fedimmune.adaptive.defense import Defense
from fedimmune.demo import RULES, SHIPPED, Demo
from fedimmune.report import charts
from fedimmune.runs.records import RoundRecord
from fedimmune.simulation import run_folder
from fedimmune.tasks import data_folder, load_data

__all__ = ["draw_pattern", "draw_round", "draw_story", "draw_weights", "main"]

Records = Mapping[str, Sequence[RoundRecord]]
Chart = Any
"""Altair's charts of one picture or of several on top of each other: their types do not combine."""

_GOOD, _BAD, _QUIET, _EMPTY = "#1f7dc0", "#d55e00", "#5f6b73", "#eceff1"
_WEIGHED = ("mean", "krum", "adaptive", "oracle")
_SIGNED = {-1.0: "#8e0b25", 0.0: "#f7f7f7", 1.0: "#0b3f78"}
_SHARES = {0.0: "#f3f7fb", 0.25: "#08306b"}
_STEP = 22
"""Height of a row in pixels."""
_ROUND = 16
"""One in which the passes have something to do: the first scores are poor."""
_GAP = 0.065
"""Least distance between two labels at the ends of lines, as a share of the axis."""
_SHOWN: tuple[tuple[str, dict[str, int] | None], ...] = (
    ("an honest sample", None),
    ("as attackers show it", {}),
    ("a pattern elsewhere", {"shift_y": 10, "shift_x": 7}),
    ("and further apart", {"shift_y": 4, "shift_x": 3, "gap": 3}),
)


def main() -> None:
    """Play what has not been played, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("build/demo"), help="the demo's folder")
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="a folder")
    options = parser.parse_args()
    demo = Demo(options.demo)
    demo.rehearse(lambda *_: None)
    demo.learn(lambda *_: None)
    records = {rule: list(demo.play(rule)) for rule in RULES if rule != SHIPPED}
    draw_story(records, options.output / "story.png")
    draw_pattern(options.output / "pattern.png")
    draw_round(demo, records["adaptive"][_ROUND - 1], options.output / "round.png")
    draw_weights({rule: records[rule] for rule in _WEIGHED}, options.output / "weights.png")


def draw_story(records: Records, output: Path) -> None:
    """Draw how well the attack and the model do under each rule, and whom `adaptive` trusts."""
    rounds = pd.DataFrame(
        [
            {"rule": rule, "round": each.round, "asr": each.asr, "accuracy": each.accuracy}
            for rule, played in records.items()
            for each in played
        ]
    ).fillna(0.0)
    floor = rounds.loc[rounds["rule"] == "oracle", "asr"].iloc[-1]
    words = [
        f"{floor:.0%} without any backdoor: that share of",
        "images shows the attackers' digit",
    ]
    anyway = alt.Chart(
        pd.DataFrame({"round": [rounds["round"].max()], "asr": [min(0.9, floor + 0.25)]})
    )
    anyway = anyway.mark_text(align="right", color=_QUIET, fontSize=10, text=words)
    success = _lines(
        rounds, "asr", "Does the backdoor work?", "attacked images classified as wanted"
    )
    right = _lines(
        rounds, "accuracy", "Is the model still good?", "clean images classified correctly"
    )
    trust = _trust(_weights(records["adaptive"]))
    _draw(
        alt.hconcat(success + anyway.encode(x="round:Q", y="asr:Q"), right, trust, spacing=25),
        output,
        "Ten clients train one model. Four of them plant a backdoor in it.",
        "fedimmune demo: the same federation under five rules. oracle is told who attacks; "
        "adaptive has learned it from rehearsals.",
    )


def draw_pattern(output: Path) -> None:
    """Draw a digit without and with the backdoor's pattern."""
    data = load_data(tasks.get("digits"), data_folder())
    seven = int((data.server.labels == 7).nonzero()[0])
    image, label = data.server.inputs[seven : seven + 1], data.server.labels[seven : seven + 1]
    tiles = []
    for title, parameters in _SHOWN:
        shown, says, color = image, "7", _QUIET
        if parameters is not None:
            trial = attacks.get("backdoor", **parameters).triggered(image, label, data.spec)
            assert trial is not None
            shown, says, color = trial.inputs, str(trial.target), _BAD
        heading = alt.Title(title, subtitle=f"label {says}", subtitleColor=color, fontSize=13)
        tiles.append(_tile(shown[0, 0]).properties(title=heading))
    _draw(alt.hconcat(*tiles, spacing=15), output)


def draw_round(demo: Demo, record: RoundRecord, output: Path) -> None:
    """Draw what the defense saw in one round, and its passes of attention."""
    trace = run_folder(demo.scenario("adaptive"), demo.runs).traces.read(record.round)
    assert trace.grams is not None
    attacking = {client.client for client in record.clients if client.is_attacker}
    order = sorted(range(len(trace.clients)), key=lambda row: trace.clients[row] in attacking)
    ids = [str(trace.clients[row]) for row in order]
    names = [f"{one} attacks" if one in attacking else one for one in ids]
    rows = [*order, trace.grams.shape[1] - 1]  # the server's own update comes last
    alike = _grid(_cosines(trace.grams)[rows][:, rows], [*names, "server"], [*ids, "server"])
    found = _passes(Defense.load(demo.defense), trace.grams, trace.evidence)
    scores = _grid(found[0][:, order].T, names, [str(each + 1) for each in range(len(found[0]))])
    weights = pd.DataFrame({"y": names, "value": found[1][order].tolist()})
    dark = alt.when("abs(datum.value) > 0.6").then(alt.value("white"))
    words = alt.Chart(scores).mark_text(fontSize=10)
    words = words.encode(
        x=alt.X("x:N", sort=None),
        y=alt.Y("y:N", sort=None),
        text=alt.Text("value:Q", format=".1f"),
        color=dark.otherwise(alt.value("#333333")),
    )
    x = alt.X("value:Q", title="weight", axis=alt.Axis(grid=False, format=".0%", tickCount=4))
    bars = alt.Chart(weights).mark_bar().encode(x=x, y=_rows(padding=0.15), color=_by_side())
    half = pd.DataFrame({"value": [0.5 / len(names)], "text": ["half an equal share"]})
    line = alt.Chart(half).mark_rule(strokeDash=[4, 3], color=_QUIET).encode(x="value:Q")
    called = alt.Chart(half).mark_text(align="left", dx=4, dy=-8, color=_QUIET, fontSize=10)
    called = called.encode(x="value:Q", y=alt.value("height"), text="text:N")
    parts = (
        (_heat(alike, _SIGNED, "", -90), "1. How alike are the updates?"),
        (_heat(scores, _SIGNED, "pass", width=44) + words, "2. Scores, pass by pass"),
        ((bars + line + called).properties(width=220), "3. The weights in use"),
    )
    shown = [part.properties(height=alt.Step(_STEP), title=title) for part, title in parts]
    _draw(alt.hconcat(*shown, spacing=30).resolve_scale(color="independent"), output)


def draw_weights(records: Records, output: Path) -> None:
    """Draw every client's weight in every round, under each rule that has weights."""
    maps = []
    for rule, played in records.items():
        found = _weights(played).rename(columns={"round": "x"})
        honest = int((~found.drop_duplicates("y")["is_attacker"]).sum())
        line = alt.Chart(pd.DataFrame({"at": [0]})).mark_rule(color=_BAD)
        heat = _heat(found, _SHARES, "round", width=200 // len(played))
        both = heat + line.encode(y=alt.value(_STEP * honest))
        maps.append(both.properties(title=rule, height=alt.Step(_STEP)))
    _draw(alt.hconcat(*maps, spacing=20), output)


# -------------------------------------------------------------------- what is drawn


def _weights(records: Sequence[RoundRecord]) -> pd.DataFrame:
    """Return the weight of each client in each round, honest clients first."""
    found = pd.DataFrame(
        [
            {
                "round": each.round,
                "y": f"{one.client} attacks" if one.is_attacker else one.client,
                "is_attacker": bool(one.is_attacker),
                "value": one.weight or 0.0,
            }
            for each in records
            for one in each.clients
        ]
    )
    return found.sort_values(["is_attacker", "y", "round"])


def _cosines(grams: Tensor) -> Tensor:
    """Return cosines of whole updates, from the inner products of their layers."""
    together = grams.sum(0)
    lengths = together.diagonal().sqrt()
    return together / lengths[:, None] / lengths


def _passes(defense: Defense, grams: Tensor, evidence: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the scores of every pass, (passes, n), and the weights that the rule uses, (n,)."""
    with torch.no_grad():
        known = None if evidence is None else evidence[None]
        weighed = defense.form(defense.form.prepare(grams[None]), known)
    return weighed.scores[:, 0], weighed.shares[0]


def _grid(values: Tensor, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    wide = pd.DataFrame(values.numpy(), index=pd.Index(rows, name="y"), columns=list(columns))
    return wide.reset_index().melt("y", var_name="x")


# -------------------------------------------------------------------- parts of pictures


def _lines(rounds: pd.DataFrame, column: str, title: str, subtitle: str) -> Chart:
    """Draw a share over the rounds, one line per rule, named at its end."""
    styles = charts.rule_styles(rounds["rule"])
    names, (colors, dashes, _) = list(styles), zip(*styles.values(), strict=True)
    last = rounds.groupby("rule", sort=False).tail(1)
    ends = last.assign(text=[f"{row.rule} {getattr(row, column):.0%}" for row in last.itertuples()])
    ends["height"] = ends["rule"].map(_apart(dict(zip(last["rule"], last[column], strict=True))))
    wide = alt.when("datum.rule === 'adaptive'").then(alt.value(3.5)).otherwise(alt.value(1.8))
    x = alt.X("round:Q", title="round", axis=alt.Axis(grid=False, tickMinStep=1, format="d"))
    shade = alt.Color("rule:N", legend=None).scale(domain=names, range=colors)
    base = alt.Chart(rounds).encode(
        x=x.scale(domain=[1, rounds["round"].max()], nice=False),
        y=alt.Y(f"{column}:Q", title=None, axis=alt.Axis(format="%")).scale(domain=[0, 1]),
        color=shade,
    )
    dash = alt.StrokeDash("rule:N", legend=None).scale(domain=names, range=dashes)
    text = alt.Chart(ends).mark_text(align="left", dx=8, fontSize=12)
    return alt.layer(
        base.mark_line().encode(strokeDash=dash, strokeWidth=wide),
        text.encode(x="round:Q", y="height:Q", text="text:N", color=shade),
    ).properties(title=alt.Title(title, subtitle=subtitle), width=260, height=240)


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Move labels that would lie on each other apart, and none above the axis."""
    order = sorted(heights, key=lambda rule: heights[rule])
    placed, floor, ceiling = dict[str, float](), -1.0, 1.0
    for rule in order:
        floor = placed[rule] = max(heights[rule], floor + _GAP)
    for rule in reversed(order):
        placed[rule] = min(placed[rule], ceiling)
        ceiling = placed[rule] - _GAP
    return placed


def _trust(found: pd.DataFrame) -> Chart:
    """Draw weights as shades, up to an equal share of the honest clients."""
    fair = 1 / max(1, int((~found.drop_duplicates("y")["is_attacker"]).sum()))
    base = alt.Chart(found.assign(share=(found["value"] / fair).clip(upper=1)))
    x = alt.X("round:O", title="round", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    base = base.encode(x=x.scale(padding=0.08), y=_rows(padding=0.08))
    shade = alt.Opacity("share:Q", legend=None).scale(domain=[0, 1], range=[0, 1])
    subtitle = "weight of each client, round by round"
    title = alt.Title("Whom does adaptive trust?", subtitle=subtitle, offset=15)
    return alt.layer(
        base.mark_rect(color=_EMPTY), base.mark_rect().encode(opacity=shade, color=_by_side())
    ).properties(title=title, width=260, height=240)


def _heat(
    found: pd.DataFrame, shades: Mapping[float, str], title: str, angle: int = 0, width: int = _STEP
) -> Chart:
    """Draw cells of whole pixels, so that there are no seams between them."""
    color = alt.Color("value:Q", legend=None)
    color = color.scale(domain=list(shades), range=list(shades.values()), clamp=True)
    axis = alt.Axis(labelAngle=angle, labelOverlap=not angle)
    x = alt.X("x:O", sort=None, title=title or None, axis=axis)
    heat = alt.Chart(found).mark_rect().encode(x=x, y=_rows(), color=color)
    return heat.properties(width=alt.Step(width))


def _tile(image: Tensor) -> Chart:
    sides = [[str(place) for place in range(length)] for length in image.shape]
    shade = alt.Color("value:Q", legend=None).scale(scheme="greys", reverse=True)
    x, y = alt.X("x:N", sort=None, axis=None), alt.Y("y:N", sort=None, axis=None)
    tile = alt.Chart(_grid(image, *sides)).mark_rect().encode(x=x, y=y, color=shade)
    return tile.properties(width=alt.Step(12), height=alt.Step(12))


def _rows(padding: float = 0.0) -> alt.Y:
    attacking = "indexof(datum.value, 'attacks') >= 0"
    color = alt.when(attacking).then(alt.value(_BAD)).otherwise(alt.value(_QUIET))
    axis = alt.Axis(labelColor=color, ticks=False, domain=False)
    return alt.Y("y:N", sort=None, title=None, axis=axis).scale(padding=padding)


def _by_side() -> Any:
    attacking = "indexof(datum.y, 'attacks') >= 0"
    return alt.when(attacking).then(alt.value(_BAD)).otherwise(alt.value(_GOOD))


def _draw(chart: alt.HConcatChart, output: Path, title: str = "", subtitle: str = "") -> None:
    if title:
        heading = alt.Title(title, subtitle=subtitle, fontSize=20, subtitleFontSize=13, offset=18)
        chart = chart.properties(title=heading)
    look = charts.theme()
    look["title"] |= {"subtitleColor": _QUIET, "subtitlePadding": 4, "fontSize": 15, "offset": 10}
    look["title"]["frame"] = "group"
    with alt.data_transformers.enable("default", max_rows=None):
        charts.draw({**chart.to_dict(), "config": look}, output)


if __name__ == "__main__":
    main()
