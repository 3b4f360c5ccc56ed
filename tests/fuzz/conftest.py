"""Counts of what became of the files that were tried, by kind."""

from __future__ import annotations

from collections import Counter
from typing import Any

COUNTS: dict[str, Counter[str]] = {}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for kind, counts in sorted(COUNTS.items()):
        tried = sum(counts.values())
        parts = ", ".join(
            f"{counts[what]:>6} {what}" for what in ("accepted", "refused", "crashed")
        )
        terminalreporter.write_line(f"{kind:<12}{tried:>7} files: {parts}")
