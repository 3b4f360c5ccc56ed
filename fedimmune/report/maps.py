"""Trust maps, partitions and times: which pictures there are of single runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedimmune.records import ClientData
from fedimmune.report.charts import BarChart, Bubbles, Cell, Column, Grid, Row
from fedimmune.report.grouping import Line, Setting
from fedimmune.report.measures import mean
from fedimmune.report.reading import Run
from fedimmune.report.words import LONGEST_ID, counted, percent, shortened
from fedimmune.results import ClientResult

__all__ = ["MARK", "partition_picture", "time_chart", "trust_map"]

MARK = "attacks"
"""What is said of a client that is known to."""

_BUBBLES = 30
"""Beyond that many clients or classes, discs are too small, and colours are shown instead."""
_PHASES = ("training", "aggregating", "measuring", "testing")


def trust_map(line: Line, run: Run) -> Grid | None:
    """Clients by rounds, the weight as colour; None where the rule judges nobody."""
    records = run.records
    seen = [client for record in records for client in record.clients]
    if all(client.weight is None and client.verdict == "trusted" for client in seen):
        return None
    by_round = [{client.client: client for client in record.clients} for record in records]
    rows = tuple(
        Row(
            label=shortened(client, LONGEST_ID),
            cells=tuple(_cell(found.get(client)) for found in by_round),
            marked=client in run.attackers,
        )
        for client in run.clients
    )
    seed = f", seed {run.seed}" if len(line.runs) > 1 else ""
    weights = [value for row in rows for value in row.values if value is not None]
    return Grid(
        name="trust",
        title=f"Trust map of {line.label}{seed}",
        reading=_map_reading(line.label, run, rows),
        rows=rows,
        columns=tuple(
            Column(str(record.round), note=shortened("; ".join(record.warnings)))
            for record in records
        ),
        row_word="client",
        column_word="round",
        top=max(weights, default=0.0) or 1.0,
        is_share=True,
        mark_word=MARK if run.knows_truth else "",
    )


def partition_picture(run: Run) -> Bubbles | Grid | None:
    """Classes by clients, as the run's data was divided; None where that is not known."""
    clients = run.partition
    if not clients:
        return None
    classes = max(len(client.samples) for client in clients)
    columns = tuple(Column(shortened(c.client, LONGEST_ID), bool(c.is_attacker)) for c in clients)
    counts = tuple(
        tuple(c.samples[k] if k < len(c.samples) else 0 for c in clients) for k in range(classes)
    )
    word = MARK if run.knows_truth else ""
    title, reading = "Samples by class and client", _partition_reading(run, clients, classes)
    if len(clients) <= _BUBBLES and classes <= _BUBBLES:
        return Bubbles("partition", title, reading, columns, counts, word)
    rows = tuple(
        Row(str(k), tuple(Cell(float(count)) for count in row)) for k, row in enumerate(counts)
    )
    top = float(max((max(row) for row in counts if row), default=1)) or 1.0
    return Grid("partition", title, reading, rows, columns, "class", "client", top, False, word)


def time_chart(setting: Setting) -> BarChart | None:
    """Seconds a round by phase, one bar a rule."""
    rows = [
        (line.label, tuple(mean(times) or 0.0 for times in _times(line)))
        for line in setting.lines
        if any(run.records for run in line.runs)
    ]
    if not any(seconds for _, values in rows for seconds in values):
        return None
    totals = [f"{label} {sum(values):.2g} s" for label, values in rows[:8]]
    aggregating = _PHASES.index("aggregating")
    most = max(values[aggregating] / (sum(values) or 1) for _, values in rows)
    reading = (
        f"A round takes on average: {', '.join(totals)}. Aggregating is at most "
        f"{percent(most)} of it."
    )
    return BarChart("time", "Time by phase, a round", reading, _PHASES, tuple(rows), "s")


def _times(line: Line) -> list[list[float]]:
    seconds = [record.seconds for run in line.runs for record in run.records]
    return [[getattr(one, phase) for one in seconds] for phase in _PHASES]


def _cell(client: ClientResult | None) -> Cell | None:
    if client is None:
        return None
    return Cell(client.weight, shortened(client.verdict, 20), shortened(client.reason))


def _map_reading(label: str, run: Run, rows: Sequence[Row]) -> str:
    what = f"{counted(len(rows), 'client')} by {counted(len(run.records), 'round')}"
    averages = [(mean(row.values) or 0.0, row) for row in rows]
    if not any(value is not None for row in rows for value in row.values):
        return f"{what}: {label} gives no weights; marks show whom it did not trust."
    if run.attackers:
        marked = mean(average for average, row in averages if row.marked)
        others = mean(average for average, row in averages if not row.marked)
        return (
            f"{what}: an attacker had {percent(marked)} of the weight on average, an honest client "
            f"{percent(others)}."
        )
    least = min(averages, key=lambda pair: pair[0])
    most = max(averages, key=lambda pair: pair[0])
    return (
        f"{what}: client {most[1].label} had the most weight on average ({percent(most[0])}), "
        f"client {least[1].label} the least ({percent(least[0])})."
    )


def _partition_reading(run: Run, clients: Sequence[ClientData], classes: int) -> str:
    sizes = [sum(client.samples) for client in clients]
    name, parameters = run.choice("partition")
    how = f" ({', '.join([name, *(f'{k} = {v}' for k, v in parameters.items())])})" if name else ""
    marked = [shortened(client.client, LONGEST_ID) for client in clients if client.is_attacker]
    who = f" Attackers are {', '.join(marked)}." if 0 < len(marked) <= 20 else ""
    return (
        f"{counted(sum(sizes), 'sample')} of {classes} classes among "
        f"{counted(len(clients), 'client')}{how}; the smallest has {min(sizes)}, the largest "
        f"{max(sizes)}.{who}"
    )
