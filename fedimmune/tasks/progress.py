"""Progress on the terminal, for what takes minutes; nothing where nobody is looking."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["Bar", "terminal", "tracked", "unwatched"]

T = TypeVar("T")
_UNWATCHED = ContextVar("unwatched", default=False)


@contextmanager
def unwatched(wanted: bool = True) -> Iterator[None]:
    """Show nothing meanwhile, where that is wanted."""
    before = _UNWATCHED.set(wanted or _UNWATCHED.get())
    try:
        yield
    finally:
        _UNWATCHED.reset(before)


def terminal() -> bool:
    """Say whether somebody is looking: stderr is a terminal."""
    return not _UNWATCHED.get() and sys.stderr is not None and sys.stderr.isatty()


def tracked(items: Sequence[T], words: str) -> Iterator[T]:
    """Give the items one by one, with a bar on stderr where that is a terminal."""
    if not terminal():
        yield from items
        return
    from rich.console import Console  # noqa: PLC0415 (slow to import)
    from rich.progress import track  # noqa: PLC0415

    yield from track(items, words, console=Console(stderr=True), transient=True)


class Bar:
    """A bar of bytes on stderr, in the form that pooch asks for (tqdm's).

    Parameters
    ----------
    words
        What is being done.
    """

    def __init__(self, words: str) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        self.total = 0  # set by pooch, once it knows
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(words, total=None)
        self._progress.start()

    def update(self, count: int) -> None:
        """Count bytes that have come."""
        self._progress.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        """Begin to count again."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
