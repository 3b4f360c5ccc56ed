"""``fedimmune demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from fedimmune.cli.app import app
from fedimmune.cli.terminal import console

__all__ = ["demo"]


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Another round.")] = 1,
) -> None:
    """One round with three attackers among ten clients, aggregated by every rule side by side."""
    from fedimmune.demo import show

    show(console(), seed)
