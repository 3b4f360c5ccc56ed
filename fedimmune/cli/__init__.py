"""The command line: ``fedimmune simulate | aggregate | demo | rules | attacks | tasks | data``.

Results go to standard output, progress and remarks to standard error. PyTorch is imported by the
commands that need it, so that ``--help`` is quick.
"""

from fedimmune.cli import aggregate, data, demo, lists, simulate  # each adds its commands
from fedimmune.cli.app import app, main

__all__ = ["aggregate", "app", "data", "demo", "lists", "main", "simulate"]
