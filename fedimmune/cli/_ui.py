"""What commands share: where they print, and how they read ``--set NAME=VALUE``."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedimmune.errors import ParameterError
from fedimmune.untrusted import printable

if TYPE_CHECKING:
    from fedimmune.adaptive.description import Epoch

__all__ = [
    "Shown",
    "bar",
    "bars",
    "console",
    "counter",
    "in_ascii",
    "progress",
    "promises_table",
    "read_setting",
    "remarks",
    "say",
    "share",
    "showing_epochs",
    "shown_here",
    "validation_table",
]

_A_DAY = 24 * 3600.0
_UNLIMITED = 10_000
"""Columns of a table that goes to a file or a pipe: every row is one line, and nothing is cut."""


def console() -> Console:
    """Where results go: standard output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without β and █ gets a ? there
    found = _Plain()
    known = found.is_terminal or "COLUMNS" in os.environ
    return found if known else _Plain(width=_UNLIMITED)


def remarks(*, quiet: bool = False) -> Console:
    """Where progress and remarks go: standard error, or nowhere."""
    return _Plain(stderr=True, quiet=quiet)


class _Plain(Console):
    """A console that shows strangers' text as text: no control character and no markup of theirs.

    Clients name themselves, and files of strangers name attacks, tasks and layers.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(_plain(each) for each in objects), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # The last line of defense: bars, and whatever draws itself.
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _lines(text), style, control)


def _plain(shown: Any) -> Any:
    if isinstance(shown, str):
        return _lines(shown)
    if isinstance(shown, Text):
        return (
            shown if _lines(shown.plain) == shown.plain else Text(_lines(shown.plain), shown.style)
        )
    if isinstance(shown, Table):
        shown.title = _plain(_text(shown.title, "table.title")) if shown.title else None
        for column in shown.columns:
            column.header = _plain(_text(column.header))
            column._cells = [_plain(_text(cell)) for cell in column.cells]
    return shown


def _text(shown: Any, style: str = "") -> Any:
    return Text(shown, style) if isinstance(shown, str) else shown


def _lines(text: str) -> str:
    """Escape all but the ends of lines."""
    return text if text.isprintable() else "\n".join(printable(line) for line in text.split("\n"))


@contextmanager
def shown_here() -> Iterator[None]:
    """Keep warnings of rounds out of the log, for a command that shows them itself."""
    log = logging.getLogger("fedimmune.rounds")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def say(out: Console, words: str | Text) -> None:
    """Print a line as it is, however long it is."""
    line = printable(words) if isinstance(words, str) else words
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def in_ascii(text: str) -> str:
    """Give JSON without a character that a terminal would obey; it says the same."""
    return re.sub("[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)


def progress(out: Console, *columns: str | ProgressColumn, transient: bool = True) -> Progress:
    """Give bars that are shown on a terminal, unless it is to be quiet."""
    unseen = out.quiet or not out.is_terminal
    # Before 14.3, Rich ends a bar that it does not show with an empty line.
    shown_on = Console(quiet=True) if unseen else out
    return Progress(*columns, console=shown_on, transient=transient, disable=unseen)


def counter(out: Console, what: str) -> Progress:
    """Give a bar that counts things of which each takes its time, and stays when all are done."""
    bar = progress(
        out,
        TextColumn(what),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
        transient=False,
    )
    bar.speed_estimate_period = _A_DAY  # one may take longer than rich looks back
    return bar


def read_setting(text: str) -> tuple[str, Any]:
    """Read ``name=value``: numbers, lists, true and false as such, anything else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ParameterError(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value  # whoever uses it says what is wrong with it


@dataclass(frozen=True)
class Shown:
    """An answer.

    Parameters
    ----------
    facts
        For ``--json``.
    parts
        For people, in order: sentences, which are printed as they are, and tables.
    """

    facts: dict[str, Any]
    parts: Sequence[RenderableType]

    def show(self) -> None:
        """Print it for people."""
        out = console()
        for part in self.parts:
            if isinstance(part, str | Text):
                say(out, part)
            else:
                out.print(part)


_BAR = 24
"""Cells of the longest bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def validation_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Show how good a defense is on rehearsals that it was not trained on."""
    table = Table(title="On rehearsals kept apart", title_justify="left")
    for heading in ("attack", "attackers", "rounds"):
        table.add_column(heading, overflow="fold")
    for heading in (
        "weight on\nattackers",
        "honest\nkept",
        "just the\nhonest",
        "AUROC",
        "distance",
        "of the\nmean",
        "of the\nmedian",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row["attack"],
            f"{row['attackers']} of {row['clients']}",
            str(row["rounds"]),
            share(row["attacker_weight"]),
            share(row["benign_kept"]),
            share(row["exact"]),
            "–" if row["auroc"] is None else f"{row['auroc']:.3f}",
            *(
                "–" if row[name] is None else f"{row[name]:.3f}"
                for name in ("distance", "distance_of_mean", "distance_of_median")
            ),
        )
    return table


def promises_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Show how far scores are from perfect, and what that promises (docs/theory.md)."""
    table = Table(
        title="What the scores promise: the error is at most … lengths of the longest update",
        title_justify="left",
    )
    for heading in ("attack", "attackers"):
        table.add_column(heading, overflow="fold")
    for heading in (
        "score error ε′,\nhalf of rounds",
        "nine of ten\nrounds",
        "bound by ε′,\nhalf of rounds",
        "bound by spread,\nhalf of rounds",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row["attack"],
            f"{row['attackers']} of {row['clients']}",
            *(
                "–" if row.get(name) is None else f"{row[name]:.3f}"
                for name in ("score_error", "score_error_most", "bound", "bound_by_spread")
            ),
        )
    return table


def share(value: float | None) -> str:
    """Write a share, such as 98.1%."""
    return "–" if value is None else f"{value:.1%}"


def bars(title: str, heading: str, values: Mapping[str, float], most: int = 40) -> Table:
    """Show values as bars from 0, the largest first, each with its share of the sum.

    Parameters
    ----------
    title, heading
        Of the table and of its names.
    values
        By name.
    most
        So many at most; the others are one row.
    """
    table = Table(title=title, title_justify="left")
    table.add_column(heading, overflow="fold")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True, min_width=_BAR)
    whole = sum(values.values()) or 1.0
    ranked = sorted(values.items(), key=lambda pair: -pair[1])
    largest = ranked[0][1] if ranked and ranked[0][1] > 0 else 1.0
    for name, value in ranked[:most]:
        table.add_row(Text(name), share(value / whole), Text(bar(value / largest), "cyan"))
    rest = [value for _, value in ranked[most:]]
    if rest:
        table.add_row(Text(f"{len(rest)} others", "dim"), share(sum(rest) / whole))
    return table


def bar(length: float, cells: int = _BAR) -> str:
    """Draw a bar, of a length from 0 to 1 and so many cells at most."""
    eighths = round(8 * cells * min(max(length, 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


@contextmanager
def showing_epochs(notes: Console, total: int) -> Iterator[Callable[[Epoch], None]]:
    """Show a bar on a terminal; gives what is to be told of every epoch."""
    bar = progress(
        notes,
        TextColumn("epochs"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with bar:
        task = bar.add_task("", total=total)

        def tell(epoch: Epoch) -> None:
            losses = f"loss {epoch.training:.4f}, validation {epoch.validation:.4f}"
            bar.update(task, completed=epoch.number, description=losses)

        yield tell
