"""What a report holds, in order; the page and the figures for a paper both follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedimmune.report.charts import Chart, Grid
from fedimmune.report.client_tables import ClientTable, clients_of
from fedimmune.report.command import command_of
from fedimmune.report.confusion import Confusion, confusions_of
from fedimmune.report.defences import DefenceShown, defences_of
from fedimmune.report.grouping import Line, Setting, flat, settings_of
from fedimmune.report.lines import detection_charts, outcome_charts, weight_charts
from fedimmune.report.maps import partition_picture, time_chart, trust_map
from fedimmune.report.measures import line_figures
from fedimmune.report.reading import Run
from fedimmune.report.tables import Table, table_of
from fedimmune.report.traits import Traits, traits_of
from fedimmune.report.words import counted, listed, shortened, summary_of, unfinished, warnings_of

__all__ = ["Contents", "Group", "RunShown", "SettingShown", "contents_of"]

_MAP_CELLS = 60_000
"""More cells than that would make the page slow, and large."""
_PARTITIONS = 4
_TRAITS = 3
"""Pictures of updates are large; so many has a page at most."""


@dataclass
class Group:
    """Pictures or tables under one heading, and what is to be said about those that are missing."""

    title: str
    charts: Sequence[Chart]
    notes: list[str] = field(default_factory=list)
    tables: Sequence[Confusion] = ()
    clients: Sequence[ClientTable] = ()

    @property
    def is_wide(self) -> bool:
        """Whether its pictures need room."""
        return any(isinstance(chart, Grid | Traits) for chart in self.charts)


@dataclass(frozen=True)
class SettingShown:
    """A setting: what came of it in words, as a table and in pictures."""

    setting: Setting
    summary: list[str]
    notices: list[str]
    table: Table
    groups: list[Group]


@dataclass(frozen=True)
class RunShown:
    """A run: its scenario, and the command that runs it again."""

    run: Run
    fields: list[tuple[str, str]]
    command: list[str] | None


@dataclass(frozen=True)
class Contents:
    """Everything that a report holds."""

    title: str
    settings: list[SettingShown]
    partitions: Group
    defences: list[DefenceShown]
    runs: list[RunShown]


def contents_of(runs: Sequence[Run], title: str | None = None) -> Contents:
    """Gather what there is to show of runs."""
    settings = settings_of(runs)
    budget = _Budget(_MAP_CELLS)
    return Contents(
        title=title or _title(runs, settings),
        settings=[_shown(setting, budget) for setting in settings],
        partitions=_partitions(runs),
        defences=defences_of(runs),
        runs=[RunShown(run, _fields(run), command_of(run)) for run in runs],
    )


class _Budget:
    """Cells that maps may still have, and pictures of updates that there may still be."""

    def __init__(self, cells: int) -> None:
        self.left = cells
        self.traits = _TRAITS

    def allows(self, run: Run) -> bool:
        cells = len(run.clients) * len(run.records)
        if cells > self.left:
            return False
        self.left -= cells
        return True


def _title(runs: Sequence[Run], settings: Sequence[Setting]) -> str:
    if len(runs) == 1:
        return f"{runs[0].rule} · {settings[0].title}"
    if len(settings) == 1:
        return f"{counted(len(runs), 'run')} · {settings[0].title}"
    return f"{counted(len(runs), 'run')} in {counted(len(settings), 'setting')}"


def _shown(setting: Setting, budget: _Budget) -> SettingShown:
    notices = [notice for run in setting.runs if (notice := unfinished(run)) is not None]
    for line in setting.lines:
        found = [warnings_of(run, _run_label(line, run)) for run in line.runs]
        notices += [warning for warning in found if warning is not None]
    has_bands = any(len(line.runs) > 1 for line in setting.lines)
    outcome = Group("How good the model is", outcome_charts(setting))
    if has_bands:
        outcome.notes.append("Lines are means over seeds; bands reach from the least to the most.")
    times = time_chart(setting)
    groups = [
        outcome,
        _detection(setting),
        _trust(setting, budget),
        Group("What suspects looked like", [], tables=confusions_of(setting)),
        _clients(setting),
        _traits(setting, budget),
        Group("Where the time went", [] if times is None else [times]),
    ]
    return SettingShown(
        setting=setting,
        summary=summary_of(setting),
        notices=notices,
        table=table_of(setting),
        groups=[
            each for each in groups if each.charts or each.notes or each.tables or each.clients
        ],
    )


def _detection(setting: Setting) -> Group:
    charts = [*weight_charts(setting), *detection_charts(setting)]
    found = "detected" if setting.knows_truth else "suspected"
    group = Group(f"Where the weight went, and who was {found}", charts)
    silent = [
        line.label
        for line in setting.lines
        if line_figures(setting, line)["accused"].mean == 0 and not line.is_oracle
    ]
    if silent and any(run.attackers for run in setting.runs):
        group.notes.append(f"Nobody was ever accused by {listed(silent)}.")
    return group


def _trust(setting: Setting, budget: _Budget) -> Group:
    group = Group("Whom each rule trusted", [])
    charts: list[Chart] = []
    blind, left_out = [], []
    for line in setting.lines:
        run = next((run for run in line.runs if run.records), None)
        if run is None:
            continue
        if not budget.allows(run):
            left_out.append(line.label)
            continue
        picture = trust_map(line, run)
        if picture is None:
            blind.append(line.label)
        else:
            charts.append(picture)
    if blind:
        group.notes.append(f"No client is weighed or judged by {listed(blind)}: there is no map.")
    if left_out:
        group.notes.append(
            f"The maps of {listed(left_out)} would make this page too large: report those runs "
            "one by one."
        )
    group.charts = charts
    return group


def _run_label(line: Line, run: Run) -> str:
    return f"{line.label}, seed {run.seed}" if len(line.runs) > 1 else line.label


def _clients(setting: Setting) -> Group:
    group = Group("Clients one by one", [])
    runs = [(line, run) for line in setting.lines if (run := line.runs[0]).records]
    tables = [clients_of(_run_label(line, run), run) for line, run in runs]
    group.clients = [each for each in tables if each is not None]
    if any(each.left_out for each in group.clients):
        group.notes.append("`fedimmune inspect RUN` shows all clients.")
    return group


def _traits(setting: Setting, budget: _Budget) -> Group:
    charts, notes = traits_of(setting, budget.traits)
    budget.traits -= len(charts)
    return Group("What the clients sent", charts, notes)


def _partitions(runs: Sequence[Run]) -> Group:
    group = Group("How the data was divided", [])
    known: dict[object, Run] = {}
    for run in runs:
        if run.partition is not None:
            known.setdefault(run.partition, run)
    charts = [partition_picture(run) for run in list(known.values())[:_PARTITIONS]]
    group.charts = [chart for chart in charts if chart is not None]
    if len(known) > 1:
        seeds = ", ".join(str(run.seed) for run in list(known.values())[:_PARTITIONS])
        group.notes.append(f"Runs differ in it; shown are those of seeds {seeds}, in this order.")
    if not group.charts:
        group.notes.append(
            "Not known: the run folders have no partition.json, which earlier versions and real "
            "federations do not write."
        )
    return group


def _fields(run: Run) -> list[tuple[str, str]]:
    truth = run.knows_truth
    return [(_named(name, truth), shortened(value, 300)) for name, value in _flat(run.scenario)]


def _flat(scenario: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(flat(scenario).items())


def _named(name: str, truth: bool) -> str:
    # Where nobody is known to be one, no client is called an attacker.
    return name if truth else name.replace("attackers", "malicious clients reckoned with")
