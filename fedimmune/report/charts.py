"""Every figure of a report, described once, as an Altair chart of the results' tables.

The page shows it, and `save` draws it as PNG, SVG or PDF. What strangers wrote (ids, reasons, names
of rules) is data in a chart, never the name of a field or an expression.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from fedimmune import rules
from fedimmune.adaptive.sweep import Outcome, best_of
from fedimmune.io import write_bytes_atomically
from fedimmune.report.summary import LONGEST_ID, counted, listed, percent, shortened, written
from fedimmune.results import UNKNOWN
from fedimmune.runs.results import ORACLE, Results, attackers_in, rows_of
from fedimmune.untrusted import printable

__all__ = ["Figure", "draw", "rule_styles", "save", "theme"]

# Colors after Okabe and Ito, which color-blind people can tell apart, in shades that can be seen on
# white and on black.
_BLUE, _ORANGE, _GREEN, _PINK = "#1f7dc0", "#d55e00", "#009e73", "#b9609a"
_AMBER, _SKY, _GRAY, _PURPLE = "#b97f00", "#3390cc", "#7d858c", "#c0437f"
_PALETTE = (_BLUE, _ORANGE, _GREEN, _PINK, _AMBER, _SKY)
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3])
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_KNOWN = {
    "adaptive": (_BLUE, 0),
    "mean": (_ORANGE, 1),
    "median": (_AMBER, 2),
    "trimmed-mean": (_AMBER, 3),
    "geometric-median": (_GREEN, 1),
    "krum": (_PINK, 3),
    "multi-krum": (_PINK, 1),
    "foolsgold": (_SKY, 2),
    "residual": (_GREEN, 3),
    ORACLE: (_GRAY, 1),
}
"""The color of each rule, and the place of its dash and shape."""
_SIDES = {"honest": _BLUE, "attacker": _ORANGE}
_VERDICTS = {
    "trusted": (_BLUE, "M0,0", ""),
    "reduced": (_SKY, "M-1,-.4L0,.6L1,-.4", "⌄"),
    "unused": (_GRAY, "M0,0L0,.01", "·"),
    "suspected": (_ORANGE, "M-1,1L1,-1", "╱"),
    "rejected": (_PURPLE, "M-1,-1L1,1M-1,1L1,-1", "╳"),
    "failed": (_AMBER, "M0,-1L0,1", "│"),
    "late": (_GREEN, "M-1,0L1,0", "─"),
}
"""The color of a verdict, the sign that is stroked over it, and the sign in a legend."""
_SHADES = {"unused": 0.2, "suspected": 0.75, "rejected": 0.75, "failed": 0.35, "late": 0.35}
"""How full the color is of a verdict that does not depend on the weight."""
_SIGNED = 5000
"""With more cells, signs would be too small to see."""
_BUBBLES = 30
"""With more clients or classes, discs would be too small: shades are shown instead."""
_BINS = 10
"""Of a reliability diagram."""
_PHASES = {"training": _BLUE, "aggregating": _AMBER, "measuring": _PINK, "testing": _GREEN}
_TIPS = {
    "rule_label": "rule",
    "row": "client",
    "side": "truth",
    "looks": "looks most like",
    "warnings": "warning of the round",
    "accuracy": "ACC",
    "asr": "ASR",
    "low": "least",
    "high": "most",
    "behind_oracle": "below the oracle",
    "taken_for": "taken for",
    "truth": "was",
    "count": "client-rounds",
    "share": "of this row",
    "limit": "the oracle",
    "said": "P(attack), mean",
    "attacked": "attacked",
    "called": "P(attack)",
    "probability": "P(attack)",
}
"""Names of columns in tooltips, if not their own."""

Chart = alt.Chart | alt.LayerChart | alt.FacetChart
Style = tuple[str, list[int], str]


@dataclass(frozen=True)
class Figure:
    """A chart and its words.

    Parameters
    ----------
    name
        For files: short, without spaces.
    title
        For people.
    reading
        What it shows, in a sentence: also for those who cannot see it.
    chart
        The chart, without a width: a page has its own.
    is_wide
        Whether it needs more room than a line chart.
    """

    name: str
    title: str
    reading: str
    chart: Chart
    is_wide: bool = False

    def spec(self, width: int | None = None) -> dict[str, Any]:
        """Return the Vega-Lite specification with its data; by default as wide as its element."""
        with alt.data_transformers.enable("default", max_rows=None):
            found: dict[str, Any] = self.chart.to_dict()
        del found["config"], found["$schema"]
        if width is not None:
            return {**found, "width": width}
        fit = {"type": "fit-x", "contains": "padding"}
        return {**found, "width": "container", "autosize": fit}


def rule_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return the color, dash and shape of each rule's label: the same in every figure.

    Variants of a rule, such as ``krum (attackers=3)``, share its color.
    """
    styles, variants = {}, dict[str, int]()
    for label in sorted(set(labels), key=lambda each: (len(each), each)):
        name = label.partition(" (")[0]
        color, first = _KNOWN.get(name) or _look_of(name)
        place = first + variants.setdefault(name, 0)
        variants[name] += 1
        styles[label] = (color, _DASHES[place % len(_DASHES)], _SHAPES[place % len(_SHAPES)])
    return styles


