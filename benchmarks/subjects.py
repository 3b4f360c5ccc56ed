"""What is measured: every registered rule, on a round in memory."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from torch import Tensor

import fedimmune
from benchmarks.clients import Clients
from benchmarks.resnet18 import Shapes, resnet18
from fedimmune import Rule, Updates
from fedimmune.adaptive.defense import Defense, DefenseAbout
from fedimmune.adaptive.models.relational import Relational, RelationalSettings
from fedimmune.updates import REFERENCES

__all__ = [
    "ATTACKERS",
    "SOURCES",
    "THREADS",
    "make_rule",
    "reader",
    "supplying",
    "untrained_defense",
]

THREADS = 2
ATTACKERS = (0, 1, 2)
"""Whom the oracle is told of."""
SOURCES = ("matrix", "state_dicts")


def make_rule(name: str, shapes: Shapes | None = None) -> Rule:
    """Make a rule with its defaults; the oracle is told who attacks.

    The defense of the learned rule is untrained: what it has learned costs nothing.

    Parameters
    ----------
    name
        Which.
    shapes
        Of the layers that the learned rule is made for; by default ResNet-18's.
    """
    if name == "adaptive":
        return fedimmune.rules.get(name, defense=untrained_defense(shapes))
    return fedimmune.rules.get(name, **({"attackers": ATTACKERS} if name == "oracle" else {}))


def untrained_defense(shapes: Shapes | None = None) -> Path:
    """Write a defense that has learned nothing, once; it is gone with the process."""
    return _untrained(tuple((resnet18() if shapes is None else shapes).items()))


@cache
def _untrained(layers: tuple[tuple[str, tuple[int, ...]], ...]) -> Path:
    settings = RelationalSettings(layers=len(layers), anchor=False)
    about = DefenseAbout(
        task="benchmark", layers=dict(layers), form="relational", settings=settings.model_dump()
    )
    path = Path(tempfile.mkdtemp(prefix="fedimmune-")) / "untrained.defense"
    atexit.register(shutil.rmtree, path.parent)
    Defense(Relational(settings), about).save(path)
    return path


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
