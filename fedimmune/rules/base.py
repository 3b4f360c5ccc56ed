"""The contract of every rule, and its families: rules that weigh clients, rules of coordinates."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor

from fedimmune.aggregation import Aggregation
from fedimmune.buffers import settle
from fedimmune.checks import choice
from fedimmune.combining import ColumnFunction, combine, weighted_sum
from fedimmune.errors import InputError, NotEnoughClientsError
from fedimmune.geometry import Geometry, measure
from fedimmune.layers import Kind, Layer
from fedimmune.registry import Named
from fedimmune.results import ClientResult, Suspicion, Verdict
from fedimmune.updates import ClientId, NonFiniteError, Updates, UpdatesLike

__all__ = [
    "Basis",
    "Common",
    "CoordinateRule",
    "GeometryRule",
    "Rule",
    "Weighing",
    "WeightRule",
]

_log = logging.getLogger("fedimmune")
_rounds_log = _log.getChild("rounds")
"""Of its own, so that who shows a round's warnings can do without them in the log."""
_REDUCED = 0.5
"""Below this share of an equal weight, 1 / n for n valid clients, a client is *reduced*."""
_SHOWN = 0.001
"""Smaller shares are not told apart in reasons."""


@dataclass(frozen=True)
class Weighing:
    """What a rule thinks of the clients.

    Parameters
    ----------
    weights
        One share a client, float64, not negative, summing to one; None where a rule has none.
    scores
        What the rule measured of each client, where it measures something.
    suspicions
        What those without weight are suspected of, where the rule knows kinds of attack.
    coefficients
        What the updates are multiplied by before they are added up, if that is not the weights: a
        rule that shortens updates has smaller ones.
    reasons
        Why clients have no weight, if the rule can say more than that.
    """

    weights: Tensor | None
    scores: Tensor | None = None
    suspicions: Mapping[ClientId, Suspicion] = field(default_factory=dict)
    coefficients: Tensor | None = None
    reasons: Mapping[ClientId, str] = field(default_factory=dict)


class Common(TypedDict, total=False):
    """The parameters of every rule; see `Rule`."""

    buffers: Literal["median", "weights"]


@dataclass(frozen=True)
class Basis:
    """What a rule's answer rests on, for whoever asks later why.

    Parameters
    ----------
    geometry
        The inner products that were looked at, the server's own update last where there is one.
    evidence
        What earlier rounds held against each client; None where nothing is remembered.
    """

    geometry: Geometry
    evidence: Tensor | None = None


