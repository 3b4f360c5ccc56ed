"""Whom to ask in a round."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection

from flwr.serverapp import Grid

__all__ = ["draw", "wait_for_nodes"]

_log = logging.getLogger("flwr")
_PAUSE = 1.0
_SAY_EVERY = 10


def wait_for_nodes(grid: Grid, least: int, patience: float | None) -> list[int]:
    """Wait until enough nodes are connected, and give all that are.

    Parameters
    ----------
    grid
        Knows them.
    least
        How many there should be.
    patience
        After so many seconds fewer will do; None waits for as long as it takes, as Flower does.
    """
    until = None if patience is None else time.monotonic() + patience
    tries = 0
    while True:
        nodes = list(grid.get_node_ids())
        if len(nodes) >= least:
            return nodes
        if until is not None and time.monotonic() >= until:
            _log.warning("going on with %d nodes; %d were wanted", len(nodes), least)
            return nodes
        if tries % _SAY_EVERY == 0:
            _log.info("waiting for nodes: %d are connected, %d are needed", len(nodes), least)
        tries += 1
        time.sleep(_PAUSE)


def draw(nodes: list[int], fraction: float, least: int, left_out: Collection[str]) -> list[int]:
    """Draw the nodes of a round, and say so.

    Parameters
    ----------
    nodes
        All that are connected.
    fraction
        How many of them to draw.
    least
        So many at least, as far as there are so many. Who is left out is asked all the same where
        fewer than this many others are there.
    left_out
        Who should not be asked, by id as text.
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
