"""Ctrl-C, SIGTERM, SIGHUP: one line that says what is kept, and a distinct exit code."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from fedimmune.untrusted import printable

__all__ = ["ANEW", "Stop", "heeding_signals", "is_stop", "on_stop", "say_stopped"]

ANEW = "no file is half-written, and the same command starts over"
"""What is kept by a command that keeps nothing until it is done."""
_AT_ONCE = 1.0
"""Seconds within which a second signal is the same one: `timeout` and some shells send two."""
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class _Heard:
    """The signal that was received, if any."""

    number: int | None = None


class Stop(KeyboardInterrupt):
    """A signal asks the program to end."""


@contextmanager
def heeding_signals() -> Iterator[None]:
    """Raise `Stop` on a signal, unless whoever started us had it ignored."""
    last = float("-inf")

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > _AT_ONCE:  # else tidying up would be cut off
            _Heard.number = number
            raise Stop

    # Not every system has SIGHUP, which a terminal sends when it is closed.
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in heeded]
    try:
        yield
    finally:
        _Heard.number = None
        for number, handler in zip(heeded, before, strict=True):
            signal.signal(number, handler)


def is_stop(error: BaseException) -> bool:
    """Whether an error is the result of a signal.

    It need not be `Stop`: an import may have turned that into another error, and worker processes
    get the signal too.
    """
    return isinstance(error, KeyboardInterrupt) or _Heard.number is not None


@contextmanager
def on_stop(kept: Callable[[], str] | str) -> Iterator[None]:
    """Add to a stop in this block what is kept, and how to resume."""
    try:
        yield
    except BaseException as error:
        if is_stop(error):
            error.add_note(kept if isinstance(kept, str) else kept())
        raise


def say_stopped(stop: BaseException) -> typer.Exit:
    """Report a stop in one line, and return the program's exit."""
    notes = "".join(f"; {note}" for note in getattr(stop, "__notes__", [])[-1:])
    typer.echo(printable(f"fedimmune: stopped{notes}"), err=True)
    return typer.Exit(128 + (_Heard.number or signal.SIGINT))