def _look_of(name: str) -> tuple[str, int]:
    """Return the color and place of a rule without one of its own: no two that there are agree."""
    others = [each for each in rules.available() if each not in _KNOWN]
    if name in others:
        number = others.index(name)
        return _PALETTE[number % len(_PALETTE)], 4 + number // len(_PALETTE)
    number = zlib.crc32(name.encode("utf-8", "replace"))
    return _PALETTE[number % len(_PALETTE)], number // 7


def theme(ink: str = "#1b1f23", paper: str | None = "#ffffff") -> dict[str, Any]:
    """Return the look of all charts, a Vega-Lite configuration, with text and background."""
    inked = {f"{part}Color": ink for part in ("label", "title", "tick", "domain", "grid")}
    small = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
    faint = {"tickOpacity": 0.4, "domainOpacity": 0.4, "gridOpacity": 0.12, "labelOpacity": 0.85}
    words = {"labelColor": ink, "titleColor": ink, "labelLimit": 150}
    return {
        "background": paper,
        "font": "system-ui, 'Segoe UI', 'DejaVu Sans', 'Liberation Sans', sans-serif",
        "axis": {**inked, **small, **faint, "labelLimit": 150},
        "legend": {**words, **small, "orient": "bottom", "columns": 2, "symbolOpacity": 1},
        "rule": {"color": ink},
        "style": {"ink": {"stroke": ink}, "words": {"fill": ink, "fontSize": 11}},
        "title": {"color": ink, "anchor": "start", "fontSize": 13},
        "view": {"stroke": None},
    }


def save(figure: Figure, place: Path, kinds: Sequence[str] = ("png", "svg", "pdf")) -> list[Path]:
    """Write a figure to files named `place` and its kind, and return them.

    Each is written whole or not at all; no browser and no network is needed.
    """
    spec = figure.spec(640 if figure.is_wide else 420)
    spec |= {"title": printable(figure.title), "config": theme()}
    files = [place.with_name(f"{place.name}.{kind}") for kind in kinds]
    for file in files:
        draw(spec, file)
    return files


def draw(spec: Mapping[str, Any], file: Path) -> None:
    """Draw a Vega-Lite specification as PNG, SVG or PDF, as the file's name ends."""
    import vl_convert  # noqa: PLC0415 (large: only when something is drawn)
    from PIL import Image  # noqa: PLC0415

    kind = file.suffix.removeprefix(".")
    options: dict[str, Any] = {"scale": 2} if kind == "png" else {}
    convert = getattr(vl_convert, f"vegalite_to_{kind}")
    drawn = convert(json.dumps(spec), allowed_base_urls=[], **options)
    if kind == "png":  # a quarter of the size, with the same pixels
        buffer = io.BytesIO()
        Image.open(io.BytesIO(drawn)).convert("RGB").save(buffer, "PNG", optimize=True)
        drawn = buffer.getvalue()
    write_bytes_atomically(drawn.encode() if isinstance(drawn, str) else drawn, file)


# -------------------------------------------------------------------- lines over rounds


