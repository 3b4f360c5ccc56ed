"""Suspected of what: verdicts beside the truth, where a simulation knows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fedimmune.report.grouping import Line, Setting
from fedimmune.report.words import percent, shortened
from fedimmune.results import UNKNOWN, ClientResult

__all__ = ["Confusion", "confusions_of"]

_HONEST = "honest"


@dataclass(frozen=True)
class Confusion:
    """What clients looked most like, by what they were.

    Parameters
    ----------
    label
        The rule.
    columns
        What they can be taken for.
    rows
        What they were, and how many client-rounds fell to each column.
    kinds
        How many of the columns, after the first, are kinds of attack.
    """

    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    kinds: int

    @property
    def reading(self) -> str:
        """The table in a sentence."""
        parts = []
        for truth, counts in self.rows:
            total = sum(counts) or 1
            if truth == _HONEST:
                parts.append(f"{percent(counts[0] / total)} of the honest were trusted")
                continue
            named = self.columns[1 : self.kinds + 1]
            accused = sum(counts[1 : self.kinds + 1])
            if accused and truth in named:
                right = counts[self.columns.index(truth)]
                share = percent(right / accused)
                parts.append(f"{share} of the suspected attackers looked most like {truth}")
            elif accused and UNKNOWN in named:
                right = counts[self.columns.index(UNKNOWN)]
                parts.append(
                    f"{percent(right / accused)} of the suspected attackers looked like no kind "
                    "that was rehearsed"
                )
        return f"Of all clients in all rounds: {'; '.join(parts)}."


def confusions_of(setting: Setting) -> list[Confusion]:
    """Make a table for each rule that names kinds, where the truth is known."""
    if not setting.knows_truth:
        return []
    found = [_confusion(line) for line in setting.lines]
    return [each for each in found if each is not None]


def _confusion(line: Line) -> Confusion | None:
    counts: dict[str, Counter[str]] = {}
    kinds: set[str] = set()
    for run in line.runs:
        attack = run.choice("attack")[0] or "attacker"
        for client in (client for record in run.records for client in record.clients):
            truth = attack if client.is_attacker else _HONEST
            counts.setdefault(truth, Counter())[_taken_for(client)] += 1
            kinds |= {client.suspicion.kind} if client.suspicion else set()
    if not kinds:
        return None
    named = sorted(kinds - {UNKNOWN})
    other = sorted({taken for row in counts.values() for taken in row} - kinds - {"trusted"})
    columns = ("trusted", *named, UNKNOWN, *other)
    order = sorted(counts, key=lambda truth: (truth != _HONEST, truth))
    return Confusion(
        line.label,
        tuple(shortened(column, 30) for column in columns),
        tuple(
            (shortened(truth, 30), tuple(counts[truth][column] for column in columns))
            for truth in order
        ),
        len(named) + 1,
    )


def _taken_for(client: ClientResult) -> str:
    return client.suspicion.kind if client.suspicion else client.verdict
