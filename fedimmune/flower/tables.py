"""A round in a few lines of a log, and anybody's words on one."""

from __future__ import annotations

from collections import Counter

from fedimmune.records import ClientRecord, RoundRecord
from fedimmune.verdicts import Verdict

__all__ = ["one_line", "table_of"]

_MOST_TEXT = 200
_MOST_ROWS = 20
_ORDER = ("suspected", "rejected", "failed", "late", "reduced", "unused", "trusted")


def table_of(record: RoundRecord, rule: str) -> list[str]:
    """Give a line that sums a round up, and one for everybody who is not simply trusted.

    Parameters
    ----------
    record
        Of the round.
    rule
        Name of the rule.
    """
    counts = Counter(client.verdict for client in record.clients)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])
    head = f"{rule}, round {record.round}: {said or 'nobody was there'}"
    lines = [f"{head} ({record.seconds.aggregating:.2f} s)"]
    if record.error is not None:
        lines.append(f"  the model stays as it was: {one_line(record.error)}")
    lines += [f"  warning: {warning}" for warning in record.warnings]
    odd = [
        client for client in record.clients if client.verdict != Verdict.TRUSTED or client.reason
    ]
    odd.sort(key=lambda client: _ORDER.index(client.verdict))
    if record.error is not None:
        odd = [client for client in odd if client.verdict != Verdict.UNUSED]
    lines += [_row(client) for client in odd[:_MOST_ROWS]]
    if len(odd) > _MOST_ROWS:
        lines.append(f"  … and {len(odd) - _MOST_ROWS} more")
    return lines


def _row(client: ClientRecord) -> str:
    weight = "     –" if client.weight is None else f"{client.weight:6.4f}"
    return f"  {client.id!s:<20} {weight}  {client.verdict:<9}  {one_line(client.reason or '', 90)}"


def one_line(text: object, length: int = _MOST_TEXT) -> str:
    """Show anybody's words on one line: printable, and not too long."""
    words = " ".join(str(text)[: 4 * length].split())
    clean = "".join(letter if letter.isprintable() else "?" for letter in words)
    return clean if len(clean) <= length else clean[: length - 1] + "…"
