"""Whom to ask in a round."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable

from flwr.serverapp import Grid

from fedimmune.errors import ParameterError
from fedimmune.validation import check_int

__all__ = ["Exclusion", "draw", "wait_for_nodes"]

_log = logging.getLogger("flwr")
_PAUSE = 1.0
_SAY_EVERY = 10


def wait_for_nodes(grid: Grid, least: int, patience: float | None) -> list[int]:
    """Wait until enough nodes are connected, and return all that are.

    After `patience` seconds fewer will do; None waits as long as it takes, as Flower does.
    """
    until = None if patience is None else time.monotonic() + patience
    tries = 0
    while True:
        nodes = list(grid.get_node_ids())
        if len(nodes) >= least:
            return nodes
        if until is not None and time.monotonic() >= until:
            _log.warning("continuing with %d nodes; %d were wanted", len(nodes), least)
            return nodes
        if tries % _SAY_EVERY == 0:
            _log.info("waiting for nodes: %d are connected, %d are needed", len(nodes), least)
        tries += 1
        time.sleep(_PAUSE)


def draw(nodes: list[int], fraction: float, least: int, left_out: Collection[str]) -> list[int]:
    """Draw the nodes of a round, and log it.

    Clients that are left out, by id as text, are asked anyway if fewer than `least` others are
    connected.
    """
    eligible = [node for node in nodes if str(node) not in left_out]
    if len(eligible) < least:
        others = [node for node in nodes if str(node) in left_out]
        eligible += random.sample(others, min(len(others), least - len(eligible)))
    size = max(int(len(nodes) * fraction), least)
    drawn = random.sample(eligible, min(size, len(eligible)))
    _log.info("%d of %d nodes are asked", len(drawn), len(nodes))
    for node in sorted(node for node in nodes if str(node) in left_out and node not in drawn):
        _log.info("  %d is left out: it was suspected too often", node)
    return drawn


class Exclusion:
    """Leaves out clients that were suspected often lately, and tries them again later.

    Parameters
    ----------
    often, rounds
        A client that was suspected in `often` of the last `rounds` rounds is not asked in the next
        `rounds` rounds. After that it is asked again, with a clean slate.
    """

    def __init__(self, often: int, rounds: int) -> None:
        self.often = check_int("exclude", "the first number", often, 1)
        self.rounds = check_int("exclude", "the second number", rounds, 1)
        if self.often > self.rounds:
            raise ParameterError(
                f"exclude: nobody can be suspected in {often} of the last {rounds} rounds: "
                "the smaller number comes first"
            )
        self._suspected: dict[str, list[int]] = {}
        self._until: dict[str, int] = {}

    def note(self, number: int, suspects: Iterable[str]) -> None:
        """Take note of who was suspected in a round."""
        for client in suspects:
            before = self._suspected.get(client, [])
            recent = [*(past for past in before if past > number - self.rounds), number]
            if len(recent) >= self.often:
                self._until[client] = number + self.rounds
                recent = []
            self._suspected[client] = recent

    def left_out(self, number: int) -> frozenset[str]:
        """Return who is not to be asked in a round."""
        return frozenset(client for client, last in self._until.items() if number <= last)

    def forget(self) -> None:
        """Start over, with nobody suspected."""
        self._suspected.clear()
        self._until.clear()
