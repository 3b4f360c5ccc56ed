"""What is measured: every registered rule, on a round in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

import fedimmune
from benchmarks.clients import Clients
from fedimmune import Rule, Updates
from fedimmune.updates import REFERENCES

__all__ = [
    "ATTACKERS",
    "SOURCES",
    "THREADS",
    "make_rule",
    "reader",
    "supplying",
]

THREADS = 2
ATTACKERS = (0, 1, 2)
"""Whom the oracle is told of."""
SOURCES = ("matrix", "state_dicts")


def make_rule(name: str) -> Rule:
    """Make a rule with its defaults; the oracle is told who attacks."""
    return fedimmune.rules.get(name, **({"attackers": ATTACKERS} if name == "oracle" else {}))


def reader(clients: Clients, data: Tensor | Sequence[dict[str, Tensor]]) -> Callable[[], Updates]:
    """Return what makes `Updates` of the data: a part of every timed call."""
    if isinstance(data, Tensor):
        return partial(Updates.from_vectors, data, layers=clients.shapes)
    return partial(Updates.from_states, data)


def supplying(
    make_updates: Callable[[], Updates], rule: Rule, clients: Clients
) -> Callable[[], Updates]:
    """Add what the rule needs besides: one more client's update stands for the server's own."""
    if not rule.needs:
        return make_updates
    own = clients.state(clients.n)

    def make() -> Updates:
        updates = make_updates()
        for name in sorted(rule.needs & REFERENCES.keys()):
            updates = updates.with_reference(name, own)
        return updates.with_server_loss(_length) if "server_loss" in rule.needs else updates

    return make


def _length(update: Tensor | dict[str, Tensor]) -> float:
    """Stand in for a loss, which costs the server's own samples and nothing of a rule."""
    parts = [update] if isinstance(update, Tensor) else update.values()
    return sum(float(part.norm()) for part in parts)
