"""The traits of an attack: what clients sent in one layer, round by round, rule by rule.

After a figure of Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021
(appendix, "Capturing the traits of attacks"): under FedAvg the pattern in the attackers' updates
appears in the honest clients' too, under a defense it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.report.summary import counted, listed
from fedimmune.runs.results import Results, attackers_in
from fedimmune.runs.traces import Trace, Traces

__all__ = ["Panel", "traits_of"]

_CELLS = 16_000
"""How many cells all panels of a layer have at most: the page has to stay small."""
_ROUNDS, _CLIENTS, _PANELS, _LAYERS = 6, 12, 2, 3
_LEAST_SIDE, _MOST_SIDE = 4, 24
_LEVELS = 8
"""Shades per sign: neighbors of one shade are one cell."""
_OUTLYING = 0.99
"""The color is full at this quantile: one huge value would leave all others pale."""
_PITCH = 1.12
"""From one tile to the next, in tiles."""


@dataclass(frozen=True)
class Panel:
    """What clients sent in one layer under one rule.

    Parameters
    ----------
    layer, label
        The layer and the rule.
    reading
        What it shows, in a sentence.
    cells
        ``x``, ``x2``, ``y``, ``y2`` (in tiles), ``sign`` and ``size`` (0 to 1) of each cell, and
        the tile that it is in: ``client``, ``marked`` (an attacker's), ``round``, ``column``,
        ``row``.
    """

    layer: str
    label: str
    reading: str
    cells: pd.DataFrame


@dataclass(frozen=True)
class _Kept:
    """What one run kept of a layer."""

    label: str
    layer: str
    traces: Mapping[int, Trace]
    clients: Sequence[str]
    attackers: frozenset[str]
    knows_truth: bool

    def shown(self) -> list[str]:
        """Return all clients, or of many some attackers and some others."""
        others = [client for client in self.clients if client not in self.attackers]
        some = [client for client in self.clients if client in self.attackers]
        some = some[: max(_CLIENTS // 2, _CLIENTS - len(others))]
        shown = {*some, *others[: _CLIENTS - len(some)]}
        return [client for client in self.clients if client in shown]

    def update(self, number: int, client: str) -> Tensor | None:
        trace = self.traces[number]
        if client not in trace.senders:
            return None
        return trace.kept[self.layer][trace.senders.index(client)].double()

    def likeness(self, number: int) -> float | None:
        """Return the cosine of the honest clients' mean and the attackers'; None without either."""
        trace = self.traces[number]
        rows = trace.kept[self.layer].double().reshape(len(trace.senders), -1)
        usable = torch.isfinite(rows).all(1) & bool(rows.numel())
        attacks = torch.tensor([client in self.attackers for client in trace.senders])
        if not self.knows_truth or not (attacks & usable).any() or not (~attacks & usable).any():
            return None
        honest, attackers = rows[~attacks & usable].mean(0), rows[attacks & usable].mean(0)
        return float(torch.cosine_similarity(honest, attackers, 0))


def traits_of(
    results: Results, runs: Sequence[Any], most: int = _LAYERS
) -> tuple[list[Panel], list[str]]:
    """Return a panel per saved layer and rule, the plain mean first, and notes on what is left out.

    Parameters
    ----------
    results
        All tables.
    runs
        Rows of `Results.runs`, of one key; the first run of a rule that saved anything stands for
        the rule.
    most
        How many layers are shown at most.
    """
    by_layer, notes = _kept(results, runs)
    if len(by_layer) > most:
        left_out = listed(list(by_layer)[most:])
        notes.append(f"Also saved, but not shown to keep this page small: {left_out}.")
    panels: list[Panel] = []
    for layer, found in list(by_layer.items())[:most]:
        if len(found) > _PANELS:
            names = listed([one.label for one in found[_PANELS:]])
            notes.append(f"{layer} was also saved under {names}, which is not shown.")
        panels += _panels(layer, found[:_PANELS])
    return panels, notes


def _kept(results: Results, runs: Sequence[Any]) -> tuple[dict[str, list[_Kept]], list[str]]:
    found: dict[str, list[_Kept]] = {}
    notes: list[str] = []
    order = {"mean": 0, "adaptive": 1}
    done: set[str] = set()
    for run in sorted(runs, key=lambda one: order.get(one.rule, 2)):
        if run.rule_label in done:
            continue
        try:
            traces = Traces(Path(run.path) / "traces")
            layers = traces.kept_layers()
            played = set(results.rounds.loc[results.rounds["run"] == run.run, "round"])
            read = {n: traces.read(n) for n in traces.rounds() if n in played} if layers else {}
        except InputError as error:
            notes.append(f"The updates that {run.run} saved cannot be shown: {error}.")
            continue
        there = results.clients[results.clients["run"] == run.run]
        attackers = frozenset(attackers_in(there))
        clients = list(dict.fromkeys(there["client"]))
        for layer in layers:
            of_layer = {n: trace for n, trace in read.items() if layer in trace.kept}
            one = _Kept(run.rule_label, layer, of_layer, clients, attackers, run.knows_truth)
            found.setdefault(layer, []).append(one)
            done.add(run.rule_label)
    return found, notes


def _panels(layer: str, kept: Sequence[_Kept]) -> list[Panel]:
    common = sorted(set.intersection(*(set(one.traces) for one in kept)))
    if not common:
        return []
    places = np.linspace(0, len(common) - 1, min(len(common), _ROUNDS)).round().astype(int)
    rounds = [common[place] for place in places]
    shape = tuple(kept[0].traces[rounds[0]].kept[layer].shape[1:])
    clients = [one.shown() for one in kept]
    side = _side(len(rounds) * sum(len(each) for each in clients), shape)
    tiles = [
        {(n, client): _tile(one.update(n, client), side) for n in rounds for client in each}
        for one, each in zip(kept, clients, strict=True)
    ]
    sizes = np.abs(np.concatenate([tile.ravel() for each in tiles for tile in each.values()]))
    known = sizes[np.isfinite(sizes)]
    top = float(np.quantile(known, _OUTLYING)) if known.size else 0.0
    top = top or float(known.max(initial=0.0)) or 1.0
    values = counted(int(np.prod(shape, dtype=int)), "value")
    panels = []
    for one, each, drawn in zip(kept, clients, tiles, strict=True):
        reading = (
            f"What each client sent in {layer} ({values}), one row per round: "
            f"{listed([str(number) for number in rounds])}. The color is full at ±{top:.2g}."
        )
        cosine = one.likeness(rounds[-1])
        if cosine is not None:
            reading += (
                f" In round {rounds[-1]} the honest clients' mean and the attackers' have a cosine "
                f"of {cosine:.2f}.".replace("-", "−")
            )
        cells = [
            cell
            for row, number in enumerate(rounds)
            for column, client in enumerate(each)
            for cell in _cells(drawn[number, client] / top, client, number, column, row)
        ]
        found = pd.DataFrame(cells, columns=_COLUMNS)
        found["marked"] = found["client"].isin(list(one.attackers))
        panels.append(Panel(layer, one.label, reading, found))
    return panels


_COLUMNS = ["x", "x2", "y", "y2", "sign", "size", "client", "round", "column", "row"]


def _cells(
    tile: NDArray[np.float64], client: str, number: int, column: int, row: int
) -> list[tuple[Any, ...]]:
    """Return a tile's cells, equal neighbors as one; first the whole tile, as its background."""
    if not np.isfinite(tile).any():
        return []
    left, top = column * _PITCH, row * _PITCH
    place = (client, number, column, row)
    shades = np.clip(np.nan_to_num(np.round(_LEVELS * tile)), -_LEVELS, _LEVELS).astype(int)
    height, width = shades.shape
    found: list[tuple[Any, ...]] = [
        (left, left + 1, -top, -top - 1, "positive", 0.03, *place),
    ]
    for down, line in enumerate(shades):
        start = 0
        for end in np.flatnonzero(np.diff(line, append=line[-1:] + 1)) + 1:
            shade = int(line[start])
            if shade:
                x, x2 = (round(left + at / width, 4) for at in (start, int(end)))
                y, y2 = (round(-top - at / height, 4) for at in (down, down + 1))
                sign = "positive" if shade > 0 else "negative"
                found.append((x, x2, y, y2, sign, abs(shade) / _LEVELS, *place))
            start = int(end)
    return found


def _side(tiles: int, shape: Sequence[int]) -> tuple[int, int]:
    """Return the height and width of a tile in cells: the layer's, if there is room."""
    height, width = _flat(shape)
    room = _CELLS // max(tiles, 1)
    side = max(_LEAST_SIDE, min(_MOST_SIDE, int(room**0.5)))
    rows = min(height, side)
    return rows, min(width, max(side, min(4 * _MOST_SIDE, room // rows)))


def _flat(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of a layer in two dimensions: outputs by all else; a vector is one row."""
    whole = int(np.prod(shape, dtype=int))
    if len(shape) < 2 or not whole:
        return 1, max(whole, 1)
    return shape[0], whole // shape[0]


def _tile(update: Tensor | None, side: tuple[int, int]) -> NDArray[np.float64]:
    """Resize an update to a tile; neighbors are averaged if it has more values."""
    if update is None or not update.numel():
        return np.full(side, np.nan)
    flat = update.reshape(1, *_flat(tuple(update.shape)))
    found: NDArray[np.float64] = torch.nn.functional.adaptive_avg_pool2d(flat, side)[0].numpy()
    return found
