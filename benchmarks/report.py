"""The results as a table for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.rows import Row, bars
from benchmarks.timing import BUSY

__all__ = ["progress", "show"]

_BEGUN = perf_counter()
_WIDTH = 160
_HEADINGS = (
    *("rule", "n", "from", "threads", "seconds", "× mean", "bar", "× krum", "bar"),
    *("ByzFL × mean", "extra memory", "bar"),
)


def progress(text: str) -> None:
    """Say on stderr what is being done, and how many seconds into the run."""
    print(f"{perf_counter() - _BEGUN:6.1f} s  {text}", file=sys.stderr, flush=True)


def show(rows: Sequence[Row]) -> None:
    """Print all results, and how many bars hold."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(_table(rows))
    for line in _footnotes(rows):
        console.print(line, highlight=False)
    held = [bar for row in rows for bar in bars(row) if bar is not None]
    console.print(f"{sum(bar.holds for bar in held)} of {len(held)} bars hold.")


def _table(rows: Iterable[Row]) -> Table:
    table = Table()
    for index, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if index in (0, 2) else "right", no_wrap=True)
    group: tuple[int, str, int | None] | None = None
    for row in rows:
        if group not in (None, (row.n, row.source, row.threads)):
            table.add_section()
        group = (row.n, row.source, row.threads)
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    time, beside_krum, memory = bars(row)
    return (
        row.rule + ("*" if row.is_cut else ""),
        str(row.n),
        row.source,
        "–" if row.threads is None else str(row.threads),
        f"{row.seconds:.3f}",
        ("~ " if _is_disturbed(row) else "") + _times(row.times_mean),
        "–" if time is None else f"≤ {time.bar:g} {_verdict(time.holds)}",
        _times(row.times_krum),
        "–" if beside_krum is None else f"≤ {beside_krum.bar:g} {_verdict(beside_krum.holds)}",
        _times(row.peer_times_mean),
        _memory(row),
        "–" if memory is None else f"≤ {_memory_bar(row, memory.bar)} {_verdict(memory.holds)}",
    )


def _is_disturbed(row: Row) -> bool:
    return row.others is not None and row.others > BUSY


def _verdict(holds: bool) -> str:
    return "[green]ok[/]" if holds else "[red]missed[/]"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _memory(row: Row) -> str:
    if row.peak_rss_anon_bytes is not None:
        return f"{row.peak_rss_anon_bytes / 2**30:.2f} GiB in all"
    return "–" if row.extra_updates is None else f"{row.extra_updates:.2f} updates"


def _memory_bar(row: Row, bar: float) -> str:
    return f"{bar / 2**30:g} GiB" if row.source == "files" else f"{bar / (4 * row.columns):g}"


def _footnotes(rows: Sequence[Row]) -> list[str]:
    notes = []
    for n, columns in sorted({(row.n, row.columns) for row in rows if row.mean_seconds}):
        means = [
            row.mean_seconds
            for row in rows
            if (row.n, row.columns) == (n, columns) and row.mean_seconds is not None
        ]
        notes.append(
            f"The mean of {n} clients, {columns:,} columns: {1000 * median(means):.1f} ms."
        )
    if any(row.is_cut for row in rows):
        notes.append("* on fewer columns, against the mean of those; no bar for its memory.")
    if any(_is_disturbed(row) for row in rows):
        notes.append(f"~ other programs took more than {BUSY:.0%} of the machine meanwhile.")
    return notes
