"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "DataFolder", "Quiet", "Seed"]

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Folder of data sets. [default: FEDIMMUNE_DATA, else a cache]",
    ),
]

Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the result: no progress, no remarks.")
]
