"""What commands share: consoles, bars, tables, and reading ``--set NAME=VALUE``."""

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
    "counted",
    "counter",
    "decimals",
    "in_ascii",
    "make_table",
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
"""Width of a table in a file or a pipe: every row is one line, and nothing is cut."""


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
        text = _lines(shown.plain)
        return shown if text == shown.plain else Text(text, shown.style)
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
    """Keep warnings about rounds out of the log, for a command that shows them itself."""
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
    """Escape JSON so that a terminal obeys no character of it; it means the same."""
    return re.sub("[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)


def progress(out: Console, *columns: str | ProgressColumn, transient: bool = True) -> Progress:
    """Make bars that are shown on a terminal, unless it is to be quiet."""
    unseen = out.quiet or not out.is_terminal
    # Before 14.3, Rich ends a bar that it does not show with an empty line.
    shown_on = Console(quiet=True) if unseen else out
    return Progress(*columns, console=shown_on, transient=transient, disable=unseen)


def counter(out: Console, what: str, *, transient: bool = False) -> Progress:
    """Make a bar that counts slow things, with a description of the latest behind it."""
    bar = progress(
        out,
        TextColumn(what),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
        transient=transient,
    )
    bar.speed_estimate_period = _A_DAY  # one thing may take longer than Rich looks back
    return bar


@contextmanager
def showing_epochs(notes: Console, total: int) -> Iterator[Callable[[Epoch], None]]:
    """Show training on a terminal; yields the function to call after every epoch."""
    with counter(notes, "epochs", transient=True) as bar:
        task = bar.add_task("", total=total)

        def tell(epoch: Epoch) -> None:
            losses = f"loss {epoch.training:.4f}, validation {epoch.validation:.4f}"
            bar.update(task, completed=epoch.number, description=losses)

        yield tell


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
    """An answer: `facts` for ``--json``, and sentences and tables for people."""

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


def make_table(
    title: str | None, texts: Iterable[str], numbers: Iterable[str], **options: Any
) -> Table:
    """Make a table with columns of text, then columns of numbers; more may be added."""
    table = Table(title=title, title_justify="left", **options)
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def validation_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Show how good a defense is on rehearsals that it was not trained on."""
    shares = {
        "attacker_weight": "weight on\nattackers",
        "benign_kept": "honest\nkept",
        "exact": "rounds\nall right",
    }
    numbers = {
        "auroc": "AUROC",
        "distance": "distance",
        "distance_of_mean": "of the\nmean",
        "distance_of_median": "of the\nmedian",
    }
    table = make_table(
        "On held-out rehearsals",
        ("attack", "attackers", "rounds"),
        (*shares.values(), *numbers.values()),
    )
    for row in rows:
        table.add_row(
            row["attack"],
            f"{row['attackers']} of {row['clients']}",
            str(row["rounds"]),
            *(share(row[name]) for name in shares),
            *(decimals(row.get(name)) for name in numbers),
        )
    return table


def promises_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Show how far scores are from perfect, and what that promises (docs/theory.md)."""
    numbers = {
        "score_error": "score error ε′,\nhalf of rounds",
        "score_error_most": "nine of ten\nrounds",
        "bound": "bound by ε′,\nhalf of rounds",
        "bound_by_spread": "bound by spread,\nhalf of rounds",
    }
    title = "What the scores promise: the error is at most … lengths of the longest update"
    table = make_table(title, ("attack", "attackers"), numbers.values())
    for row in rows:
        values = (decimals(row.get(name)) for name in numbers)
        table.add_row(row["attack"], f"{row['attackers']} of {row['clients']}", *values)
    return table


def share(value: float | None) -> str:
    """Write a share, such as 98.1%."""
    return "–" if value is None else f"{value:.1%}"


def decimals(value: float | None) -> str:
    """Write a number with three decimals."""
    return "–" if value is None else f"{value:.3f}"


def counted(count: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def bars(title: str, heading: str, values: Mapping[str, float], most: int = 40) -> Table:
    """Show values as bars from 0, the largest first, each with its share of the sum.

    Only `most` have a row each; the others share one.
    """
    table = make_table(title, (heading,), ("share",))
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
    """Draw a bar; its length is from 0 to 1, of at most that many cells."""
    eighths = round(8 * cells * min(max(length, 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
