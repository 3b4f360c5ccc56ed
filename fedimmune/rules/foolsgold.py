"""FoolsGold: clients whose updates are too alike are taken for one attacker in many guises.

A true property of the rule, not a fault of the code: nine honest clients that agree and one that
flips the sign of its update get the weights 0, …, 0, 1: the nine are alike and the one is not.

References
----------
Fung, Yoon, Beschastnikh: *The Limitations of Federated Learning in Sybil Settings*, RAID 2020.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from fedimmune.errors import ParameterError
from fedimmune.geometry import Geometry
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.history import History
from fedimmune.updates import Updates
from fedimmune.validation import check_bool, check_float

__all__ = ["FoolsGold"]

_INDISTINCT = 1e-9
"""Clients that differ by less than this in 1 − cosine do not differ."""


class FoolsGold(GeometryRule):
    """Weighs clients by how unlike the others they are.

    Parameters
    ----------
    confidence
        κ: how steeply weights rise from 0 to 1.
    history
        Compare the sums of each client's updates over all rounds so far, as the paper proposes,
        instead of this round's alone. Kept by client id in `memory`; `save` and `restore` it.
        Takes as much memory as the updates themselves.
    """

    name = "foolsgold"
    summary = "little weight to clients that are too alike"
    paper = "Fung et al., RAID 2020"
    symbols = {"confidence": "κ"}
    suspects_below = 0.0  # honest clients that are somewhat alike get little weight
    is_translation_equivariant = False

    def __init__(
        self, *, confidence: float = 1.0, history: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.confidence = check_float(self.name, "confidence", confidence, above=0)
        self.history = check_bool(self.name, "history", history)
        if self.history and self.preaggregators:
            raise ParameterError(
                "foolsgold: history=true compares sums of clients' own updates, which before= "
                "would mix: leave one of the two out"
            )
        self.memory = History()

    @property
    def has_history(self) -> bool:
        return self.history

    def measure(self, updates: Updates) -> Geometry:
        if self.history:
            updates = replace(updates, source=self.memory.added_to(updates), shards=None)
        return super().measure(updates)

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        similarity = geometry.by_parts(lambda rows: _alike(geometry, rows).max(dim=1).values)
        return ClientWeights(_weights(geometry, similarity, self.confidence), similarity)

    def finish(self, updates: Updates) -> None:
        if self.history:
            self.memory = self.memory.after(updates)

    def save(self, path: str | os.PathLike[str]) -> None:
        if not self.history:
            super().save(path)
        self.memory.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        if not self.history:
            super().restore(path)
        self.memory = History.load(path)


def _alike(geometry: Geometry, rows: Tensor) -> Tensor:
    """Return cosines; the diagonal is 0, so that a client is never less than 0 alike."""
    cosines = geometry.cosines(rows)
    cosines[torch.arange(len(rows)), rows] = 0
    return cosines


def _weights(geometry: Geometry, similarity: Tensor, confidence: float) -> Tensor:
    """Turn cosines into weights."""

    def pardoned(rows: Tensor) -> Tensor:
        own, cosines = similarity[rows, None], _alike(geometry, rows)
        is_pardoned = similarity[None, :] > own
        shares = own / similarity[None, :]
        return torch.where(is_pardoned, cosines * shares, cosines).max(dim=1).values

    n = len(similarity)
    unlike = (1 - geometry.by_parts(pardoned)).clamp(0, 1)
    if float(unlike.max()) < _INDISTINCT:
        return torch.full((n,), 1 / n, dtype=torch.float64)  # nobody stands out
    shares = (unlike / unlike.max()).clamp(max=0.99)
    weights = (confidence * (torch.log(shares / (1 - shares)) + 0.5)).clamp(0, 1)
    return weights / weights.sum()
