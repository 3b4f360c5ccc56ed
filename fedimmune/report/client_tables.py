"""What became of each client over a run: one row per client."""

from __future__ import annotations

from dataclasses import dataclass

from fedimmune.inspecting import ClientHistory, histories_of
from fedimmune.report.reading import Run
from fedimmune.report.tables import TableCell
from fedimmune.report.words import LONGEST_ID, percent, shortened
from fedimmune.results import UNKNOWN, Verdict

__all__ = ["ClientTable", "clients_of"]

_MOST = 1000
"""So many clients are shown at most, those first that were accused most."""
_VERDICTS = (*map(str, Verdict), "failed", "late")


@dataclass(frozen=True)
class ClientTable:
    """The clients of one run.

    Parameters
    ----------
    label
        The rule.
    headings
        Names of the columns after the id.
    rows
        A client's id, and its cells.
    left_out
        How many clients are not shown.
    """

    label: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[TableCell, ...]], ...]
    left_out: int


def clients_of(label: str, run: Run) -> ClientTable | None:
    """Sum a run up by client; columns that nobody has anything in are left out."""
    found = histories_of(run.records)
    verdicts = [name for name in _VERDICTS if any(one.counts.get(name) for one in found)]
    if not set(verdicts) - {"trusted"} and all(one.weight is None for one in found):
        return None  # the rule judges nobody
    has_weights = any(one.weight is not None for one in found)
    has_suspects = any(one.suspected_since is not None for one in found)
    has_kinds = any(one.looks is not None for one in found)
    headings = (
        *(["attacks"] if run.knows_truth else []),
        "rounds",
        *verdicts,
        *(["mean weight"] if has_weights else []),
        *(["first suspected"] if has_suspects else []),
        *(["looks most like"] if has_kinds else []),
    )
    rows = []
    for one in found[:_MOST]:
        cells = [_yes(one.client in run.attackers)] if run.knows_truth else []
        cells += [_count(one.rounds), *(_count(one.counts.get(name, 0)) for name in verdicts)]
        cells += [TableCell(percent(one.weight), one.weight)] if has_weights else []
        cells += [_count(one.suspected_since or 0)] if has_suspects else []
        cells += [_kind(one)] if has_kinds else []
        rows.append((shortened(one.client, LONGEST_ID), tuple(cells)))
    return ClientTable(label, headings, tuple(rows), max(0, len(found) - _MOST))


def _yes(attacks: bool) -> TableCell:
    return TableCell("▲ yes" if attacks else "no", float(attacks))


def _count(count: int) -> TableCell:
    return TableCell(str(count), count) if count else TableCell("–")


def _kind(one: ClientHistory) -> TableCell:
    if one.looks is None:
        return TableCell("–")
    kind = "no rehearsed kind" if one.looks.kind == UNKNOWN else shortened(one.looks.kind, 30)
    return TableCell(f"{kind} ({one.looks.confidence:.0%})", one.looks.confidence)
