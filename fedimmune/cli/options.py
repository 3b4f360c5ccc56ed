"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedimmune.cli.completion import STEPS, listed

__all__ = ["AsJson", "Before", "DataFolder", "Quiet", "Seed"]

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Folder of data sets. [default: FEDIMMUNE_DATA, else a cache]",
    ),
]

Before = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS",
        help="What happens to updates before the rule sees them, such as nnm,arc or "
        "'clip(at=2),nnm'.",
        autocompletion=listed(STEPS),
    ),
]

Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the result: no progress, no remarks.")
]
