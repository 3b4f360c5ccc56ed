"""The command line: ``fedimmune simulate | rehearse | train | report | aggregate | rules | …``.

Results go to standard output, progress and remarks to standard error. PyTorch is imported by the
commands that need it, so that ``--help`` is quick.
"""

from fedimmune.cli import (
    aggregate,
    data,
    demo,
    inspect,
    list,  # noqa: A004
    patch,
    rehearse,
    report,
    simulate,
    train,
)
from fedimmune.cli.app import app, main

__all__ = [
    "aggregate",
    "app",
    "data",
    "demo",
    "inspect",
    "list",
    "main",
    "patch",
    "rehearse",
    "report",
    "simulate",
    "train",
]
