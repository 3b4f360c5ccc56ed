"""The rule ``adaptive``: a defense, used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from fedimmune import attacks
from fedimmune._layers import Kind, Layer
from fedimmune.adaptive.defense import Defense, Judged
from fedimmune.adaptive.reputation import Case, Memory
from fedimmune.errors import InputError, ParameterError
from fedimmune.geometry import Geometry
from fedimmune.results import UNKNOWN, Suspicion
from fedimmune.rules.base import ClientWeights, Common, DecisionInputs, GeometryRule
from fedimmune.updates import ClientId, Updates
from fedimmune.validation import check_bool, check_float

__all__ = ["Adaptive"]


class Adaptive(GeometryRule):
    """Attack-adaptive aggregation (Wan and Chen, 2021): a network that has learned attacks weighs.

    Parameters
    ----------
    defense
        The file that ``fedimmune train`` wrote.
    memory
        Whether suspicion adds up over rounds, by client id; by default as the defense has it.
    clip
        Shorten updates to the median length of the valid clients before they are added up, so that
        no client moves the model farther than an ordinary one, whatever the network says.
    longest
        A client whose update is more than this many times as long as the median client's is
        suspected for that reason; the network never sees it.
    digest
        Refuse a file with another digest; by default any will do.
    any_shape
        Whether the model's layers may have other shapes than those that the defense was trained
        for, such as another number of classes. Measure how good it then is.
    """

    name = "adaptive"
    summary = "attention that has learned attacks from rehearsals; needs a defense"
    paper = "Wan and Chen 2021"
    places = frozenset({"defense"})  # `digest` says which it is
    looks_at_layers = True
    bounds_lengths = True
    suspects_below = 0.0
    is_translation_equivariant = False
    weights_make_result = False

    def __init__(
        self,
        *,
        defense: str | os.PathLike[str] | None = None,
        memory: bool | None = None,
        clip: bool = True,
        longest: float = 10.0,
        digest: str | None = None,
        any_shape: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.clip = check_bool(self.name, "clip", clip)
        self.longest = check_float(self.name, "longest", longest, above=1)
        if defense is None:
            raise ParameterError(
                "adaptive: give it a defense, the file that `fedimmune train` wrote"
            )
        self.defense = str(Path(defense))
        try:
            self.loaded = Defense.load(defense)
        except InputError as error:
            raise ParameterError(f"adaptive: {error}") from error
        if digest is not None and digest != self.loaded.digest:
            raise ParameterError(
                f"adaptive: {defense} is another defense ({self.loaded.digest}) than was asked for "
                f"({digest})"
            )
        self.digest = self.loaded.digest
        self.memory = (
            bool(self.loaded.about.memory)
            if memory is None
            else check_bool(self.name, "memory", memory)
        )
        self.any_shape = check_bool(self.name, "any_shape", any_shape)
        self.needs = frozenset(self.loaded.references)
        self.known = self._next = Memory()
        self._basis: DecisionInputs | None = None

    @property
    def basis(self) -> DecisionInputs | None:
        return self._basis

    @property
    def has_history(self) -> bool:
        return self.memory

    def withstands(self, n: int) -> int:
        # Clipped, the result is no longer than the median client's update, whatever anyone sends.
        return (n - 1) // 2 if self.clip else 0

    def check_model(self, layers: Sequence[Layer]) -> None:
        shapes = {layer.name: layer.shape for layer in layers}
        self.loaded.check_layers(shapes, any_shape=self.any_shape)

    def measure(self, updates: Updates) -> Geometry:
        self.check_model(updates.of_kind(Kind.PARAMETER))
        # A file may have the layers in another order.
        return super().measure(updates).of(self.loaded.about.layers)

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        """Weigh the clients, given their geometry; layers are in the defense's order.

        Nothing is remembered until `finish` is called.
        """
        if len(geometry.layers) != len(self.loaded.about.layers):
            raise InputError(
                f"the defense weighs by {len(self.loaded.about.layers)} layers, one Gram matrix "
                f"each, not by {len(geometry.layers)}"
            )
        clients, grams = geometry.clients, geometry.grams(*self.loaded.references)
        n = len(clients)
        lengths = grams.diagonal(dim1=1, dim2=2).sum(0)[:n].clamp(min=0).sqrt()
        usual = lengths.quantile(0.5)
        long = (lengths > self.longest * usual) & (usual > 0)
        heard = (~long).nonzero().flatten()
        rows = torch.cat([heard, torch.arange(n, grams.shape[-1])])
        known = [clients[row] for row in heard.tolist()]
        judged = self.loaded.judge(grams[:, rows][:, :, rows], self._evidence(known))
        weights, scores = torch.zeros_like(lengths), torch.full_like(lengths, -1)
        weights[heard], scores[heard] = judged.weights, judged.scores
        reasons = {
            clients[row]: f"its update is {_times(lengths[row] / usual)} as long as the median "
            f"client's (more than {self.longest:g} times is too long)"
            for row in long.nonzero().flatten().tolist()
        }
        suspects: dict[ClientId, Sequence[float]] = dict.fromkeys(reasons, ())
        self._next = (self.known if self.memory else Memory()).after(
            clients, scores, suspects | _suspects(known, judged)
        )
        shortened = weights
        if self.clip:
            shortened = weights * (usual / lengths.clamp(min=_LEAST)).clamp(max=1)
        self._basis = DecisionInputs(geometry.only(heard.tolist()), self._evidence(known))
        return ClientWeights(weights, scores, shortened, reasons, self._suspicions())

    def _evidence(self, clients: Sequence[ClientId]) -> Tensor | None:
        if not self.memory:
            return None
        return self.known.evidence(clients, self.loaded.about.memory or _STRENGTH)

    def _suspicions(self) -> dict[ClientId, Suspicion]:
        """Return what suspects are suspected of, if the defense knows kinds."""
        if self.loaded.kinds is None:
            return {}
        return {
            client: _suspicion(self.loaded.kinds.names, case, remembers=self.memory)
            for client, case in self._next.cases.items()
            # An absent client's case may be from an earlier defense, which knew other kinds.
            if len(case.evidence) == len(self.loaded.kinds.names)
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
    """Return those without weight, with logarithms of the probabilities of kinds."""
    found: dict[ClientId, Sequence[float]] = {}
    for row, client in enumerate(clients):
        if judged.weights[row] == 0:
            found[client] = [] if judged.kinds is None else judged.kinds[row].tolist()
    return found


def _suspicion(names: Sequence[str], case: Case, *, remembers: bool) -> Suspicion:
    """Name the likeliest kind, unless it is less likely than all others together, and the next."""
    likely = dict(zip(names, case.probabilities, strict=True))
    best = max(likely, key=likely.__getitem__)
    if likely[best] < _SURE:
        best = UNKNOWN
    confidence = round(likely.pop(best), 4)
    second = max(likely, key=likely.__getitem__)
    since = case.since if remembers else None
    runner_up = round(likely[second], 4)
    return Suspicion(best, confidence, since, second, runner_up, attacks.advice(best))


def _times(ratio: Tensor) -> str:
    return f"{float(ratio):,.0f} times" if ratio < 1e6 else f"{float(ratio):.1e} times"


_LEAST = torch.finfo(torch.float64).tiny
_SURE = 0.5
_STRENGTH = 10.0
