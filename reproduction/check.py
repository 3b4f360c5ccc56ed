"""Published tables against published rows; run as ``python -m reproduction.check``.

Every table of the results' pages is made anew from ``docs/results/*.csv``, and a line that differs
is reported: page, line, what is published, what was recomputed. Pages of experiments are compared
from their first table on; tables of other pages are `reproduction.views`. A table of which nothing
is known is an error too, so that none can be added by hand unnoticed. ``--write`` puts the
recomputed lines of views in place; experiments are published again instead.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import typer

from fedimmune.errors import FedimmuneError
from fedimmune.io import write_text_atomically
from reproduction.experiments import Experiment
from reproduction.results import FINDING
from reproduction.studies import EXPERIMENTS
from reproduction.views import UNCHECKED, VIEWS, Place, Rows, cells_of

__all__ = ["Problem", "Table", "main", "pages", "problems", "tables_of"]

ROOT = Path(__file__).parents[1]
_PAGES = ("README.md", "docs/results.md", "docs/model-card.md", "docs/reproducibility.md")
_NOTHING = "(nothing)"
_MOST = 5
"""Differences of a page that are printed: a line too many moves all that follow."""


@dataclass(frozen=True)
class Problem:
    """A difference: where, what is published, and what the rows come to."""

    page: str
    line: int
    published: str
    recomputed: str

    def __str__(self) -> str:
        return (
            f"{self.page}:{self.line}\n  published:  {self.published}\n"
            f"  recomputed: {self.recomputed}"
        )


@dataclass(frozen=True)
class Table:
    """A table of a page: its place, the number of its first line, and its lines."""

    place: Place
    line: int
    lines: list[str]

    @property
    def numbered(self) -> list[tuple[int, str]]:
        """Its lines with their numbers, spaced evenly and without the line of dashes."""
        rows = [_row(cells) for cells in cells_of(self.lines)]
        return [(self.line + k + (k > 0), row) for k, row in enumerate(rows)]


def pages(root: Path) -> list[str]:
    """List the pages that are checked."""
    found = sorted((root / "docs" / "results").glob("*.md"))
    return [*_PAGES, *(page.relative_to(root).as_posix() for page in found)]


def tables_of(page: str, text: str) -> Iterator[Table]:
    """Read the tables of a page, in order; blocks of code have none."""
    heading, counts, fenced = "", dict[str, int](), False
    lines = [*text.splitlines(), ""]
    begun: int | None = None
    for k, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        if begun is not None and not line.startswith("|"):
            counts[heading] = counts.get(heading, 0) + 1
            yield Table(Place(page, heading, counts[heading]), begun + 1, lines[begun:k])
            begun = None
        if fenced:
            continue
        if title := re.match(r"#+ +(.*?) *$", line):
            heading = title[1]
        elif line.startswith("|") and begun is None:
            begun = k


# -------------------------------------------------------------------- comparing


def problems(root: Path = ROOT) -> list[Problem]:
    """Compare all pages with the rows, and list the differences."""
    rows = Rows(root / "docs" / "results")
    found: list[Problem] = []
    for page in pages(root):
        text = (root / page).read_text(encoding="utf-8")
        experiment = EXPERIMENTS.get(Path(page).stem) if page.startswith("docs/results/") else None
        if experiment is not None:
            found += _of_experiment(experiment, page, text, rows)
            text = "\n".join(line for _, line in _lines(text, within=True))
        tables = list(tables_of(page, text))
        for table in tables:
            found += _of_table(table, rows)
        for place in (VIEWS.keys() | UNCHECKED.keys()) - {table.place for table in tables}:
            if place.page == page:
                found.append(Problem(page, 1, _NOTHING, f"{place} is not there"))
    return found


def _lines(text: str, *, within: bool) -> list[tuple[int, str]]:
    """List numbered lines; empty ones for those within the finding, or for all others."""
    finding = FINDING.search(text)
    begin, end = finding.span() if finding else (0, 0)
    found, place = [], 0
    for number, line in enumerate(text.splitlines(), start=1):
        inside = begin <= place < end
        found.append((number, line if inside == within or line.startswith("# ") else ""))
        place += len(line) + 1
    return found


def _of_experiment(experiment: Experiment, page: str, text: str, rows: Rows) -> Iterator[Problem]:
    """Compare everything from the first table's heading on, words too, except pictures."""
    published = [each for each in _lines(text, within=False) if each[1]]
    published = [(number, line) for number, line in published if not line.startswith("![")]
    marks = (k for k, (_, line) in enumerate(published) if line.startswith(("## ", "| ")))
    try:
        made = experiment.markdown(rows.read(experiment.id))
    except FedimmuneError as error:
        yield Problem(page, 1, "its tables", str(error))
        return
    yield from _compared(page, published[next(marks, len(published)) :], made.splitlines())


