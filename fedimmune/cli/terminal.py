"""What commands share: where they print, and how they read ``--set NAME=VALUE``."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

from rich.console import Console

from fedimmune.errors import ParameterError

__all__ = ["console", "read_setting", "remarks"]

_WIDE = 140
"""Columns of a table that goes to a file or a pipe, where nothing tells the width."""


def console() -> Console:
    """Where results go: standard output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without β and █ gets a ? there
    found = Console()
    known = found.is_terminal or "COLUMNS" in os.environ
    return found if known else Console(width=_WIDE)


def remarks() -> Console:
    """Where progress and remarks go: standard error."""
    return Console(stderr=True)


def read_setting(text: str) -> tuple[str, Any]:
    """Read ``name=value``: numbers, lists, true and false as such, anything else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ParameterError(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value  # whoever uses it says what is wrong with it
