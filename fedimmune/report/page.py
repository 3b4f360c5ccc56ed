"""The report as one HTML file that needs nothing besides itself, and its figures as files."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedimmune import __version__
from fedimmune.errors import InputError
from fedimmune.io import writable, write_text_atomically
from fedimmune.report import charts
from fedimmune.report.charts import Figure
from fedimmune.report.defenses import DefenseShown, defenses_of
from fedimmune.report.saved_updates import traits_of
from fedimmune.report.summary import (
    Cell,
    Heading,
    Setting,
    Table,
    client_table,
    command_of,
    confusion_of,
    counted,
    figure_table,
    listed,
    notices_of,
    settings_of,
    shortened,
    summary_of,
)
from fedimmune.runs.labels import flat
from fedimmune.runs.results import Results, load_runs, rows_of
from fedimmune.untrusted import printable

__all__ = ["Contents", "Group", "contents_of", "page_of", "write_figures", "write_report"]

_MAP_CELLS, _PARTITIONS, _LAYERS = 60_000, 4, 3
"""So that a page stays small, it shows no more cells of trust maps, partitions and layers."""
_BY_RULE = ("by-side", "reliability")
"""How names end of figures that there is one of per rule."""


def write_report(
    runs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str] = "report.html",
    *,
    title: str | None = None,
) -> Path:
    """Write a report of one run, or a comparison of many, and return where.

    Parameters
    ----------
    runs
        Run folders, or folders of run folders, which stand for all runs in them.
    output
        The HTML file; it is replaced whole or not at all.
    title
        Of the page; by default it names what was run.

    Raises
    ------
    InputError
        A run does not exist or is damaged, or the file cannot be written.
    """
    place = writable(output)
    write_text_atomically(page_of(contents_of(load_runs(runs), title)), place)
    return place


def write_figures(
    runs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
) -> list[Path]:
    """Write every figure of a report as PNG, SVG and PDF, and return the files.

    Parameters
    ----------
    runs
        Run folders, or folders of run folders.
    folder
        Where they are written; it is made if there is none.

    Raises
    ------
    InputError
        A run does not exist or is damaged, or nothing can be written there.
    """
    contents = contents_of(load_runs(runs))
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write figures to {place}: {error.strerror}") from error
    taken = Counter[str]()
    written = []
    for name, figure in contents.figures():
        stem = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "figure"
        taken[stem] += 1
        unique = stem if taken[stem] == 1 else f"{stem}-{taken[stem]}"
        written += charts.save(figure, place / unique)
    return written


# -------------------------------------------------------------------- what there is


@dataclass
class Group:
    """Figures and tables under one heading, and notes about those that are missing."""

    title: str
    figures: Sequence[Figure] = ()
    notes: list[str] = field(default_factory=list)
    tables: Sequence[Table] = ()
    is_folded: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether its figures need room."""
        return any(figure.is_wide for figure in self.figures)


@dataclass(frozen=True)
class SettingShown:
    """A setting: its result in words, as a table and in figures."""

    setting: Setting
    summary: list[str]
    notices: list[str]
    table: Table
    groups: list[Group]