class Rule(Named, ABC):
    """Aggregates the updates of one round although some clients attack.

    Parameters are keyword-only and checked at construction. A rule that remembers earlier rounds
    says so with `has_history`; all others are functions of the round alone.

    Parameters
    ----------
    buffers
        What becomes of layers that are not trained, such as a batch norm's statistics: the
        coordinate-wise ``median`` of all valid clients', or what the rule's own ``weights`` (or
        columns) make of them. Either way a client whose buffers lie far outside the others'
        spread is suspected, and takes no part; see `fedimmune.buffers`.
    """

    shared = frozenset({"buffers"})
    paper: ClassVar[str]
    """Where the rule is from."""
    is_told_attackers: ClassVar[bool] = False
    """Whether the rule takes the attackers' ids, which no server knows, as `attackers`."""
    guards_buffers: ClassVar[bool] = True
    """Whether buffers are judged and bounded; False for rules that promise nothing."""
    unweighted_means: ClassVar[Verdict] = Verdict.SUSPECTED
    """What a weight of 0 says about a client. A rule that says *unused* finds nobody odd: little
    weight says nothing about a client either."""
    suspects_below: ClassVar[float] = 0.1
    """Below this share of an equal weight, and of the median client's, a client is suspected too;
    0 for a rule that gives suspects no weight at all."""
    reads: ClassVar[int] = 1
    """How often a round is read, for progress displays."""
    is_translation_equivariant: ClassVar[bool] = True
    """Whether shifting all updates by one vector shifts the result by it."""
    is_scale_equivariant: ClassVar[bool] = True
    """Whether scaling all updates by one positive number scales the result by it."""

    buffers: str = "median"

    def __init__(self, *, buffers: Literal["median", "weights"] = "median") -> None:
        self.buffers = choice(self.name, "buffers", buffers, ("median", "weights"))

    @property
    def has_history(self) -> bool:
        """Whether the answer depends on earlier rounds."""
        return False

    @property
    def basis(self) -> Basis | None:
        """What the last answer rests on; None for a rule that does not keep it."""
        return None

    @property
    def needs_anchor(self) -> bool:
        """Whether clients are compared with the server's own update; see `Updates.with_anchor`."""
        return False

    def check_model(self, layers: Sequence[Layer]) -> None:
        """Refuse a model whose trained layers the rule was not made for. By default any will do.

        Raises
        ------
        InputError
            A defence was trained for another model, say.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is remembered of earlier rounds; only for a rule with history."""
        raise InputError(f"{self.name} keeps no history, as it was made")

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take up what `save` wrote; only for a rule with history."""
        raise InputError(f"{self.name} keeps no history, as it was made")

    @property
    def clients_needed(self) -> int:
        """How many valid clients the rule needs at least."""
        return 1

    def withstands(self, n: int) -> int:
        """Return how many of n clients may send anything at all without moving the result far.

        This is about harm without bound (the *breakdown point*), not about attacks that hide among
        the honest. By default none.

        Parameters
        ----------
        n
            The number of valid clients.
        """
        return 0

    def __call__(self, vectors: UpdatesLike) -> Any:
        """Aggregate and return the result alone, in the caller's own kind.

        Array in, array out; tensor in, tensor out; a list of vectors gives a vector. Rejected
        clients are logged as a warning; `aggregate` returns them.
        """
        aggregation = self.aggregate(vectors)
        for client, reason in aggregation.rejected.items():
            _log.warning("%s: client %s rejected: %s", self.name, client, reason)
        return aggregation.update

    def aggregate(self, updates: UpdatesLike) -> Aggregation:
        """Aggregate one round.

        Parameters
        ----------
        updates
            `Updates`, or anything that `Updates.of` takes.

        Returns
        -------
        Aggregation
            The aggregated update with a weight and a verdict for every client.

        Raises
        ------
        NotEnoughClientsError
            Fewer valid clients than the rule needs. Nothing has been changed.
        """
        valid = self.screen(Updates.of(updates))
        while True:
            try:
                heard = self._heard(valid)
                self._require_enough(heard)
                answer = self._attempt(heard)
                break
            except NonFiniteError as found:
                # Rare, so it is not looked for beforehand: name the culprits and start over.
                valid = valid.reject(found.reasons) if found.reasons else valid.checked()
        for warning in answer.warnings:
            _rounds_log.warning("%s: %s", self.name, warning)
        return answer

    def screen(self, updates: Updates) -> Updates:
        """Reject clients on grounds that only this rule knows. By default none."""
        return updates

    def eligible(self, updates: Updates) -> int:
        """How many of the valid clients count towards `clients_needed`. By default all."""
        return len(updates)

    def _heard(self, updates: Updates) -> Updates:
        """Return the clients that take part, having settled what no rule measures."""
        if not self.guards_buffers or not len(updates):
            return updates
        heard = settle(updates, by_median=self.buffers == "median")
        if self.eligible(heard) < self.clients_needed <= self.eligible(updates):
            # Odd buffers are harmless once settled; a round that is skipped is not. So they stay.
            return replace(updates, aside=heard.aside, settled=heard.settled)
        return heard

    @abstractmethod
    def _attempt(self, updates: Updates) -> Aggregation:
        """Aggregate, or stop with `NonFiniteError` having changed nothing."""

    def _require_enough(self, updates: Updates) -> None:
        count = self.eligible(updates)
        if count < self.clients_needed:
            rejected = {**updates.rejected, **updates.aside}
            raise NotEnoughClientsError(self.name, count, self.clients_needed, rejected)

    def _answer(self, updates: Updates, update: Any, weighing: Weighing) -> Aggregation:
        weights = _by_client(updates.clients, weighing.weights)
        scores = _by_client(updates.clients, weighing.scores)
        # If one client in the middle has nearly all the weight, the others are not odd for that:
        # hence the median client's weight beside an equal one.
        usual = min(1 / len(weights), median(weights.values())) if weights else 0.0
        clients = [
            self._judge(
                client,
                None if weights is None else weights[client],
                None if scores is None else scores[client],
                weighing,
                self.suspects_below * usual,
            )
            for client in updates.clients
        ]
        clients = [
            replace(one, verdict=Verdict.SUSPECTED, reason=updates.aside[one.client])
            if one.client in updates.aside
            else one
            for one in clients
        ]
        for client, reason in updates.aside.items():
            if client in updates.clients:
                continue
            if weights is not None:
                weights[client] = 0.0
            weight = None if weights is None else 0.0
            clients.append(ClientResult(client, Verdict.SUSPECTED, weight, reason=reason))
        clients += [
            ClientResult(client, Verdict.REJECTED, reason=reason)
            for client, reason in updates.rejected.items()
        ]
        rejected = dict(updates.rejected)
        return Aggregation(self.name, update, weights, scores, rejected, tuple(clients))

    def _judge(
        self,
        client: ClientId,
        weight: float | None,
        score: float | None,
        weighing: Weighing,
        least: float,
    ) -> ClientResult:
        """Say what a weight means; with less than `least` a client is suspected."""
        suspicion, stated = weighing.suspicions.get(client), weighing.reasons.get(client)
        if weight == 0:
            reason = stated or f"{self.name} gave it no weight"
            if suspicion is not None and stated is None:
                reason = f"taken for an attack: it {suspicion}"
            return ClientResult(client, self.unweighted_means, weight, score, reason, suspicion)
        if weight is None or weighing.weights is None or self.unweighted_means is Verdict.UNUSED:
            return ClientResult(client, Verdict.TRUSTED, weight, score)
        share = weight * len(weighing.weights)
        if share >= _REDUCED:
            return ClientResult(client, Verdict.TRUSTED, weight, score)
        verdict = Verdict.SUSPECTED if weight < least else Verdict.REDUCED
        said = f"{share:.1%}" if share >= _SHOWN else f"less than {_SHOWN:.1%}"
        reason = f"{self.name} gave it {said} of an equal share"
        return ClientResult(client, verdict, weight, score, reason)


class WeightRule(Rule):
    """A rule that gives each client a weight; the result is the weighted sum of the updates."""

    @abstractmethod
    def weigh(self, updates: Updates) -> Weighing:
        """Weigh the clients."""

    def finish(self, updates: Updates) -> None:
        """Take note of a round that has been aggregated. By default nothing is remembered."""

    weighing_reads: ClassVar[bool] = False
    """Whether `weigh` reads the parameters, and so has checked them."""

    def _attempt(self, updates: Updates) -> Aggregation:
        if self.weighing_reads and not updates.settled:
            for _ in updates.blocks(updates.of_kind(Kind.BUFFER), check=True):
                pass  # who is invalid in what is not measured has to be known before the weighing
        weighing = self.weigh(updates)
        assert weighing.weights is not None
        coefficients = weighing.weights
        if weighing.coefficients is not None:
            coefficients = weighing.coefficients
        counts = weighing.weights > 0
        if not bool(counts.all()) and not self.weighing_reads and not updates.is_checked:
            raise NonFiniteError  # who is left out below has to be checked before
        counting = [client for client, does in zip(updates.clients, counts, strict=True) if does]
        update = combine(
            updates.only(counting),
            weighted_sum(coefficients[counts]),
            parameters_are_checked=self.weighing_reads,
        )
        answer = self._answer(updates, update, weighing)
        self.finish(updates)
        return answer


class GeometryRule(WeightRule):
    """A weight rule that looks at nothing but inner products."""

    reads = 2
    weighing_reads = True

    def weigh(self, updates: Updates) -> Weighing:
        return self.weigh_geometry(measure(updates))

    @abstractmethod
    def weigh_geometry(self, geometry: Geometry) -> Weighing:
        """Weigh the clients, given their geometry."""


class CoordinateRule(Rule):
    """A rule that looks at one coordinate at a time; it has no weights."""

    @abstractmethod
    def column_function(self, n: int) -> ColumnFunction:
        """Give the function from the n clients' columns to the result's."""

    def _attempt(self, updates: Updates) -> Aggregation:
        update = combine(updates, self.column_function(len(updates)))
        return self._answer(updates, update, Weighing(None))


def _by_client(clients: Sequence[ClientId], values: Tensor | None) -> dict[ClientId, float] | None:
    if values is None:
        return None
    return dict(zip(clients, values.to(torch.float64).tolist(), strict=True))