def lines(
    rounds: pd.DataFrame, column: str, title: str, *, level: tuple[float, str] | None = None
) -> Figure | None:
    """Draw a column over the rounds, one line per rule, with a band over seeds; None if unknown.

    Parameters
    ----------
    rounds
        Rows of `Results.rounds`, of one key.
    column
        The column.
    title
        Its name and, after a colon, what that means.
    level
        A horizontal line, and its name.
    """
    by = rounds.groupby(["rule_label", "round"], sort=False)[column]
    found = _shown(by.agg(value="mean", low="min", high="max", runs="count").reset_index())
    known = found.dropna(subset=["value"])
    if known.empty:
        return None
    found = found[found["rule_label"].isin(known["rule_label"])]
    styles = rule_styles(found["rule_label"])
    ordered = {label: styles[label] for label in _in_order(found["rule_label"])}
    is_share, is_band = column != "accused", bool((known["runs"] > 1).any())
    chart = _line_chart(found, "rule_label", ordered, is_share=is_share, is_band=is_band)
    if level is not None:
        data = pd.DataFrame({"value": level[:1], "level": level[1:]})
        rule = alt.Chart(data).mark_rule(strokeDash=[2, 3], opacity=0.6)
        chart = chart + rule.encode(y="value:Q", tooltip=_tips(data, value=".1%"))
    told, last = [], rounds["round"].max()
    for row in rows_of(known.groupby("rule_label", sort=False).tail(1)):
        value = percent(row.value) if is_share else counted(row.value, "client")
        when = "" if row.round == last else f" (round {row.round})"
        told.append(f"{row.rule_label} {value}{when}")
    more = f", and {len(told) - 8} more" if len(told) > 8 else ""
    reading = f"{title.partition(':')[0]} in round {last}: {', '.join(told[:8])}{more}."
    return Figure(column.replace("_", "-"), title, reading, chart)


def sides(results: Results, runs: Sequence[Hashable], label: str, column: str) -> Figure | None:
    """Draw the weights, or the scores, of attackers and of honest clients under one rule."""
    clients = results.clients[results.clients["run"].isin(runs)]
    clients = clients.dropna(subset=["is_attacker", column])
    if clients["is_attacker"].nunique() < 2:
        return None
    by = clients.groupby([_side(clients), "round"])[column]
    found = by.agg(value="mean", low="min", high="max").reset_index()
    is_share = column == "weight"
    styles = {name: (color, [1, 0], "circle") for name, color in _SIDES.items()}
    means = clients.groupby(_side(clients))[column].mean()
    told = {side: percent(x) if is_share else f"{x:.3g}" for side, x in means.items()}
    return Figure(
        f"{column}-by-side",
        f"{column.capitalize()} of a client under {shortened(printable(label), 60)}",
        f"On average an attacker had a {column} of {told['attacker']} and an honest client of "
        f"{told['honest']}; bands are from the least to the most.",
        _line_chart(found, "side", styles, is_share=is_share, is_band=True, top=None),
    )


def learning_curve(losses: pd.DataFrame) -> Figure:
    """Draw a defense's loss; `losses` has columns ``epoch``, ``training`` and ``validation``."""
    best = losses["epoch"].iloc[int(losses["validation"].argmin())]
    found = losses.melt("epoch", var_name="on", value_name="value")
    found = found.rename(columns={"epoch": "round"})
    styles: dict[str, Style] = {
        "training": (_BLUE, [6, 3], "circle"),
        "validation": (_ORANGE, [1, 0], "square"),
    }
    return Figure(
        "curve",
        "Learning curve",
        f"Loss over {len(losses)} epochs; on held-out rehearsals it was least in epoch {best}, "
        "which is used.",
        _line_chart(found, "on", styles, is_share=False, is_band=False, along="epoch"),
    )


def _line_chart(
    found: pd.DataFrame,
    field: str,
    styles: Mapping[str, Style],
    *,
    is_share: bool,
    is_band: bool,
    along: str = "round",
    top: float | None = 1.0,
) -> Chart:
    """Draw columns ``round``, ``value``, ``low`` and ``high``, one line per value of a field."""
    domain, (colors, dashes, shapes) = list(styles), zip(*styles.values(), strict=True)
    pick = alt.selection_point(fields=[field], bind="legend", name="pick")
    legend = alt.Legend(title=None, symbolStrokeWidth=0)
    scale = alt.Scale(domain=[0, top]) if is_share and top else alt.Scale(zero=True)
    axis = "%" if is_share else ".3~g"
    y: dict[str, Any] = {"title": None, "scale": scale, "axis": alt.Axis(format=axis)}
    x = alt.X("round:Q", title=along, axis=alt.Axis(tickMinStep=1, format="d", grid=False))
    base = alt.Chart(found).encode(
        x=x.scale(domain=[found["round"].min(), found["round"].max()], nice=False),
        y=alt.Y("value:Q", **y),
        color=alt.Color(f"{field}:N", legend=legend).scale(domain=domain, range=colors),
        opacity=_if(pick, 1, 0.1),
    )
    dash = alt.StrokeDash(f"{field}:N", legend=None)
    shape = alt.Shape(f"{field}:N", legend=legend).scale(domain=domain, range=shapes)
    number = ".1%" if is_share else ".4~g"
    shown = ("value", "low", "high") if is_band else ("value",)
    tips = _tips(found, round="d", **dict.fromkeys(shown, number))
    layers = [
        # One more value than in the legend, which would draw dashed dots of equal domains.
        base.mark_line(strokeWidth=2)
        .encode(strokeDash=dash.scale(domain=[*domain, ""], range=[*dashes, [1, 0]]))
        .add_params(pick, _zoom()),
        base.mark_point(filled=True, size=28).encode(
            shape=shape, opacity=_if(pick, 1 if len(found) <= 150 else 0, 0)
        ),
        base.mark_point(filled=True, size=160).encode(opacity=alt.value(0), tooltip=tips),
    ]
    if is_band:
        band = base.mark_area().encode(
            y=alt.Y("low:Q", **y), y2="high:Q", opacity=_if(pick, 0.16, 0.02)
        )
        layers.insert(0, band)
    return alt.layer(*layers).properties(height=210)