@dataclass(frozen=True)
class Contents:
    """Everything that a report holds, in order."""

    title: str
    settings: list[SettingShown]
    partitions: Group
    defenses: list[DefenseShown]
    runs: list[tuple[str, list[tuple[str, str]], list[str] | None]]

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield every figure, with a name for its file."""
        for shown in self.settings:
            for figure in (figure for group in shown.groups for figure in group.figures):
                is_one_of_many = figure.is_wide or figure.name.endswith(_BY_RULE)
                what = figure.title if is_one_of_many else figure.name
                yield f"{shown.setting.title} {what}", figure
        for figure in self.partitions.figures:
            yield "partition", figure
        for defense in self.defenses:
            if defense.curve is not None:
                yield f"{defense.name} curve", defense.curve


def contents_of(results: Results, title: str | None = None) -> Contents:
    """Gather what there is to show of runs."""
    settings = settings_of(results)
    room = {"cells": _MAP_CELLS, "layers": _LAYERS}
    return Contents(
        title=title or _title(results, settings),
        settings=[_shown(setting, room) for setting in settings],
        partitions=_partitions(results),
        defenses=defenses_of(results),
        runs=[_scenario(results, run) for run in rows_of(results.runs)],
    )


def _title(results: Results, settings: Sequence[Setting]) -> str:
    runs = counted(len(results.runs), "run")
    if len(settings) > 1:
        return f"{runs} in {counted(len(settings), 'setting')}"
    first = results.runs["rule"].iloc[0] if len(results.runs) == 1 else runs
    return f"{shortened(printable(first))} · {settings[0].title}"


def _shown(setting: Setting, room: dict[str, int]) -> SettingShown:
    rounds = setting.rounds
    outcome = Group(
        "How good the model is",
        _some(
            charts.lines(rounds, "accuracy", "ACC: correct on test samples"),
            charts.lines(rounds, "asr", "ASR: does what the attack wants"),
            charts.lines(rounds, "accuracy_without_success", "ACC · (1 − ASR)"),
            charts.standing(setting.figures),
        ),
    )
    if (setting.means["n"] > 1).any():
        outcome.notes.append("Lines are means over seeds; bands reach from the least to the most.")
    kinds = [(label, confusion_of(setting, label)) for label in setting.rules]
    looked = [(label, found) for label, found in kinds if found is not None]
    groups = [
        outcome,
        _detection(setting),
        _trust(setting, room),
        _sides(setting),
        Group(
            "What suspects looked like",
            [charts.confusion(counts, label, reading) for label, (counts, reading) in looked],
            tables=[_counts_table(counts, label) for label, (counts, _) in looked],
        ),
        _reliability(setting),
        _clients(setting),
        _traits(setting, room),
        Group("Where the time went", _some(charts.times(rounds))),
    ]
    return SettingShown(
        setting=setting,
        summary=summary_of(setting),
        notices=notices_of(setting),
        table=figure_table(setting),
        groups=[each for each in groups if each.figures or each.notes or each.tables],
    )


def _some(*figures: Figure | None) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def _detection(setting: Setting) -> Group:
    if not setting.knows_truth:
        found = setting.results.clients.groupby(["run", "round"])["weight"].max()
        largest = setting.rounds.join(found.rename("largest_weight"), on=["run", "round"])
        shown = [charts.lines(largest, "largest_weight", "The largest weight of a single client")]
        if setting.rounds["accused"].any():
            shown.append(charts.lines(setting.rounds, "accused", "Suspected or rejected clients"))
        return Group("Where the weight went, and who was suspected", _some(*shown))
    run = setting.runs[0]
    level = None
    if pd.notna(run.clients) and pd.notna(run.attackers) and 0 < run.attackers <= run.clients:
        level = (run.attackers / run.clients, "attackers' share among the clients")
    group = Group(
        "Where the weight went, and who was detected",
        _some(
            charts.lines(setting.rounds, "attacker_weight", "Weight on attackers", level=level),
            charts.lines(
                setting.rounds, "precision", "Precision: of the accused, share that attack"
            ),
            charts.lines(setting.rounds, "recall", "Recall: of the attackers, share accused"),
        ),
    )
    accused = setting.means["accused"].drop(list(setting.oracles))
    silent = [str(label) for label, count in accused.items() if count == 0]
    if silent and setting.has_attackers:
        group.notes.append(f"Nobody was ever accused by {listed(silent)}.")
    return group


def _trust(setting: Setting, room: dict[str, int]) -> Group:
    shown: list[Figure] = []
    notes, blind, left_out = [], [], []
    for label in setting.rules:
        run = next((run for run in setting.runs_of(label) if run.played), None)
        if run is None:
            continue
        cells = int((setting.results.clients["run"] == run.run).sum())
        if cells > room["cells"]:
            left_out.append(label)
            continue
        room["cells"] -= cells
        title = f"Trust map of {setting.name_of(run)}"
        figure = charts.trust_map(setting.results, run.run, title)
        if figure is None:
            blind.append(label)
        shown += _some(figure)
    if blind:
        notes.append(f"No client is weighed or judged by {listed(blind)}: there is no map.")
    if left_out:
        notes.append(
            f"The maps of {listed(left_out)} would make this page too large: report those runs "
            "one by one."
        )
    return Group("Whom each rule trusted", shown, notes)


def _sides(setting: Setting) -> Group:
    found = [
        charts.sides(setting.results, [run.run for run in setting.runs_of(label)], label, column)
        for label in setting.rules
        for column in ("weight", "score")
    ]
    return Group("Attackers and honest clients", _some(*found))


def _reliability(setting: Setting) -> Group:
    found = [
        charts.reliability(setting.results, [run.run for run in setting.runs_of(label)], label)
        for label in setting.rules
    ]
    group = Group("How far probabilities of attack can be believed", _some(*found))
    if group.figures:
        group.notes.append(
            "A calibrated rule's points lie on the dotted line; a larger disc is of more clients."
        )
    return group


def _clients(setting: Setting) -> Group:
    runs = [setting.runs_of(label)[0] for label in setting.rules]
    tables = [client_table(setting, run) for run in runs if run.played]
    found = [table for table in tables if table is not None]
    group = Group("Clients one by one", tables=found, is_folded=True)
    if any(table.more for table in found):
        group.notes.append("`fedimmune inspect RUN` shows all clients.")
    return group


def _traits(setting: Setting, room: dict[str, int]) -> Group:
    panels, notes = traits_of(setting.results, setting.runs, room["layers"])
    room["layers"] -= len({panel.layer for panel in panels})
    drawn = [charts.traits(one.cells, one.layer, one.label, one.reading) for one in panels]
    return Group("What the clients sent", drawn, notes)


def _counts_table(counts: pd.DataFrame, label: str) -> Table:
    headings = [Heading("who it was"), *(Heading(shortened(name, 30)) for name in counts)]
    rows = [
        (shortened(truth, 30), [Cell(str(n), n) if n else Cell("–") for n in row])
        for truth, row in zip(counts.index, counts.to_numpy().tolist(), strict=True)
    ]
    return Table(f"What clients looked most like, {label}", headings, rows)


def _partitions(results: Results) -> Group:
    known: dict[str, Any] = {}
    for run in rows_of(results.runs):
        data = results.partition[results.partition["run"] == run.run].drop(columns="run")
        if len(data):
            known.setdefault(data.to_csv(index=False), run)
    shown = list(known.values())[:_PARTITIONS]
    figures = _some(*(charts.partition(results, run.run) for run in shown))
    group = Group("How the data was divided", figures)
    if len(known) > 1:
        seeds = ", ".join(str(run.seed) for run in shown)
        group.notes.append(f"It differs between runs; seeds {seeds} are shown, in this order.")
    if not known:
        group.notes.append("Not known: the run folders have no partition.json.")
    return group


def _scenario(results: Results, run: Any) -> tuple[str, list[tuple[str, str]], list[str] | None]:
    """Return a run's name, the fields of its scenario, and the command that runs it again."""
    scenario = results.scenarios[run.run]
    # If nobody is known to be one, no client is called an attacker.
    attackers = "attackers" if run.knows_truth else "malicious clients expected"
    fields = [
        (name.replace("attackers", attackers), shortened(value, 300))
        for name, value in flat(scenario).items()
    ]
    played = bool((results.rounds["run"] == run.run).any())
    is_simulated = run.knows_truth or not played  # a simulation knows who attacks
    return run.run, fields, command_of(scenario, is_simulated=is_simulated)


