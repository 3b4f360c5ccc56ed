"""Figures in the layout of the paper's, described with Altair from tidy frames."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image

from fedimmune.errors import InputError
from fedimmune.io import write_bytes_atomically
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import RoundRecord
from fedimmune.runs.traces import Trace
from reproduction.layout import Layout, Line, Table, lay_out
from reproduction.methods import ORACLE, color_of, remark_of
from reproduction.synthetic import FEATURES, SAMPLES, THIRD, Demonstration, principal_plane
from reproduction.tables import attack_name, counted, initials, measure_name, task_name

__all__ = ["partition_chart", "run_charts", "save", "search_chart", "success_chart"]
__all__ += ["synthetic_chart", "traits_chart"]

Chart = Any
"""Any of Altair's charts; their classes have no type of their own in common."""

_ABREAST = 3
_PANEL, _BARS = {"width": 210, "height": 170}, {"width": 560, "height": 120}
_DODGE = 0.28
"""Lines are moved apart by this share of a column in all: equal figures would hide each other."""
_GOOD, _BAD, _QUIET = "#0072b2", "#c2410c", "#5f6b73"
_DASHES = ([1, 0], [6, 3], [2, 2])
_SHADES = (1.0, 0.65, 0.35)


def save(chart: Chart, stem: Path) -> list[Path]:
    """Write ``stem.png`` to look at and ``stem.pdf`` to print."""
    written = []
    styled = chart.configure_view(stroke=None).configure_axis(grid=False)
    for kind, options in (("png", {"ppi": 144}), ("pdf", {})):
        buffer = io.BytesIO()
        with alt.data_transformers.enable("default", max_rows=None):
            styled.save(buffer, format=kind, **options)
        if kind == "png":  # a quarter of the size, with the same pixels
            with Image.open(buffer) as image:
                opaque = image.convert("RGB")
            buffer = io.BytesIO()
            opaque.save(buffer, "PNG", optimize=True)
        written.append(stem.with_name(f"{stem.name}.{kind}"))
        write_bytes_atomically(buffer.getvalue(), written[-1])
    return written


# -------------------------------------------------------------------- tables of runs


def run_charts(
    layout: Layout, rows: pd.DataFrame, paper: pd.DataFrame | None = None
) -> dict[str, Chart]:
    """Describe the figures of finished runs; on bars, the paper's figures are marked.

    The main figure is under "", and details of each varied parameter under its name.
    """
    tables = lay_out(layout, rows, paper)
    main = [table for table in tables if table.attackers is None]
    if any(table.varied for table in main):
        charts = {"": _compared(layout, main)}
    else:
        panels = [(table, measure) for table in main for measure in table.measures]
        across = 1 if layout.bars else min(_ABREAST, len(panels))
        rows_of_panels = [panels[i : i + across] for i in range(0, len(panels), across)]
        charts = {"": _grid(layout, rows_of_panels)}
    for varied in dict.fromkeys(table.varied for table in tables if table.attackers is not None):
        details = [t for t in tables if t.varied == varied and t.attackers is not None]
        charts[varied] = _compared(layout, details)
    return charts


_Panel = tuple[Table, str]


def _compared(layout: Layout, tables: Sequence[Table]) -> Chart:
    """Put a task's tables side by side, one measure below the other, one task after the other."""
    tasks = dict.fromkeys(table.task for table in tables)
    return _grid(
        layout,
        [
            [(table, measure) for table in tables if table.task == task]
            for task in tasks
            for measure in layout.measures
        ],
    )


def _grid(layout: Layout, panels: Sequence[Sequence[_Panel]]) -> Chart:
    lines = list(dict.fromkeys(line for row in panels for table, _ in row for line in table.lines))
    rows = []
    for row in panels:
        charts = [_panel(layout, table, measure, lines) for table, measure in row]
        compared = any(table.varied for table, _ in row)
        rows.append(alt.hconcat(*charts).resolve_scale(y="shared" if compared else "independent"))
    chart = alt.vconcat(*rows).resolve_scale(color="shared", strokeDash="shared")
    elsewhere = {table.paper_task for row in panels for table, _ in row if table.paper} - {
        table.task for row in panels for table, _ in row
    }
    if layout.bars and any(table.paper for row in panels for table, _ in row):
        on = f" on {', '.join(map(task_name, sorted(elsewhere)))}" if any(elsewhere) else ""
        note = f"Black marks: the paper's figures{on}."
        small: dict[str, Any] = {"fontSize": 10, "fontWeight": "normal", "color": _QUIET}
        chart = chart.properties(title=alt.Title(note, anchor="start", orient="bottom", **small))
    return chart