# -------------------------------------------------------------------- rules compared


def standing(figures: pd.DataFrame) -> Figure | None:
    """Draw the score of each rule after the last round, seed by seed; `figures` are of one key."""
    known = figures.dropna(subset=["score"])
    order = _in_order(known["rule_label"])
    if len(order) < 2:
        return None
    what = "ACC · (1 − ASR)" if known["accuracy_without_success"].notna().any() else "ACC"
    found = _shown(known[["rule_label", "run", "score", "accuracy", "asr", "behind_oracle"]])
    means = known.groupby("rule_label")["score"].mean()
    told = ", ".join(f"{label} {percent(means[label])}" for label in order[:12])
    colors = [rule_styles(order)[label][0] for label in order]
    base = alt.Chart(found).encode(
        x=alt.X("score:Q", title=what, axis=alt.Axis(format="%")).scale(domain=[0, 1]),
        y=alt.Y("rule_label:N", title=None, sort=order),
        color=alt.Color("rule_label:N", legend=None).scale(domain=order, range=colors),
    )
    share = dict.fromkeys(("score", "accuracy", "asr", "behind_oracle"), ".1%")
    layers = [
        base.mark_point(filled=True, size=70, opacity=0.75).encode(tooltip=_tips(found, **share)),
        base.mark_tick(thickness=2.5, size=18).encode(x=alt.X("mean(score):Q", title=what)),
    ]
    limit = known.loc[known["rule"] == ORACLE, "score"].mean()
    if pd.notna(limit):
        data = pd.DataFrame({"limit": [limit]})
        rule = alt.Chart(data).mark_rule(strokeDash=[6, 3], opacity=0.6)
        layers.insert(0, rule.encode(x="limit:Q", tooltip=_tips(data, limit=".1%")))
        told += f"; the dashed line is the oracle's mean, {percent(limit)}"
    chart = alt.layer(*layers).properties(height=26 * len(order))
    return Figure("standing", f"{what} after the last round", f"{told}.", chart)


def times(rounds: pd.DataFrame) -> Figure | None:
    """Draw the seconds per round by phase, one bar per rule."""
    phases = {f"seconds_{phase}": phase for phase in _PHASES}
    mean = rounds.groupby("rule_label", sort=False)[list(phases)].mean().rename(columns=phases)
    total = mean.sum(axis=1)
    if not total.any():
        return None
    order = _in_order(mean.index)
    found = mean.reset_index().melt("rule_label", var_name="phase", value_name="seconds")
    found = _shown(found.assign(place=found["phase"].map(list(_PHASES).index)))
    bars = alt.Chart(found).mark_bar()
    bars = bars.encode(
        x=alt.X("sum(seconds):Q", title="seconds per round"),
        y=alt.Y("rule_label:N", title=None, sort=order),
        color=_color("phase", _PHASES),
        order="place:O",
        tooltip=_tips(found.drop(columns="place"), seconds=".3~g"),
    )
    told = ", ".join(f"{label} {total[label]:.2g} s" for label in order[:8])
    share = (mean["aggregating"] / total.where(total > 0)).max()
    reading = f"A round takes on average: {told}. Aggregating is at most {percent(share)} of it."
    chart = bars.properties(height=24 * len(order))
    return Figure("time", "Time per round, by phase", reading, chart)