def _of_table(table: Table, rows: Rows) -> Iterator[Problem]:
    if table.place in UNCHECKED:
        return
    if table.place not in VIEWS:
        yield Problem(
            table.place.page,
            table.line,
            str(table.place),
            "no rows are known for it: add a view of published rows to reproduction/views.py, or "
            "list it as unchecked there, with the reason",
        )
        return
    try:
        made = VIEWS[table.place].make(rows, cells_of(table.lines))
    except (FedimmuneError, LookupError, ValueError) as error:
        yield Problem(table.place.page, table.line, str(table.place), repr(error))
        return
    yield from _compared(table.place.page, table.numbered, map(_row, made))


def _compared(
    page: str, published: Sequence[tuple[int, str]], made: Iterable[str]
) -> Iterator[Problem]:
    last = published[-1][0] if published else 1
    for each, line in zip_longest(published, (line for line in made if line)):
        number, shown = each or (last, _NOTHING)
        if shown != line:
            yield Problem(page, number, shown, line or _NOTHING)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# -------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> None:
    """Check the pages; differences are printed, and are exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.check", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="a clone of the repository")
    parser.add_argument("--write", action="store_true", help="put what is recomputed in place")
    given = parser.parse_args(arguments)
    if given.write:
        _write(given.root)
    found = problems(given.root)
    for page in pages(given.root):
        own = [each for each in found if each.page == page]
        for each in own[:_MOST]:
            typer.echo(each)
        if own[_MOST:]:
            typer.echo(f"{page}: {len(own) - _MOST} more")
    if found:
        raise SystemExit(f"{len(found)} published lines differ from the rows")
    seen = [each for page in pages(given.root) for each in _tables_in(given.root, page)]
    unchecked = [each.place for each in seen if each.place in UNCHECKED]
    typer.echo(f"{len(seen) - len(unchecked)} tables are what their rows come to")
    typer.echo(f"{len(unchecked)} have no rows in the repository:")
    for place in unchecked:
        typer.echo(f"  {place}: {UNCHECKED[place]}")


def _tables_in(root: Path, page: str) -> list[Table]:
    return list(tables_of(page, (root / page).read_text(encoding="utf-8")))


def _write(root: Path) -> None:
    """Replace the lines of views, from the last on: line numbers before it stay true."""
    rows = Rows(root / "docs" / "results")
    for page in pages(root):
        tables = [table for table in _tables_in(root, page) if table.place in VIEWS]
        lines = (root / page).read_text(encoding="utf-8").splitlines()
        before = list(lines)
        for table in reversed(tables):
            head, *made = map(_row, VIEWS[table.place].make(rows, cells_of(table.lines)))
            begin, end = table.line - 1, table.line - 1 + len(table.lines)
            if [_row(cells) for cells in cells_of(table.lines)] != [head, *made]:
                dashes = table.lines[1]
                if dashes.count("|") != head.count("|"):
                    dashes = "|" + "---|" * (head.count("|") - 1)
                lines[begin:end] = [head, dashes, *made]
        if lines != before:
            write_text_atomically("\n".join(lines) + "\n", root / page)


if __name__ == "__main__":
    main()