def _panel(layout: Layout, table: Table, measure: str, lines: Sequence[Line]) -> Chart:
    frame = _frame(table, measure, lines, averages=layout.bars)
    title = _title(table)
    x_title = table.varied if table.attackers is not None else f"attackers of {table.clients}"
    size = _BARS if layout.bars else _PANEL
    if frame["mean"].isna().all():
        nothing = alt.Chart(pd.DataFrame({"text": ["not run yet"]})).mark_text(color=_QUIET)
        return nothing.encode(text="text:N").properties(title=title, **size)
    frame = frame[frame.groupby("column")["mean"].transform("count") > 0]
    shown = [line for line in lines if line in table.lines]
    legend = alt.Legend(orient="bottom", columns=2, labelLimit=0, symbolLimit=0, title=None)
    color = alt.Color(
        "label:N",
        scale=alt.Scale(
            domain=[_label(line) for line in lines], range=[_color(line, lines) for line in lines]
        ),
        legend=legend,
    )
    # Only bars have to begin at 0; accuracies are far from it, so points show more.
    is_share = measure == "asr"
    y = alt.Y(
        "mean:Q",
        title=f"{measure_name(measure)} (%)",
        scale=alt.Scale(domain=[0, 100]) if is_share else alt.Scale(zero=False, nice=True),
        axis=alt.Axis(grid=True, gridColor="#dde2e6"),
    )
    columns = frame["column"].unique().tolist()
    if layout.bars or len(columns) == 1:
        base = alt.Chart(frame).encode(
            x=alt.X("column:N", sort=columns, title=x_title, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("label:N", sort=[_label(line) for line in shown]),
        )
        marks = base.mark_bar() if is_share else base.mark_point(filled=True, size=60, opacity=1)
        marks = marks.encode(y=y, color=color)
        marks += base.mark_rule(clip=True).encode(y="low:Q", y2="high:Q")
        marks += base.mark_tick(color="black", thickness=2, size=9, opacity=1).encode(y="paper:Q")
    else:
        numbers = [int(column) for column in columns]
        step = min(np.diff(sorted(numbers)))
        frame = frame.assign(x=frame["column"].astype(int) + frame["shift"] * _DODGE * step)
        base = alt.Chart(frame[frame["mean"].notna()]).encode(
            x=alt.X(
                "x:Q",
                title=x_title,
                axis=alt.Axis(values=numbers, format="d"),
                scale=alt.Scale(zero=False, padding=12),
            )
        )
        dash = alt.StrokeDash("dash:N", scale=alt.Scale(range=_DASHES), legend=None)
        marks = base.mark_line(point=True).encode(y=y, color=color, strokeDash=dash)
        marks += base.mark_rule(clip=True).encode(y="low:Q", y2="high:Q", color=color)
    return marks.properties(title=title, **size)


def _frame(table: Table, measure: str, lines: Sequence[Line], *, averages: bool) -> pd.DataFrame:
    """Return a panel as a tidy frame, one row per line and column."""
    trainings = list(dict.fromkeys(line.trained for line in lines if line.trained))
    found = []
    for place, line in enumerate(table.lines):
        for column in table.columns:
            if column is None and not averages:
                continue
            cell = table.cell(line, measure, column)
            mean = np.nan if cell.mean is None else cell.mean
            training = trainings.index(line.trained) if line.trained else 0
            found.append(
                {
                    "label": _label(line),
                    "column": "average" if column is None else str(column),
                    "mean": mean,
                    "low": np.nan if cell.spread is None else mean - cell.spread,
                    "high": np.nan if cell.spread is None else mean + cell.spread,
                    "paper": table.paper.get((line, measure, column), np.nan),
                    "shift": (place + 0.5) / len(table.lines) - 0.5,
                    "dash": str(training if line.rule != ORACLE else 1),
                }
            )
    return pd.DataFrame(found)


def _label(line: Line) -> str:
    remark = remark_of(line.rule)
    label = line.rule + (f" ({remark})" if remark else "")
    return f"{label}, {initials(line.trained)}" if line.trained else label


def _color(line: Line, lines: Sequence[Line]) -> str:
    """Return a line's color: lighter for each further training of a method."""
    trainings = list(dict.fromkeys(each.trained for each in lines if each.trained))
    shade = _SHADES[trainings.index(line.trained) % len(_SHADES)] if line.trained else 1.0
    parts = (int(color_of(line.rule)[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - shade * (255 - part)):02x}" for part in parts)


def _title(table: Table) -> str:
    if table.attackers is not None:
        said = [f"{table.varied} varied", counted(table.attackers, "attacker")]
    else:
        said = [f"average over {table.varied}" if table.varied else attack_name(table.attack)]
    return ", ".join([*([task_name(table.task)] if table.task else []), *said])


def success_chart(rounds: pd.DataFrame) -> Chart:
    """Describe the attack's success over rounds: a panel per protocol and number of attackers.

    Parameters
    ----------
    rounds
        One row per run and round, with ``protocol``, ``rule``, ``defense``, ``attackers``,
        ``seed``, ``round`` and ``asr``.
    """
    frame = rounds.assign(
        panel=[
            f"{attackers} of 10, protocol {protocol}"
            for attackers, protocol in zip(rounds["attackers"], rounds["protocol"], strict=True)
        ],
        success=100 * rounds["asr"],
        rule=rounds["defense"].where(rounds["defense"] != "", rounds["rule"]),
    )
    lines = alt.Chart(frame).mark_line()
    base = lines.encode(
        x=alt.X("round:Q", title="round"),
        y=alt.Y("success:Q", title="ASR (%)", axis=alt.Axis(grid=True, gridColor="#dde2e6")),
        color=alt.Color("rule:N", legend=alt.Legend(orient="bottom", columns=3, title=None)),
        detail="seed:N",
    )
    panels = sorted(frame["panel"].unique(), key=lambda name: (name[-7:], name), reverse=True)
    return base.properties(width=300, height=180).facet(
        alt.Facet("panel:N", sort=panels, title=None), columns=2
    )


# -------------------------------------------------------------------- search and partition


def search_chart(points: pd.DataFrame, across: str = "c", down: str = "eps") -> Chart:
    """Describe a search as a heat map of the accuracy, with the best point framed."""
    frame = points.assign(
        best=np.arange(len(points)) == points["accuracy"].round(9).to_numpy().argmax(),
        dark=points["accuracy"] > points["accuracy"].quantile(0.6),
    )
    base = alt.Chart(frame).encode(
        x=alt.X(f"{across}:N", sort=None, axis=alt.Axis(labelAngle=0)),
        y=alt.Y(f"{down}:N", sort=None),
    )
    color = alt.Color("accuracy:Q", scale=alt.Scale(scheme="blues", zero=False), legend=None)
    cells = base.mark_rect().encode(color=color)
    text = base.mark_text().encode(
        text=alt.Text("accuracy:Q", format=".1%"),
        color=alt.condition("datum.dark", alt.value("white"), alt.value("black")),
    )
    frame_of_best = base.transform_filter("datum.best").mark_rect(
        fill=None, stroke=_BAD, strokeWidth=2.5
    )
    size = {"width": 70 * points[across].nunique(), "height": 40 * points[down].nunique()}
    return (cells + text + frame_of_best).properties(**size)


def partition_chart(samples: pd.DataFrame) -> Chart:
    """Return who has which data: a bar per client, colored by class, clients sorted by size.

    Parameters
    ----------
    samples
        ``clients`` (how many there are), ``client``, ``class``, ``samples``.
    """
    panels = []
    for count, own in samples.groupby("clients"):
        total = own.groupby("client")["samples"].transform("sum")
        frame = own.assign(size=total)
        panels.append(
            alt.Chart(frame)
            .mark_bar()
            .encode(
                x=alt.X(
                    "client:O",
                    sort=alt.EncodingSortField("size", op="max"),
                    title="clients, sorted by size",
                    axis=alt.Axis(labels=False, ticks=False),
                ),
                y=alt.Y("samples:Q", title="samples"),
                color=alt.Color(
                    "class:O",
                    scale=alt.Scale(scheme="viridis"),
                    legend=alt.Legend(orient="bottom", columns=10, title="class"),
                ),
                order="class:O",
            )
            .properties(title=f"{count} clients", width=320, height=200)
        )
    return alt.hconcat(*panels)


# -------------------------------------------------------------------- the synthetic demonstration


def synthetic_chart(shown: Demonstration) -> Chart:
    """Describe the demonstration on one sheet: a set, its weights, PCA's plane, importance."""
    which, found = shown.shown, shown.figures
    features = shown.sets.inputs["features"][which]
    outliers = shown.sets.attackers[which].tolist()
    names = [f"outlier {i}" if bad else str(i) for i, bad in enumerate(outliers)]
    kinds = ["outlier" if bad else "inlier" for bad in outliers]
    plane = principal_plane(features[None])[0].tolist()
    samples = pd.DataFrame(
        {
            "sample": names,
            "number": [str(i) for i in range(SAMPLES)],
            "kind": kinds,
            "weight": shown.weights[which].tolist(),
            "first component": [x for x, _ in plane],
            "second component": [y for _, y in plane],
        }
    )
    values = pd.DataFrame(
        {
            "sample": np.repeat(names, FEATURES),
            "feature": np.tile(np.arange(FEATURES), SAMPLES),
            "value": features.flatten().tolist(),
        }
    )
    importance = pd.DataFrame(
        {"feature": np.arange(FEATURES), "importance": shown.importance.tolist()}
    )
    feature = alt.X(
        "feature:O", axis=alt.Axis(values=[0, THIRD, 2 * THIRD, FEATURES - 1], labelAngle=0)
    )
    sample = alt.Y("sample:N", sort=names, title=None)
    kind = alt.Color(
        "kind:N", scale=alt.Scale(domain=["inlier", "outlier"], range=[_GOOD, _BAD]), legend=None
    )

    def auroc(name: str) -> str:
        return f"AUROC {found[name]:.3f} over {len(shown.sets)} sets"

    the_set = (
        alt.Chart(values)
        .mark_rect()
        .encode(
            x=feature,
            y=sample,
            color=alt.Color(
                "value:Q",
                scale=alt.Scale(scheme="purpleorange", domain=[-3, 3], clamp=True, reverse=True),
                legend=None,
            ),
        )
        .properties(
            title=_entitled("The set", "values of 30 features; the last ten are noise"),
            width=430,
            height=230,
        )
    )
    ten = f"{found['important']:.0f} of the ten most important are among the first ten"
    the_importance = (
        alt.Chart(importance)
        .mark_rect()
        .encode(
            x=feature,
            color=alt.Color(
                "importance:Q", scale=alt.Scale(scheme="blues", domainMin=0), legend=None
            ),
        )
        .properties(
            title=_entitled("The importance of each feature", f"the darker, the more; {ten}"),
            width=430,
            height=26,
        )
    )
    the_weights = (
        alt.Chart(samples)
        .mark_bar()
        .encode(x=alt.X("weight:Q", title=None, axis=alt.Axis(format="%")), y=sample, color=kind)
        .properties(title=_entitled("The weights", auroc("auroc")), width=150, height=230)
    )
    points = alt.Chart(samples).encode(
        x=alt.X("first component:Q"), y=alt.Y("second component:Q"), color=kind
    )
    shape = alt.Shape(
        "kind:N", scale=alt.Scale(domain=["inlier", "outlier"], range=["circle", "triangle"])
    )
    the_plane = points.mark_point(filled=True, size=110).encode(shape=shape.legend(None))
    the_plane += points.mark_text(dx=11).encode(text="number:N")
    plane_title = _entitled("What PCA shows", f"by distance: {auroc('plane_auroc')}")
    the_plane = the_plane.properties(title=plane_title, width=280, height=300)
    left = alt.vconcat(
        alt.hconcat(the_set, the_weights).resolve_scale(color="independent"), the_importance
    ).resolve_scale(color="independent")
    return (
        alt.hconcat(left, the_plane)
        .resolve_scale(color="independent", shape="independent")
        .properties(
            title=alt.Title(
                "Ten samples, three of them outliers. Noise hides them from PCA, not from "
                "attention.",
                subtitle="The network has seen other sets and who the outliers were. It learned "
                "which features tell them: the first ten.",
                anchor="start",
                fontSize=17,
            )
        )
    )


def _entitled(title: str, subtitle: str) -> alt.Title:
    return alt.Title(title, subtitle=subtitle, anchor="start", subtitleColor=_QUIET)


# -------------------------------------------------------------------- the traits of an attack


_ROUNDS, _CLIENTS, _SIDE = 6, 12, 16
_GAP = 0.12
"""Between tiles, in tiles."""
_OUTLYING = 0.99
"""The color is full at this quantile: one huge value would leave all others pale."""


def traits_chart(runs: Mapping[str, Path], layer: str) -> Chart:
    """Describe what clients sent in one layer, round by round, one panel per method.

    After a figure of the paper (appendix, "Capturing the traits of attacks"): under FedAvg the
    pattern in the attackers' updates appears in the honest clients' too, under a defense it does
    not.

    Parameters
    ----------
    runs
        Run folders by method.
    layer
        Whose updates they saved.

    Raises
    ------
    InputError
        A run cannot be read, or saved nothing of the layer.
    """
    panels = {rule: _tiles(RunFolder(path), layer) for rule, path in runs.items()}
    every = pd.concat(panels.values())
    top = float(every["value"].abs().quantile(_OUTLYING)) or 1.0
    color = alt.Color(
        "value:Q",
        scale=alt.Scale(
            domain=[-top, 0, top], range=["#d55e00", "white", _GOOD], clamp=True, interpolate="rgb"
        ),
        legend=alt.Legend(title=None, format=".1g"),
    )
    charts = []
    for rule, frame in panels.items():
        clients = frame["client"].unique().tolist()
        rounds = frame["round"].unique().tolist()
        charts.append(
            alt.Chart(frame)
            .mark_rect()
            .encode(
                x=_tile_axis("x", clients, "client (▲ attacks)"),
                x2="x2:Q",
                y=_tile_axis("y", [str(n) for n in rounds], "round", reverse=True),
                y2="y2:Q",
                color=color,
            )
            .properties(title=rule, width=34 * len(clients), height=34 * len(rounds))
        )
    return alt.hconcat(*charts).properties(title=alt.Title(f"Updates of {layer}", anchor="start"))


def _tile_axis(name: str, labels: Sequence[str], title: str, *, reverse: bool = False) -> Any:
    kind = alt.Y if reverse else alt.X
    places = [number + (1 - _GAP) / 2 for number in range(len(labels))]
    text = "[" + ",".join(repr(label) for label in labels) + "]"
    return kind(
        f"{name}:Q",
        title=title,
        scale=alt.Scale(domain=[0, len(labels)], nice=False, reverse=reverse),
        axis=alt.Axis(
            values=places,
            labelExpr=f"{text}[floor(datum.value)]",
            domain=False,
            ticks=False,
            labelOverlap=False,
        ),
    )


def _tiles(run: RunFolder, layer: str) -> pd.DataFrame:
    """Return one row per cell of each client's tile in each round."""
    records = run.records()
    saved = [number for number in run.traces.rounds() if number <= len(records)]
    if layer not in run.traces.kept_layers() or not saved:
        raise InputError(f"{run.path} has saved no updates of {layer}")
    places = np.linspace(0, len(saved) - 1, min(len(saved), _ROUNDS)).round().astype(int)
    clients = _shown_clients(records[0])
    frames = []
    for row, number in enumerate(saved[place] for place in places):
        trace = run.traces.read(number)
        for column, (client, attacks) in enumerate(clients.items()):
            tile = _tile(trace, layer, client)
            if tile is None:
                continue
            down, across = np.indices(tile.shape)
            height, width = ((1 - _GAP) / side for side in tile.shape)
            x, y = column + across.ravel() * width, row + down.ravel() * height
            frames.append(
                pd.DataFrame({"x": x, "x2": x + width, "y": y, "y2": y + height}).assign(
                    value=tile.ravel(), round=number, client=f"{client}{' ▲' if attacks else ''}"
                )
            )
    return pd.concat(frames)


def _shown_clients(record: RoundRecord) -> dict[str, bool]:
    """Return who is shown, and who of them attacks: of many clients, some of both."""
    attackers = [str(each.client) for each in record.clients if each.is_attacker]
    others = [str(each.client) for each in record.clients if not each.is_attacker]
    some = attackers[: max(_CLIENTS // 2, _CLIENTS - len(others))]
    return dict.fromkeys(some, True) | dict.fromkeys(others[: _CLIENTS - len(some)], False)


def _tile(trace: Trace, layer: str, client: str) -> NDArray[np.float64] | None:
    """Return a client's update as outputs × all else, reduced to a tile by averaging neighbors."""
    senders = [str(sender) for sender in trace.senders]
    if client not in senders or layer not in trace.kept:
        return None
    update = trace.kept[layer][senders.index(client)].double()
    flat = update.reshape(1, update.shape[0] if update.ndim > 1 else 1, -1)
    side = tuple(min(length, _SIDE) for length in flat.shape[1:])
    found: NDArray[np.float64] = torch.nn.functional.adaptive_avg_pool2d(flat, side)[0].numpy()  # type: ignore[arg-type]
    return found
