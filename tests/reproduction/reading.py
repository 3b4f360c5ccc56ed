"""Tables in Markdown, read back."""

from __future__ import annotations

__all__ = ["Parsed", "parsed"]

Parsed = dict[str, dict[str, dict[str, str]]]
"""Cells, by heading, label and column; the paper's are under ``paper`` and the column before."""


def parsed(text: str) -> Parsed:
    found: Parsed = {}
    heading, head = "", list[str]()
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:].replace("\\", "")
            found[heading] = {}
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(cells[0]) <= {":", "-"}:
            head = head if line.startswith("|") else []
        elif not head:
            head = cells
            head = [c if c != "paper" else f"paper {head[i - 1]}" for i, c in enumerate(head)]
        else:
            assert len(cells) == len(head)
            found[heading].setdefault(cells[0], {}).update(zip(head[1:], cells[1:], strict=True))
    return found
