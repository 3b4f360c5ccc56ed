"""The traits of an attack: what clients sent in one layer, round by round, rule beside rule.

After a figure of Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021
(appendix, "Capturing the traits of attacks"): under FedAvg the pattern in the attackers' updates
appears in the honest clients' too, under a defence it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.report.charts import Chart, Column
from fedimmune.report.grouping import Line, Setting
from fedimmune.report.maps import MARK
from fedimmune.report.reading import Run
from fedimmune.report.words import LONGEST_ID, counted, listed, shortened
from fedimmune.traces import Trace, Traces

__all__ = ["Panel", "Traits", "traits_of"]

_CELLS = 24_000
"""So many cells has a picture at most: more would make the page large."""
_ROUNDS, _CLIENTS, _PANELS, _LAYERS = 6, 12, 2, 3
_LEAST_SIDE, _MOST_SIDE = 4, 24
_OUTLYING = 0.99
"""The colour is full at this quantile: one huge value would leave all others pale."""


@dataclass(frozen=True)
class Panel:
    """One run.

    Parameters
    ----------
    label
        Its rule.
    clients
        Who is shown, attackers marked.
    rounds
        Which rounds.
    values
        (rounds, clients, height, width); NaN where a client sent nothing.
    """

    label: str
    clients: tuple[Column, ...]
    rounds: tuple[int, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Traits(Chart):
    """Updates of one layer, clients by rounds, one panel a rule.

    Parameters
    ----------
    panels
        Side by side, in one scale.
    top
        The size at which the colour is full.
    shape
        Of the layer, as it is in the model.
    mark_word
        What is said of marked clients; empty where nobody knows who attacks.
    """

    panels: tuple[Panel, ...]
    top: float
    shape: tuple[int, ...]
    mark_word: str = ""


@dataclass(frozen=True)
class _Kept:
    """What a run kept of a layer."""

    line: Line
    run: Run
    traces: dict[int, Trace]
    layer: str

    @property
    def clients(self) -> list[str]:
        """Who is shown: everyone, or of many some attackers and some others."""
        marked = [client for client in self.run.clients if client in self.run.attackers]
        some = marked[: max(_CLIENTS // 2, _CLIENTS - len(self.run.clients) + len(marked))]
        others = [client for client in self.run.clients if client not in self.run.attackers]
        shown = {*some, *others[: _CLIENTS - len(some)]}
        return [client for client in self.run.clients if client in shown]

    def of(self, number: int, client: str) -> Tensor | None:
        """A client's update in a round."""
        trace = self.traces[number]
        if client not in trace.senders:
            return None
        return trace.kept[self.layer][trace.senders.index(client)].double()


def traits_of(setting: Setting, most: int = _LAYERS) -> tuple[list[Traits], list[str]]:
    """Describe the pictures of a setting's kept layers.

    Parameters
    ----------
    setting
        Runs that differ in rule and seed alone.
    most
        So many pictures at most.

    Returns
    -------
    pictures
        One a layer.
    notes
        What is not shown, in words.
    """
    by_layer, notes = _kept(setting)
    if len(by_layer) > most:
        left_out = list(by_layer)[most:]
        notes.append(f"Also kept, and not shown to keep this page small: {listed(left_out)}.")
    pictures = []
    for layer, found in list(by_layer.items())[:most]:
        shown, others = found[:_PANELS], found[_PANELS:]
        if others:
            names = listed([one.line.label for one in others])
            notes.append(f"{layer} was kept under {names} too, which is not shown.")
        picture = _picture(layer, shown)
        if picture is not None:
            pictures.append(picture)
    return pictures, notes


def _kept(setting: Setting) -> tuple[dict[str, list[_Kept]], list[str]]:
    """Find what was kept, FedAvg first and the learned rule beside it."""
    found: dict[str, list[_Kept]] = {}
    notes = []
    order = {"mean": 0, "adaptive": 1}
    for line in sorted(setting.lines, key=lambda one: order.get(one.runs[0].rule, 2)):
        for run in line.runs:
            try:
                kept = _read(line, run)
            except InputError as error:
                notes.append(f"What {run.path.name} kept cannot be shown: {error}.")
                continue
            for one in kept:
                found.setdefault(one.layer, []).append(one)
            if kept:
                break  # the first seed stands for its rule, as in the trust maps
    return found, notes


def _read(line: Line, run: Run) -> list[_Kept]:
    traces = Traces(run.path / "traces")
    layers = traces.kept_layers()
    if not layers:
        return []
    played = {number for number in traces.rounds() if number <= len(run.records)}
    by_round = {number: traces.read(number) for number in sorted(played)}
    return [
        _Kept(line, run, {n: trace for n, trace in by_round.items() if layer in trace.kept}, layer)
        for layer in layers
    ]


