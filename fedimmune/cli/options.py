"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "DataFolder", "Quiet"]

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where data sets are. [default: FEDIMMUNE_DATA, else a cache]",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the result alone: no progress, no remarks.")
]
