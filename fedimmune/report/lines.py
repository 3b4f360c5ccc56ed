"""Which lines are drawn of a setting: how good, how far the attack came, who was detected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedimmune.records import RoundRecord
from fedimmune.report.charts import LineChart, Series, Values
from fedimmune.report.grouping import Line, Setting
from fedimmune.report.measures import mean
from fedimmune.report.words import counted, percent
from fedimmune.results import ACCUSING

__all__ = ["detection_charts", "outcome_charts", "weight_charts"]

Quantity = Callable[[RoundRecord], float | None]


def outcome_charts(setting: Setting) -> list[LineChart]:
    """ACC, ASR and both at once, the oracle as the limit."""
    return _drawn(
        setting,
        [
            ("acc", "ACC: right on test samples", lambda r: r.accuracy),
            ("asr", "ASR: does what the attack wants", lambda r: r.asr),
            ("score", "ACC · (1 − ASR)", lambda r: r.accuracy_without_success),
        ],
    )


def detection_charts(setting: Setting) -> list[LineChart]:
    """Precision and recall of accusations; where no truth is known, how many were suspected."""
    if not setting.knows_truth:
        chart = _chart(setting, "suspected", "Suspected or rejected clients", _accused)
        if chart is None or not chart.top:
            return []
        return [chart]
    return _drawn(
        setting,
        [
            ("precision", "Precision: of the accused, who attack", lambda r: r.precision),
            ("recall", "Recall: of the attackers, who are accused", lambda r: r.recall),
        ],
    )


def weight_charts(setting: Setting) -> list[LineChart]:
    """Where the weight went: to attackers or, where they are not known, to a single client."""
    if not setting.knows_truth:
        chart = _chart(setting, "largest", "The largest weight of a single client", _largest)
        return [] if chart is None else [chart]
    chart = _chart(
        setting,
        "weight",
        "Weight on attackers",
        lambda r: r.attacker_weight,
        level=_fair_share(setting),
    )
    return [] if chart is None else [chart]


def _drawn(setting: Setting, wanted: Sequence[tuple[str, str, Quantity]]) -> list[LineChart]:
    charts = [_chart(setting, name, title, quantity) for name, title, quantity in wanted]
    return [chart for chart in charts if chart is not None]


def _chart(
    setting: Setting,
    name: str,
    title: str,
    quantity: Quantity,
    level: tuple[float, str] | None = None,
) -> LineChart | None:
    series = [_series(line, quantity) for line in setting.lines]
    known = [one for one in series if any(value is not None for value in one.values)]
    if not known:
        return None
    is_share = name != "suspected"
    highest = max(value for one in known for value in one.high or one.values if value is not None)
    return LineChart(
        name=name,
        title=title,
        reading=_reading(title, known, is_share),
        series=tuple(known),
        top=1.0 if is_share else highest,
        is_share=is_share,
        level=level,
    )


def _series(line: Line, quantity: Quantity) -> Series:
    by_run = [[quantity(record) for record in run.records] for run in line.runs]
    length = max((len(values) for values in by_run), default=0)
    by_round = [[run[i] for run in by_run if i < len(run)] for i in range(length)]
    values = tuple(mean(found) for found in by_round)
    if len(line.runs) == 1:
        return Series(line.label, line.style, values)
    return Series(line.label, line.style, values, _ends(by_round, min), _ends(by_round, max))


def _ends(by_round: list[list[float | None]], end: Callable[[list[float]], float]) -> Values:
    known = [[value for value in found if value is not None] for found in by_round]
    return tuple(end(found) if found else None for found in known)


def _reading(title: str, series: Sequence[Series], is_share: bool) -> str:
    length = max(len(one.values) for one in series)
    ends = []
    for one in series[:8]:
        number = max(i for i, value in enumerate(one.values, start=1) if value is not None)
        value = one.values[number - 1] or 0.0
        shown = percent(value) if is_share else counted(value, "client")
        when = "" if number == length else f" (round {number})"
        ends.append(f"{one.label} {shown}{when}")
    more = f", and {len(series) - 8} more" if len(series) > 8 else ""
    return f"{title.partition(':')[0]} in round {length}: {', '.join(ends)}{more}."


def _fair_share(setting: Setting) -> tuple[float, str] | None:
    run = setting.runs[0]
    clients, attackers = run.whole("clients"), run.whole("attackers")
    if not clients or not attackers or attackers > clients:
        return None
    return attackers / clients, "attackers' share among the clients"


def _accused(record: RoundRecord) -> float | None:
    return float(sum(client.verdict in ACCUSING for client in record.clients))


def _largest(record: RoundRecord) -> float | None:
    weights = [client.weight for client in record.clients if client.weight is not None]
    return max(weights, default=None)
