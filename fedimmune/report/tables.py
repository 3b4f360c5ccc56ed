"""The summary table: one row a rule, to be sorted by any column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedimmune.report.grouping import Line, Setting
from fedimmune.report.measures import Measured, line_figures
from fedimmune.report.words import percent, points

__all__ = ["Heading", "Table", "TableCell", "table_of"]

Format = Callable[[float | None], str]


@dataclass(frozen=True)
class Heading:
    """A column's name, and what it means."""

    text: str
    meaning: str


@dataclass(frozen=True)
class TableCell:
    """A cell as it is shown, and as it is sorted; None comes last."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows of a rule's name and its figures."""

    headings: list[Heading]
    rows: list[tuple[Line, list[TableCell]]]


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}".removesuffix(".0")


_ANY = (
    ("accuracy", Heading("ACC", "share of the test samples that are classified rightly"), percent),
    ("asr", Heading("ASR", "share of attacked samples classified as the attack wants"), percent),
    ("score", Heading("ACC · (1 − ASR)", "both at once: the higher, the better"), percent),
)
_WITH_TRUTH = (
    *_ANY,
    (
        "attacker_weight",
        Heading("weight on attackers", "share of the weight, mean over rounds"),
        percent,
    ),
    (
        "over_half",
        Heading("rounds over half", "rounds in which attackers had more than half of the weight"),
        _count,
    ),
    (
        "honest_kept",
        Heading("honest clients kept", "share of the honest clients that had a weight"),
        percent,
    ),
    (
        "behind_oracle",
        Heading("behind the oracle", "percentage points of ACC · (1 − ASR), or of ACC without ASR"),
        points,
    ),
    (
        "distance",
        Heading("distance to the robust mean", "relative to its length, mean over rounds"),
        _plain,
    ),
)
_FAILED = ("failed_rounds", Heading("failed rounds", "in which the model stayed as it was"), _count)
_WITHOUT_TRUTH = (
    *_ANY,
    (
        "accused",
        Heading("suspected a round", "clients that were suspected or rejected, on average"),
        _count,
    ),
)


def table_of(setting: Setting) -> Table:
    """Make the table; columns that nobody has a figure in are left out."""
    figures = [line_figures(setting, line) for line in setting.lines]
    kinds: Sequence[tuple[str, Heading, Format]] = (
        _WITH_TRUTH if setting.knows_truth else _WITHOUT_TRUTH
    )
    shown = [kind for kind in kinds if any(found[kind[0]].mean is not None for found in figures)]
    if any(found["failed_rounds"].mean for found in figures):
        shown.append(_FAILED)
    if len({found["rounds"].mean for found in figures}) > 1:
        shown.append(("rounds", Heading("rounds", "that were played"), _count))
    headings = [heading for _, heading, _ in shown]
    has_seeds = any(len(line.runs) > 1 for line in setting.lines)
    rows = []
    for line, found in zip(setting.lines, figures, strict=True):
        cells = [_cell(found[name], write) for name, _, write in shown]
        if has_seeds:
            cells.append(TableCell(str(len(line.runs)), len(line.runs)))
        rows.append((line, cells))
    if has_seeds:
        headings.append(Heading("seeds", "runs; figures are their mean ± standard deviation"))
    return Table(headings, rows)


def _cell(found: Measured, write: Format) -> TableCell:
    text = write(found.mean)
    if found.mean is not None and found.spread:
        text += f" ± {write(found.spread).removesuffix('%')}"
    return TableCell(text, found.mean)
