"""Tables about a defence that several commands show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

__all__ = ["bar", "bars", "promises_table", "share", "validation_table"]

_BAR = 24
"""Cells of the longest bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def validation_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Show how good a defence is on rehearsals that it was not trained on."""
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
