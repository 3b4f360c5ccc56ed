"""Durations, in words short enough for a table."""

from __future__ import annotations

__all__ = ["in_words"]

_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600


def in_words(seconds: float) -> str:
    """Say a duration by its two largest units at most: 40 s, 5 min, 2 h 10 min, 3 days."""
    if seconds < 1.5 * _MINUTE:
        return f"{max(1, round(seconds))} s"
    if seconds < 1.5 * _HOUR:
        return f"{round(seconds / _MINUTE)} min"
    if seconds < 2 * _DAY:
        hours, rest = divmod(round(seconds / _MINUTE / 10) * 10, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{round(seconds / _DAY)} days"
