"""What `inspect` has to show: one thing, as plain facts for programs and in pictures for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from fedimmune.cli.terminal import console, say

__all__ = ["Shown"]


@dataclass(frozen=True)
class Shown:
    """An answer.

    Parameters
    ----------
    facts
        For ``--json``.
    parts
        For people, in order: sentences, which are printed as they are, and tables.
    """

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