def reliability(results: Results, runs: Sequence[Hashable], label: str) -> Figure | None:
    """Draw how often clients attacked that were said to, by the probability; None if unknown.

    Client-rounds are counted in ten bins of equal width. The mean distance of their points to the
    diagonal, weighted by the counts, is the expected calibration error.
    """
    clients = results.clients[results.clients["run"].isin(runs)]
    clients = clients.dropna(subset=["is_attacker", "probability"])
    if clients.empty:
        return None
    place = (clients["probability"] * _BINS).astype(int).clip(0, _BINS - 1)
    by = clients.assign(attacks=clients["is_attacker"].astype(float)).groupby(place.rename("bin"))
    found = by.agg(
        said=("probability", "mean"), attacked=("attacks", "mean"), count=("attacks", "size")
    ).reset_index()
    found["called"] = [f"{10 * number}–{10 * number + 10} %" for number in found["bin"]]
    error = float(((found["said"] - found["attacked"]).abs() * found["count"]).sum() / len(clients))
    sure = clients[clients["probability"] >= 0.5]
    told = "nobody was said to attack with a probability of one half or more"
    if len(sure):
        share = percent(float(sure["is_attacker"].astype(float).mean()))
        told = f"of those said to attack with a probability of one half or more, {share} did"
    axis = alt.Axis(format="%")
    ends = alt.Chart(pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0]}))
    x = alt.X("said:Q", title="probability of attack, as said", axis=axis).scale(domain=[0, 1])
    y = alt.Y("attacked:Q", title="share that attacked", axis=axis).scale(domain=[0, 1])
    base = alt.Chart(_shown(found.drop(columns="bin"))).encode(x=x, y=y)
    size = alt.Size("count:Q", legend=None).scale(type="sqrt", range=[40, 400])
    tips = _tips(found.drop(columns="bin"), said=".1%", attacked=".1%", count="d")
    chart = alt.layer(
        ends.mark_line(strokeDash=[2, 3], opacity=0.6, color=_GRAY).encode(
            x=alt.X("x:Q"), y=alt.Y("y:Q")
        ),
        base.mark_line(color=_BLUE, strokeWidth=2),
        base.mark_circle(color=_BLUE, opacity=0.9).encode(size=size, tooltip=tips),
    ).properties(height=210)
    return Figure(
        "reliability",
        f"Reliability of {shortened(printable(label), 60)}",
        f"{counted(len(clients), 'client-round')} by the probability of attack; {told}. The mean "
        f"distance to the diagonal is {100 * error:.1f} points.",
        chart,
    )


def confusion(counts: pd.DataFrame, label: str, reading: str) -> Figure:
    """Draw what clients looked most like, by what they were; see `summary.confusion_of`."""
    wide = counts.rename_axis(index="truth").reset_index()
    found = _shown(wide.melt("truth", var_name="taken_for", value_name="count"))
    total = found.groupby("truth", sort=False)["count"].transform("sum")
    found["share"] = found["count"] / total.where(total > 0, 1)
    base = alt.Chart(found).encode(
        x=alt.X("taken_for:N", title="taken for", sort=list(counts.columns)).axis(labelAngle=0),
        y=alt.Y("truth:N", title="was", sort=list(counts.index)),
        tooltip=_tips(found, count="d", share=".1%"),
    )
    cells = base.mark_rect(color=_BLUE).encode(opacity=_opacity("share", 0.06, 0.75))
    words = base.transform_filter("datum.count > 0").mark_text(style="words").encode(text="count:Q")
    chart = alt.layer(cells, words).properties(height=34 * len(counts))
    return Figure("confusion", f"Suspects of {shortened(printable(label), 60)}", reading, chart)


# -------------------------------------------------------------------- single runs


