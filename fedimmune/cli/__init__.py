"""The command line: ``fedimmune simulate | record | train | report | aggregate | rules | …``.

Results go to standard output, progress and remarks to standard error. PyTorch is imported by the
commands that need it, so that ``--help`` is quick.
"""

from fedimmune.cli import (  # each adds its commands
    aggregate,
    data,
    demo,
    inspect,
    lists,
    patch,
    record,
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
    "lists",
    "main",
    "patch",
    "record",
    "report",
    "simulate",
    "train",
]
