"""Centered clipping: differences to the last result are shortened, and their mean is added to it.

References
----------
Karimireddy, He, Jaggi: *Learning from History for Byzantine Robust Optimization*, ICML 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.aggregation import Aggregation
from fedimmune.errors import InputError
from fedimmune.geometry import Geometry, measure
from fedimmune.rules.base import ClientWeights, Common, GeometryRule
from fedimmune.rules.history import Remembering
from fedimmune.rules.preaggregation import shortening
from fedimmune.updates import Updates
from fedimmune.validation import check_float, check_int, check_measure

__all__ = ["CenteredClipping"]


class CenteredClipping(Remembering, GeometryRule):
    """The last result v, moved by the mean of the shortened differences to it.

    L times: v becomes v + (1/n) Σ (xᵢ − v) min(1, τ / ‖xᵢ − v‖). It begins with the last round's
    result, in the first round with 0, and is remembered. `scores` are the distances to v when it
    was moved last. The paper has clients send momenta (0.9), which change little from round to
    round.

    Parameters
    ----------
    tau
        How far a client may pull (τ): a number, or ``"median"`` for the median distance to v. The
        paper's program has 100 for momenta; for updates of several local steps another number is
        right for every model.
    times
        For ``"median"``: allow this many times that distance.
    iterations
        How often v is moved in a round (L).
    """

    name = "centered-clipping"
    summary = "the last result, moved by the mean of shortened differences to it"
    paper = "Karimireddy et al., ICML 2021"
    symbols = {"tau": "τ", "iterations": "L"}
    is_translation_equivariant = False
    weights_make_result = False
    bounds_lengths = True
    remembers_clients = False

    def __init__(
        self,
        *,
        tau: float | str = "median",
        times: float = 1.0,
        iterations: int = 1,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.tau = check_measure(self.name, "tau", tau, "median")
        self.times = check_float(self.name, "times", times, above=0)
        self.iterations = check_int(self.name, "iterations", iterations, 1)
        self.memory: dict[str, Tensor] = {}

    def breakdown(self, n: int) -> int:
        return (n - 1) // 2

    @property
    def compares_clients(self) -> bool:
        return self.iterations > 1

    def measure(self, updates: Updates) -> Geometry:
        references = ["memory"] if "memory" in updates.references else []
        return measure(updates, references, pairs=self._takes_pairs)

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        n = len(geometry)
        # Everything is seen from the v that the round begins with: moved, it is Σ aᵢ(xᵢ − v).
        begins = "memory" in geometry.references
        gram = geometry.seen_from("memory") if begins else geometry.gram()
        distances = gram.diagonal().clamp(min=0).sqrt()
        a = shortening(distances, self.tau, self.times) / n
        for _ in range(self.iterations - 1):
            to_v = gram @ a
            distances = (gram.diagonal() - 2 * to_v + a @ to_v).clamp(min=0).sqrt()
            step = shortening(distances, self.tau, self.times) / n
            a = (1 - step.sum()) * a + step
        shares = torch.full_like(a, 1 / n)
        return ClientWeights(shares, distances, a, memory=float(1 - a.sum()) if begins else 0.0)

    def _attempt(self, updates: Updates) -> Aggregation:
        answer = super()._attempt(self._with_memory(updates))
        found = updates.parameters_of(answer.update)
        self.memory = {name: _kept(self.memory.get(name), new) for name, new in found.items()}
        return answer

    def _with_memory(self, updates: Updates) -> Updates:
        if not self.memory:
            return updates
        others = updates.of_kind(Kind.BUFFER, Kind.COUNTER)
        zeros = {layer.name: torch.zeros(layer.shape, dtype=layer.dtype) for layer in others}
        return updates.with_reference("memory", {**zeros, **self.memory}, is_checked=True)

    def remembered(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {name: values.clone() for name, values in self.memory.items()}, {}

    def recall(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        if not tensors:
            raise InputError("it holds no result")
        self.memory = {name: values.clone() for name, values in tensors.items()}


def _kept(old: Tensor | None, new: Tensor) -> Tensor:
    """Copy a result, over the old one if that is alike: new memory costs more than the copy."""
    if old is not None and (old.dtype, old.shape) == (new.dtype, new.shape):
        return old.copy_(new)
    return new.detach().cpu().clone()
