"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataFolder"]

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where data sets are. [default: FEDIMMUNE_DATA, else a cache]",
    ),
]
