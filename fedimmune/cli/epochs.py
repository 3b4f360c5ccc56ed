"""How training goes, epoch by epoch, with the time that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from fedimmune.cli.terminal import progress

if TYPE_CHECKING:
    from fedimmune.adaptive.description import Epoch

__all__ = ["showing_epochs"]


@contextmanager
def showing_epochs(notes: Console, total: int) -> Iterator[Callable[[Epoch], None]]:
    """Show a bar on a terminal; gives what is to be told of every epoch."""
    bar = progress(
        notes,
        TextColumn("epochs"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with bar:
        task = bar.add_task("", total=total)

        def tell(epoch: Epoch) -> None:
            losses = f"loss {epoch.training:.4f}, validation {epoch.validation:.4f}"
            bar.update(task, completed=epoch.number, description=losses)

        yield tell