def trust_map(results: Results, run: Hashable, title: str) -> Figure | None:
    """Draw clients by rounds: the verdict as color and sign, the weight as shade.

    None if the rule judges nobody.
    """
    cells = results.clients[results.clients["run"] == run]
    if (cells["weight"].isna() & (cells["verdict"] == "trusted")).all():
        return None
    attackers = attackers_in(cells)
    ids = sorted(set(cells["client"]), key=lambda one: (one in attackers, *_number_first(one)))
    labels = _row_labels(ids, attackers)
    rounds = results.rounds[results.rounds["run"] == run].set_index("round")
    found = cells.assign(
        row=cells["client"].map(labels),
        side=_side(cells),
        looks=pd.Series([_looks(row) for row in rows_of(cells)], cells.index, dtype=object),
        warnings=cells["round"].map(rounds["warnings"]),
    )
    told = ["row", "round", "verdict", "weight", "score", "probability", "side", "looks", "reason"]
    found = _shown(found[[*told, "warnings"]].dropna(axis="columns", how="all"))
    tips = _tips(found, round="d", weight=".1%", score=".4~g", probability=".1%")
    by_weight = (cells["weight"] / cells["weight"].max()).clip(0.04, 1)
    found["shade"] = cells["verdict"].map(_SHADES).fillna(by_weight).fillna(0.75).round(2)
    signs = {name: sign for name, sign in _VERDICTS.items() if name in set(cells["verdict"])}
    height = max(7, min(20, 900 // max(len(ids), 1)))
    gap = 0.04 if len(rounds) <= 100 else 0.0
    y = alt.Y("row:N", title="client", sort=list(labels.values()))
    base = alt.Chart(found).encode(y=y.scale(padding=gap), tooltip=tips)
    pick = alt.selection_point(fields=["verdict"], bind="legend", name="pick")
    x = alt.X("left:Q", title="round", axis=alt.Axis(tickMinStep=1, format="d", grid=False))
    colors = {one: color for one, (color, _, _) in signs.items()}
    half, last = 0.5 - gap, int(cells["round"].max())
    layers = [
        base.transform_calculate(left=alt.datum.round - half, right=alt.datum.round + half)
        .mark_rect()
        .encode(
            x=x.scale(domain=[0.5, last + 0.5], nice=False),
            x2="right:Q",
            color=_color("verdict", colors, columns=4, labelExpr=_verdict_labels(signs)),
            opacity=alt.when(pick).then(_opacity("shade", 0, 1)).otherwise(alt.value(0.04)),
        )
        .add_params(pick, _zoom())
    ]
    if len(found) <= _SIGNED:
        size = (0.5 * min(height, 480 / len(rounds))) ** 2
        paths = [path for _, path, _ in signs.values()]
        shape = alt.Shape("verdict:N", legend=None).scale(domain=[*signs, ""], range=[*paths, ""])
        points = base.transform_filter("datum.verdict != 'trusted'")
        points = points.mark_point(style="ink", size=size, strokeWidth=1.2, opacity=0.85)
        layers.append(points.encode(x="round:Q", shape=shape))
    chart = alt.layer(*layers).properties(height=height * len(ids))
    return Figure("trust", title, _map_reading(cells, len(rounds)), chart, is_wide=True)


def partition(results: Results, run: Hashable) -> Figure | None:
    """Draw how many samples of which class each client has; None if that is not known."""
    found = results.partition[results.partition["run"] == run]
    if found.empty:
        return None
    attackers, classes = attackers_in(found), found["class"].nunique()
    labels = _row_labels(list(dict.fromkeys(found["client"])), attackers)
    columns = {"row": found["client"].map(labels), "side": _side(found)}
    shown = found[["class", "samples"]].assign(**columns).dropna(axis="columns", how="all")
    base = alt.Chart(_shown(shown)).encode(
        x=alt.X("class:O", title="class", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("row:N", title="client", sort=list(labels.values())),
        tooltip=_tips(shown, **{"class": "d", "samples": "d"}),
        color=_color("side", _SIDES) if "side" in shown else alt.value(_BLUE),
    )
    if max(len(labels), classes) <= _BUBBLES:
        size = alt.Size("samples:Q", legend=None).scale(range=[0, 330])
        chart = base.transform_filter("datum.samples > 0").mark_circle(opacity=0.9)
        chart = chart.encode(size=size)
    else:
        shade = alt.Opacity("samples:Q", legend=None).scale(range=[0.02, 1])
        chart = base.mark_rect().encode(opacity=shade)
    sizes = found.groupby("client")["samples"].sum()
    marked = [label.removeprefix("▲ ") for one, label in labels.items() if one in attackers]
    who = f" Attackers are {listed(marked)}." if 0 < len(marked) <= 20 else ""
    reading = (
        f"{counted(sizes.sum(), 'sample')} of {classes} classes among "
        f"{counted(len(sizes), 'client')}; the smallest has {sizes.min()}, the largest "
        f"{sizes.max()}.{who}"
    )
    chart = chart.properties(height=max(5, min(20, 900 // len(labels))) * len(labels))
    return Figure("partition", "Samples by class and client", reading, chart, classes > _BUBBLES)


def traits(cells: pd.DataFrame, layer: str, label: str, reading: str) -> Figure:
    """Draw what clients sent in one layer, one tile per client and round; see `Panel`."""
    columns, rows = cells.drop_duplicates("column"), cells.drop_duplicates("row")
    called = columns["client"].where(~columns["marked"], "▲ " + columns["client"])
    names = _shown(pd.DataFrame({"x": columns["x"] + 0.5, "name": called}))
    numbers = pd.DataFrame({"y": rows["y"] - 0.5, "name": rows["round"].astype(str)})
    x = alt.X("x:Q", axis=None, scale=alt.Scale(nice=False, zero=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(nice=False, zero=False))
    drawn = _shown(cells[["x", "x2", "y", "y2", "sign", "size", "client", "round"]])
    signs = {"positive": _BLUE, "negative": _ORANGE}
    chart = alt.layer(
        alt.Chart(drawn)
        .mark_rect(strokeWidth=0)
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            color=_color("sign", signs, offset=32),
            opacity=_opacity("size", 0, 1),
            tooltip=_tips(drawn[["client", "round"]], round="d"),
        ),
        alt.Chart(names)
        .mark_text(style="words", baseline="top", dy=6, limit=60)
        .encode(x=x, y=alt.value("height"), text="name:N"),
        alt.Chart(numbers)
        .mark_text(style="words", align="right", dx=-6)
        .encode(x=alt.value(0), y=y, text="name:N"),
    ).properties(height=34 * len(rows))
    title = shortened(printable(f"{layer} under {label}"), 100)
    return Figure("traits", title, reading, chart, is_wide=True)


# -------------------------------------------------------------------- a search of settings


def sweep_map(searched: Mapping[str, Any]) -> Figure:
    """Draw the result of a search: the accuracy by c and eps, or by the first two settings.

    If other settings were searched too, a cell has the best over them. `searched` is what
    `fedimmune.adaptive.sweep.described_search` returns.
    """
    outcomes = [Outcome.model_validate(point) for point in searched["points"]]
    grid: Mapping[str, Sequence[Any]] = searched["grid"]
    varied = sorted(grid, key=lambda name: len(grid[name]) < 2)  # those with a choice first
    across, down = ("c", "eps") if {"c", "eps"} <= set(grid) else (*varied, "")[:2]
    chosen = best_of(outcomes)
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:  # by text: True is not 1 here
        place = (written(one.settings[across]), written(one.settings[down]) if down else "")
        cells.setdefault(place, []).append(one)
    rows = []
    for (x, y), here in cells.items():
        best = best_of(here)
        rows.append((x, y, best.accuracy, any(one is chosen for one in here), _told(best)))
    found = _shown(pd.DataFrame(rows, columns=["x", "y", "accuracy", "chosen", "told"]))
    base = alt.Chart(found).encode(
        x=alt.X("x:N", title=across, sort=list(map(written, grid[across]))).axis(labelAngle=0),
        y=alt.Y("y:N", title=down or None, sort=list(map(written, grid.get(down, [])))),
        tooltip="told:N",
    )
    ends = [found["accuracy"].min(), found["accuracy"].max()]
    shade = alt.Opacity("accuracy:Q", legend=None).scale(domain=ends, range=[0.08, 0.7])
    chart = alt.layer(
        base.mark_rect(color=_SKY).encode(opacity=shade),
        base.transform_filter("datum.chosen").mark_rect(
            filled=False, stroke=_ORANGE, strokeWidth=3
        ),
        base.mark_text(style="words").encode(text=alt.Text("accuracy:Q", format=".1%")),
    ).properties(height=44 * found["y"].nunique())
    others = [name for name in grid if name not in (across, down)]
    over = f", the best over {' and '.join(others)}" if others else ""
    by = f"{across} and {down}" if down else across
    title = f"Accuracy on held-out rehearsals, by {by}{over}"
    return Figure("sweep", title, f"Chosen: {_told(chosen)}.", chart)


def _told(one: Outcome) -> str:
    settings = ", ".join(f"{name} = {written(value)}" for name, value in one.settings.items())
    weight = one.attacker_weight
    on_attackers = "" if weight is None else f", weight on attackers {percent(weight)}"
    exact = percent(one.exact)
    return f"{settings}: accuracy {percent(one.accuracy)}, just the honest {exact}{on_attackers}"


# -------------------------------------------------------------------- shared


def _zoom() -> alt.Parameter:
    """Drag to move, Ctrl and the wheel (or two fingers) to zoom: the page still scrolls."""
    name, zoom = "zoom", "wheel![event.ctrlKey]"
    return alt.selection_interval(bind="scales", encodings=["x"], name=name, zoom=zoom)


def _if(chosen: alt.Parameter, value: float, otherwise: float) -> Any:
    return alt.when(chosen).then(alt.value(value)).otherwise(alt.value(otherwise))


def _color(field: str, colors: Mapping[str, str], **legend: Any) -> alt.Color:
    shown = alt.Legend(title=None, **legend)
    color = alt.Color(f"{field}:N", legend=shown, sort=list(colors))
    return color.scale(domain=list(colors), range=list(colors.values()))


def _opacity(field: str, low: float, high: float) -> alt.Opacity:
    return alt.Opacity(f"{field}:Q", legend=None).scale(domain=[0, 1], range=[low, high])


def _tips(found: pd.DataFrame, **formats: str) -> list[alt.Tooltip]:
    """Show each column: numbers that have a format, and all words."""
    return [
        alt.Tooltip(f"{name}:Q", title=_TIPS.get(name, name), format=formats[name])
        if name in formats
        else alt.Tooltip(f"{name}:N", title=_TIPS.get(name, name))
        for name in map(str, found)
        if name in formats or name in _words(found)
    ]


def _words(found: pd.DataFrame) -> list[str]:
    return [str(name) for name in found if not pd.api.types.is_numeric_dtype(found[name])]


def _shown(found: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose words can be shown: without control characters, and not endless."""
    cut = {
        name: found[name].map(lambda one: shortened(printable(one), LONGEST_ID), na_action="ignore")
        for name in _words(found)
    }
    return found.assign(**cut)


def _side(found: pd.DataFrame) -> pd.Series[str]:
    return found["is_attacker"].map({True: "attacker", False: "honest"}).rename("side")


def _in_order(labels: Iterable[Hashable]) -> list[str]:
    """Return each label once, as they come, and the oracle last."""
    found = [str(label) for label in dict.fromkeys(labels)]
    return sorted(found, key=lambda label: label.partition(" (")[0] == ORACLE)


def _number_first(client: str) -> tuple[bool, int, str]:
    is_number = client.isascii() and client.isdecimal()
    return not is_number, len(client) if is_number else 0, client


def _row_labels(ids: Sequence[str], attackers: set[str]) -> dict[str, str]:
    """Return the label of each client, attackers marked; no two alike, whatever their ids."""
    labels: dict[str, str] = {}
    taken: set[str] = set()
    for one in ids:
        plain = shortened(printable(one), LONGEST_ID - 12)
        label = plain = f"▲ {plain}" if one in attackers else plain
        while label in taken:
            label = f"{plain} ({len(taken) + 1})"
        taken.add(label)
        labels[one] = label
    return labels


def _verdict_labels(signs: Mapping[str, tuple[str, str, str]]) -> str:
    """Name verdicts together with their signs: an expression that holds no stranger's words."""
    labels = "datum.label"
    for name, (_, _, sign) in signs.items():
        if sign:
            labels = f"datum.value === '{name}' ? '{sign} {name}' : {labels}"
    return labels


def _looks(row: Any) -> str | None:
    if pd.isna(row.kind):
        return None
    kind = "no rehearsed kind" if row.kind == UNKNOWN else shortened(row.kind, 30)
    since = "" if pd.isna(row.since) else f", suspected since round {row.since}"
    return f"{kind} ({percent(row.confidence, 0)}){since}"


def _map_reading(cells: pd.DataFrame, rounds: int) -> str:
    what = f"{counted(cells['client'].nunique(), 'client')} by {counted(rounds, 'round')}"
    if cells["weight"].isna().all():
        return f"{what}: the rule has no weights; colors and signs show whom it did not trust."
    means = cells.groupby("client")["weight"].mean().fillna(0)
    attacks = means.index.isin(list(attackers_in(cells)))
    if attacks.any():
        return (
            f"{what}: an attacker (▲) had {percent(means[attacks].mean())} of the weight on "
            f"average, an honest client {percent(means[~attacks].mean())}."
        )
    ends = (means.idxmax(), means.idxmin())
    most, least = (shortened(printable(one), LONGEST_ID) for one in ends)
    return (
        f"{what}: client {most} had the most weight on average ({percent(means.max())}), client "
        f"{least} the least ({percent(means.min())})."
    )