# -------------------------------------------------------------------- one picture


def _picture(layer: str, kept: Sequence[_Kept]) -> Traits | None:
    common = set.intersection(*(set(one.traces) for one in kept))
    if not common:
        return None
    rounds = _thinned(sorted(common))
    shape = tuple(kept[0].traces[rounds[0]].kept[layer].shape[1:])
    clients = [one.clients for one in kept]
    side = _side(len(rounds) * sum(len(each) for each in clients), shape)
    panels = tuple(
        Panel(
            label=one.line.label,
            clients=tuple(
                Column(shortened(client, LONGEST_ID), client in one.run.attackers)
                for client in each
            ),
            rounds=tuple(rounds),
            values=np.stack(
                [np.stack([_tile(one.of(n, client), side) for client in each]) for n in rounds]
            ),
        )
        for one, each in zip(kept, clients, strict=True)
    )
    sizes = np.abs(np.concatenate([panel.values.ravel() for panel in panels]))
    known = sizes[np.isfinite(sizes)]
    top = float(np.quantile(known, _OUTLYING)) if known.size else 0.0
    return Traits(
        name="traits",
        title=f"Updates of {layer}",
        reading=_reading(layer, shape, kept, rounds),
        panels=panels,
        top=top or float(known.max(initial=0.0)) or 1.0,
        shape=shape,
        mark_word=MARK if any(one.run.knows_truth for one in kept) else "",
    )


def _thinned(rounds: Sequence[int]) -> list[int]:
    """A few of many, the first and the last among them."""
    places = np.linspace(0, len(rounds) - 1, min(len(rounds), _ROUNDS)).round().astype(int)
    return [rounds[place] for place in places]


def _side(tiles: int, shape: Sequence[int]) -> tuple[int, int]:
    """How many cells a tile has, (height, width): as the layer's, or as many as there is room."""
    height, width = _flat(shape)
    room = _CELLS // max(tiles, 1)
    side = max(_LEAST_SIDE, min(_MOST_SIDE, int(room**0.5)))
    rows = min(height, side)
    return rows, min(width, max(side, min(4 * _MOST_SIDE, room // rows)))


def _flat(shape: Sequence[int]) -> tuple[int, int]:
    """A layer in two dimensions: its outputs by all else; a vector is one row."""
    whole = int(np.prod(shape, dtype=int))
    if len(shape) < 2 or not whole:
        return 1, max(whole, 1)
    return shape[0], whole // shape[0]


def _tile(update: Tensor | None, side: tuple[int, int]) -> NDArray[np.float64]:
    """Bring an update to the size of a tile; neighbours are averaged where it has more values."""
    if update is None or not update.numel():
        return np.full(side, np.nan)
    flat = update.reshape(1, *_flat(tuple(update.shape)))
    found: NDArray[np.float64] = torch.nn.functional.adaptive_avg_pool2d(flat, side)[0].numpy()
    return found


def _reading(layer: str, shape: tuple[int, ...], kept: Sequence[_Kept], rounds: list[int]) -> str:
    values = counted(int(np.prod(shape, dtype=int)), "value")
    said = (
        f"What each client sent in {layer} ({values}), a row a round: "
        f"{listed([str(number) for number in rounds])}."
    )
    likeness = [(one.line.label, _likeness(one, rounds[-1])) for one in kept]
    known = [(label, cosine) for label, cosine in likeness if cosine is not None]
    told = [f"{_signed(cosine)} under {label}" for label, cosine in known]
    if not told:
        return said
    return (
        f"{said} In round {rounds[-1]} the honest clients' mean and the attackers' have a cosine "
        f"of {listed(told)}."
    )


def _likeness(kept: _Kept, number: int) -> float | None:
    """The cosine of the honest clients' mean and the attackers'; None without either."""
    if not kept.run.knows_truth:
        return None
    trace = kept.traces[number]
    sent = trace.kept[kept.layer].double()
    if not sent.numel():
        return None
    rows = sent.reshape(len(sent), -1)
    usable = torch.isfinite(rows).all(1)
    attacks = torch.tensor([client in kept.run.attackers for client in trace.senders])
    if not bool((attacks & usable).any()) or not bool((~attacks & usable).any()):
        return None
    honest, attackers = rows[~attacks & usable].mean(0), rows[attacks & usable].mean(0)
    return float(torch.cosine_similarity(honest, attackers, 0))


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