# -------------------------------------------------------------------- HTML


def page_of(contents: Contents) -> str:
    """Write the page."""
    environment = Environment(
        loader=PackageLoader("fedimmune.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["data"] = _data
    scripts = [_library(), _read("script.js")]
    theme = charts.theme("currentColor", None) | {"aria": False}
    text = environment.get_template("report.html").render(
        contents=contents,
        version=__version__,
        theme=_json(theme),
        # All that is not escaped: nobody else wrote it.
        style=Markup(_read("style.css")),
        scripts=[Markup(script) for script in scripts],
        digests=[_digest(script) for script in scripts],
    )
    # A lone surrogate, which a title can smuggle in, cannot be written as UTF-8.
    return text.encode("utf-8", errors="replace").decode("utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, which loads nothing."""
    import vl_convert  # noqa: PLC0415 (large: only when a page is written)

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    if re.search(r"</script|<!--", bundle, re.IGNORECASE):
        raise InputError("the installed vl-convert-python has scripts that no page can hold")
    return f"/*\n{_read('LICENSES.txt')}*/\n{bundle}"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _data(figure: Figure) -> Markup:
    """Write a figure's specification, its tables packed by columns."""
    spec = figure.spec()
    spec["datasets"] = {name: _packed(rows) for name, rows in spec["datasets"].items()}
    return _json(spec)


def _packed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a table by columns, and words that repeat in a list of their own."""
    columns: dict[str, Any] = {}
    for name in rows[0] if rows else ():
        values = [_short(row[name]) for row in rows]
        if any(isinstance(value, str) for value in values):
            places = {value: place for place, value in enumerate(dict.fromkeys(values))}
            columns[name] = {"words": list(places), "places": [places[v] for v in values]}
        else:
            columns[name] = values
    return columns


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _json(value: Any) -> Markup:
    """Write JSON that cannot end the element it is in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _read(name: str) -> str:
    return (files("fedimmune.report") / "template" / name).read_text(encoding="utf-8")
