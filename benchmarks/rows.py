"""One line of the results, the bars that it is held against, and the file that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.resnet18 import resnet18, size
from fedimmune import rules

__all__ = ["Bar", "Row", "bars", "is_compared_with_krum", "time_bar", "write"]

_WHOLE = size(resnet18())
_TIME_BARS = {
    "krum": 2.5,
    "multi-krum": 2.5,
    "geometric-median": 2.5,
    "foolsgold": 2.5,
    "fltrust": 2.5,
    "dnc": 2.5,
    "median": 2.5,
    "trimmed-mean": 2.5,
    "residual": 40.0,
    "adaptive": 3.0,
}
_RESIDUAL_OF_MANY = 200.0
"""The bar of rule `residual` on 50 clients, which takes n² slopes in every column."""
_WIDER_FOR_INNER_PRODUCTS = 1.3
"""Rules that look at inner products and have no bar of their own: so many times Krum's bar, and so
many times what Krum takes in the same run."""
_WIDER_FOR_STATES = 0.5
"""How much is added to the bar where clients send state dicts."""
_UPDATES_BAR = 2
_FILES_BAR = 3 * 2**29


@dataclass(frozen=True)
class Row:
    """What was measured of one rule, number of clients and source.

    Parameters
    ----------
    rule, n, source
        What was measured: from one "matrix", from "state_dicts" or from "files".
    columns
        How many values one update had.
    times_mean, seconds, mean_seconds
        Time as a multiple of ``X.mean(0)``, and what each took; medians.
    bar
        What `times_mean` should not be above.
    times_krum, krum_bar
        Time as a multiple of Krum's on the same round, for rules that look at inner products, and
        what it should not be above.
    others
        The share of the machine that other programs took meanwhile; None where it is unknown.
    threads
        How many of PyTorch's threads computed.
    extra_bytes, extra_updates
        Memory of one call beside the updates at its peak, in bytes and in updates.
    peer, peer_times_mean
        The same rule of another library, on the same tensor.
    peak_rss_anon_bytes
        From files: the process' highest RssAnon.
    memory_bar
        What `extra_bytes` (from files: `peak_rss_anon_bytes`) should not be above. None for
        fewer columns than the model has: buffers of a fixed size would weigh too much.
    """

    rule: str
    n: int
    source: str
    columns: int
    seconds: float
    times_mean: float | None = None
    mean_seconds: float | None = None
    bar: float | None = None
    times_krum: float | None = None
    others: float | None = None
    threads: int | None = None
    extra_bytes: int | None = None
    peer: str | None = None
    peer_times_mean: float | None = None
    peak_rss_anon_bytes: int | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the updates were only a part of the model's."""
        return self.columns < _WHOLE

    @property
    def extra_updates(self) -> float | None:
        """The extra memory in updates."""
        return None if self.extra_bytes is None else self.extra_bytes / (4 * self.columns)

    @property
    def krum_bar(self) -> float | None:
        """The bar of the time as a multiple of Krum's; None for rules with a bar of their own."""
        has_bar = self.times_krum is not None and self.rule not in _TIME_BARS
        return _WIDER_FOR_INNER_PRODUCTS if has_bar else None

    @property
    def memory_bar(self) -> int | None:
        """The bar of the memory, in bytes."""
        if self.source == "files":
            return _FILES_BAR
        return None if self.is_cut else _UPDATES_BAR * 4 * self.columns

    def as_json(self) -> dict[str, Any]:
        """Give all of it as plain values."""
        return asdict(self) | {
            "krum_bar": self.krum_bar,
            "extra_updates": self.extra_updates,
            "memory_bar": self.memory_bar,
        }


@dataclass(frozen=True)
class Bar:
    """A measured value and what it should not be above."""

    value: float
    bar: float

    @property
    def holds(self) -> bool:
        """Whether it is not."""
        return self.value <= self.bar


def time_bar(rule: str, n: int, source: str) -> float | None:
    """Return the bar of a rule's time as a multiple of the mean's; None where there is none."""
    bar = _TIME_BARS.get(rule)
    if bar is None and is_compared_with_krum(rule, n):
        bar = _WIDER_FOR_INNER_PRODUCTS * _TIME_BARS["krum"]
    if bar is None or not (n == 10 or (n == 50 and rule == "residual")):
        return None
    bar = bar if n == 10 else _RESIDUAL_OF_MANY
    return bar + _WIDER_FOR_STATES if source == "state_dicts" else bar


def is_compared_with_krum(rule: str, n: int) -> bool:
    """Whether a rule is timed beside Krum: those that look at inner products, on 10 clients."""
    return n == 10 and rule != "krum" and issubclass(rules.find(rule), rules.GeometryRule)


def bars(row: Row) -> tuple[Bar | None, Bar | None, Bar | None]:
    """Return the bars of a row: time, time beside Krum, and memory."""
    memory = row.peak_rss_anon_bytes if row.source == "files" else row.extra_bytes
    beside_krum = _bar(row.times_krum, row.krum_bar)
    return _bar(row.times_mean, row.bar), beside_krum, _bar(memory, row.memory_bar)


def _bar(value: float | None, bar: float | None) -> Bar | None:
    return None if value is None or bar is None else Bar(value, bar)


def write(rows: Iterable[Row], path: Path) -> None:
    """Write rows as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed: Sequence[dict[str, Any]] = [row.as_json() for row in rows]
    path.write_text(json.dumps(listed, indent=1) + "\n")
