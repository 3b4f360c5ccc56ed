"""What is measured: every registered rule, on a round in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

import fedimmune
from benchmarks.clients import Clients
from fedimmune import Rule, Updates

__all__ = ["ATTACKERS", "SOURCES", "THREADS", "make_rule", "reader"]

THREADS = 2
ATTACKERS = (0, 1, 2)
"""Whom the oracle is told of."""
SOURCES = ("matrix", "state_dicts")


def make_rule(name: str) -> Rule:
    """Make a rule with its defaults; the oracle is told who attacks."""
    return fedimmune.create(name, **({"attackers": ATTACKERS} if name == "oracle" else {}))


def reader(clients: Clients, data: Tensor | Sequence[dict[str, Tensor]]) -> Callable[[], Updates]:
    """Give what makes `Updates` of the data: a part of every timed call."""
    if isinstance(data, Tensor):
        return partial(Updates.from_vectors, data, layers=clients.shapes)
    return partial(Updates.from_states, data)
