"""The rule ``adaptive``: a defence, used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedimmune.adaptive.defence import Defence, Judged
from fedimmune.adaptive.memory import Case, Memory
from fedimmune.checks import flag
from fedimmune.errors import InputError, ParameterError
from fedimmune.geometry import measure
from fedimmune.rules.base import Basis, Weighing, WeightRule
from fedimmune.updates import ANCHOR, ClientId, NonFiniteError, Updates
from fedimmune.verdicts import Suspicion

__all__ = ["Adaptive"]


class Adaptive(WeightRule):
    """Attack-adaptive aggregation (Wan and Chen, 2021): weights by a network that learned attacks.

    Parameters
    ----------
    defence
        The file that ``fedimmune train`` wrote.
    memory
        Whether suspicion adds up over rounds, by client id; by default as the defence has it.
    digest
        What the defence's file must be, where it matters that it is this one.
    """

    name = "adaptive"
    summary = "attention that has learned attacks from rehearsals; needs a defence"
    paper = "Wan and Chen 2021"
    places = frozenset({"defence"})  # `digest` says which it is
    reads = 2
    weighing_reads = True
    is_translation_equivariant = False

    def __init__(
        self,
        *,
        defence: str | os.PathLike[str] | None = None,
        memory: bool | None = None,
        digest: str | None = None,
    ) -> None:
        if defence is None:
            raise ParameterError(
                "adaptive: give it a defence, the file that `fedimmune train` wrote"
            )
        self.defence = str(Path(defence))
        self.loaded = Defence.load(defence)
        if digest is not None and digest != self.loaded.digest:
            raise ParameterError(
                f"adaptive: {defence} is another defence ({self.loaded.digest}) than the one that "
                f"was meant ({digest})"
            )
        self.digest = self.loaded.digest
        self.memory = (
            bool(self.loaded.about.memory) if memory is None else flag(self.name, "memory", memory)
        )
        self.known = self._next = Memory()
        self._basis: Basis | None = None

    @property
    def basis(self) -> Basis | None:
        return self._basis

    @property
    def has_history(self) -> bool:
        return self.memory

    @property
    def needs_anchor(self) -> bool:
        return self.loaded.needs_anchor

    def check_model(self, layers: Sequence[str]) -> None:
        self.loaded.check_layers(layers)

    def weigh(self, updates: Updates) -> Weighing:
        if self.needs_anchor and updates.anchor is None:
            raise InputError(
                "this defence compares clients with the server's own update: give the anchor "
                "(Updates.with_anchor, or --anchor FILE)"
            )
        rows = updates.with_anchor_row() if self.needs_anchor else updates
        try:
            geometry = measure(rows)
        except NonFiniteError as found:
            if ANCHOR in (found.reasons or {}):
                raise InputError(
                    "the anchor, the server's own update, is too large to be measured"
                ) from found
            raise
        self.loaded.check_layers(geometry.layers)
        geometry = geometry.of(self.loaded.about.layers)  # a file may have them in another order
        self._basis = Basis(geometry, self._evidence(updates.clients))
        return self.judge(updates.clients, geometry.grams())

    def judge(self, clients: Sequence[ClientId], grams: Tensor) -> Weighing:
        """Weigh the clients of a round of which inner products are all there is, as in a trace.

        Nothing is remembered until `finish` is called.

        Parameters
        ----------
        clients
            In the order of the rows.
        grams
            By layer, in the defence's order, (layers, rows, rows), the anchor's row last where it
            is needed.
        """
        judged = self.loaded.judge(grams, self._evidence(clients))
        self._next = (self.known if self.memory else Memory()).after(
            clients, judged.scores, _suspects(clients, judged)
        )
        return Weighing(judged.weights, judged.scores, self._suspicions())

    def _evidence(self, clients: Sequence[ClientId]) -> Tensor | None:
        if not self.memory:
            return None
        return self.known.evidence(clients, self.loaded.about.memory or _STRENGTH)

    def _suspicions(self) -> dict[ClientId, Suspicion]:
        """Say what those are suspected of whose kind can be told."""
        if self.loaded.kinds is None:
            return {}
        return {
            client: _suspicion(self.loaded.kinds.names, case, remembers=self.memory)
            for client, case in self._next.cases.items()
        }

    def finish(self, updates: Updates | None = None) -> None:
        if self.memory:
            self.known = self._next

    def save(self, path: str | os.PathLike[str]) -> None:
        if not self.memory:
            super().save(path)
        self.known.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        if not self.memory:
            super().restore(path)
        self.known = Memory.load(path)


def _suspects(clients: Sequence[ClientId], judged: Judged) -> dict[ClientId, Sequence[float]]:
    """Give those without weight, with logarithms of the probabilities of kinds."""
    found: dict[ClientId, Sequence[float]] = {}
    for row, client in enumerate(clients):
        if judged.weights[row] == 0:
            found[client] = [] if judged.kinds is None else judged.kinds[row].tolist()
    return found


def _suspicion(names: Sequence[str], case: Case, *, remembers: bool) -> Suspicion:
    """Name the likeliest kind, unless it is less likely than all others together."""
    probabilities = case.probabilities
    best = max(range(len(names)), key=probabilities.__getitem__)
    if probabilities[best] < _SURE:
        best = len(names) - 1
    since = case.since if remembers else None
    return Suspicion(names[best], round(probabilities[best], 4), since)


_SURE = 0.5
_STRENGTH = 10.0
