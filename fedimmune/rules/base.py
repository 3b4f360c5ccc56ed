"""The contract of every rule, and its families: rules that weigh clients, rules of coordinates."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor

from fedimmune._layers import Kind, Layer
from fedimmune.aggregation import Aggregation
from fedimmune.buffers import settle
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.geometry import Geometry, measure
from fedimmune.kernels import ColumnFunction, combine, weighted_sum
from fedimmune.registry import Configurable
from fedimmune.results import ClientResult, Suspicion, Verdict
from fedimmune.updates import ClientId, NonFiniteError, Updates, UpdatesLike
from fedimmune.validation import check_choice

__all__ = [
    "NEEDS",
    "ClientWeights",
    "Common",
    "CoordinateRule",
    "DecisionInputs",
    "GeometryRule",
    "Rule",
    "WeightRule",
]

NEEDS = {
    "anchor": "the server's own update (Updates.with_anchor, anchor=, --anchor FILE)",
    "model": "the global model",
    "history": "earlier global models",
    "server_loss": "the loss on the server's own data",
}
"""What a rule may need besides the updates."""

_log = logging.getLogger("fedimmune")
_rounds_log = _log.getChild("rounds")
"""A logger of its own, so that whoever shows a round's warnings can silence them in the log."""
_REDUCED = 0.5
"""Below this share of an equal weight, 1 / n for n valid clients, a client is *reduced*."""
_SHOWN = 0.001
"""Smaller shares are not told apart in reasons."""


@dataclass(frozen=True)
class ClientWeights:
    """What a rule makes of the clients: one weight per client, and why.

    Parameters
    ----------
    weight
        Each client's share, float64, not negative, summing to one.
    score
        What the rule measured of each client, if it measures something.
    coefficients
        What the updates are multiplied by before they are added up, if that is not `weight`: a
        rule that clips updates has smaller ones, which need not sum to one.
    reasons
        Why clients have no weight, if the rule can say more than that.
    suspicions
        What clients without weight are suspected of, if the rule knows kinds of attack.
    """

    weight: Tensor
    score: Tensor | None = None
    coefficients: Tensor | None = None
    reasons: Mapping[ClientId, str] = field(default_factory=dict)
    suspicions: Mapping[ClientId, Suspicion] = field(default_factory=dict)


class Common(TypedDict, total=False):
    """The parameters of every rule; see `Rule`."""

    buffers: Literal["median", "weights"]


@dataclass(frozen=True)
class DecisionInputs:
    """What a rule's answer rests on, for whoever asks later why.

    Parameters
    ----------
    geometry
        The inner products that were looked at.
    evidence
        What earlier rounds held against each client; None if nothing is remembered.
    """

    geometry: Geometry
    evidence: Tensor | None = None


class Rule(Configurable, ABC):
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
    needs: frozenset[str] = frozenset()
    """What the rule needs besides the updates: of `NEEDS`. Engines and Flower supply it."""
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
        self.buffers = check_choice(self.name, "buffers", buffers, ("median", "weights"))

    # ---------------------------------------------------------------- what it says of itself

    @property
    def has_history(self) -> bool:
        """Whether the answer depends on earlier rounds."""
        return False

    @property
    def basis(self) -> DecisionInputs | None:
        """What the last answer rests on; None for a rule that does not keep it."""
        return None

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

    def check_needs(self, supplied: Collection[str]) -> None:
        """Refuse a caller that cannot supply what the rule needs.

        Parameters
        ----------
        supplied
            What the caller supplies: of `NEEDS`.

        Raises
        ------
        ParameterError
            Something is missing; the message says what.
        """
        for need in sorted(self.needs - set(supplied)):
            raise ParameterError(f"{self.name} needs {NEEDS.get(need, need)}, and there is none")

    def check_model(self, layers: Sequence[Layer]) -> None:
        """Refuse a model whose trained layers the rule was not made for. By default any will do.

        Raises
        ------
        InputError
            A defense was trained for another model, say.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is remembered of earlier rounds; only for a rule with history."""
        raise InputError(f"{self.name} keeps no history, as it was made")

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Read what `save` wrote; only for a rule with history."""
        raise InputError(f"{self.name} keeps no history, as it was made")

    # ---------------------------------------------------------------- aggregating

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
        ParameterError
            The updates come without something that the rule needs.
        """
        given = Updates.of(updates)
        self.check_needs(given.references.keys())
        valid = self.screen(given)
        while True:
            try:
                heard = self._heard(valid)
                count = self.eligible(heard)
                if count < self.clients_needed:
                    turned_away = {**heard.rejected, **heard.aside}
                    raise NotEnoughClientsError(self.name, count, self.clients_needed, turned_away)
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
        """Return how many of the valid clients count toward `clients_needed`. By default all."""
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

    # ---------------------------------------------------------------- verdicts

    def _answer(
        self, updates: Updates, update: Any, found: ClientWeights | None = None
    ) -> Aggregation:
        """Put an update together with a verdict for everybody; `found` is None without weights."""
        weights = _by_client(updates, None if found is None else found.weight)
        scores = _by_client(updates, None if found is None else found.score)
        # If one client in the middle has nearly all the weight, the others are not odd for that:
        # hence the median client's weight besides an equal one.
        usual = min(1 / len(weights), median(weights.values())) if weights else 0.0
        clients = []
        for client in updates.clients:
            weight = None if weights is None else weights[client]
            score = None if scores is None else scores[client]
            verdict, reason, suspicion = self._verdict(client, weight, usual, found)
            if client in updates.aside:
                verdict, reason = Verdict.SUSPECTED, updates.aside[client]
            clients.append(ClientResult(client, verdict, weight, score, reason, suspicion))
        for client, reason in updates.aside.items():
            if client not in updates.clients:
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

    def _verdict(
        self, client: ClientId, weight: float | None, usual: float, found: ClientWeights | None
    ) -> tuple[Verdict, str, Suspicion | None]:
        """Say what a client's weight means: a verdict, the reason, and what it is suspected of."""
        if weight is None or found is None:
            return Verdict.TRUSTED, "", None
        if weight == 0:
            suspicion, reason = found.suspicions.get(client), f"{self.name} gave it no weight"
            if suspicion is not None:
                reason = f"taken for an attack: it {suspicion}"
            return self.unweighted_means, found.reasons.get(client) or reason, suspicion
        share = weight * len(found.weight)
        if self.unweighted_means is Verdict.UNUSED or share >= _REDUCED:
            return Verdict.TRUSTED, "", None
        verdict = Verdict.SUSPECTED if weight < self.suspects_below * usual else Verdict.REDUCED
        said = f"{share:.1%}" if share >= _SHOWN else f"less than {_SHOWN:.1%}"
        return verdict, f"{self.name} gave it {said} of an equal share", None


class WeightRule(Rule):
    """A rule that gives each client a weight; the result is the weighted sum of the updates."""

    @abstractmethod
    def weigh(self, updates: Updates) -> ClientWeights:
        """Weigh the clients."""

    def finish(self, updates: Updates) -> None:
        """Take note of a round that has been aggregated. By default nothing is remembered."""

    weighing_reads: ClassVar[bool] = False
    """Whether `weigh` reads the parameters, and so has checked them."""

    def _attempt(self, updates: Updates) -> Aggregation:
        if self.weighing_reads and not updates.settled:
            for _ in updates.blocks(updates.of_kind(Kind.BUFFER), check=True):
                pass  # who is invalid in what is not measured has to be known before the weighing
        found = self.weigh(updates)
        coefficients = found.weight if found.coefficients is None else found.coefficients
        counts = found.weight > 0
        if not bool(counts.all()) and not self.weighing_reads and not updates.is_checked:
            raise NonFiniteError  # who is left out below has to be checked before
        counting = [client for client, does in zip(updates.clients, counts, strict=True) if does]
        update = combine(
            updates.only(counting),
            weighted_sum(coefficients[counts]),
            parameters_are_checked=self.weighing_reads,
        )
        answer = self._answer(updates, update, found)
        self.finish(updates)
        return answer


class GeometryRule(WeightRule):
    """A weight rule that looks at nothing but inner products."""

    reads = 2
    weighing_reads = True

    @abstractmethod
    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        """Weigh the clients, given their geometry."""

    def measure(self, updates: Updates) -> Geometry:
        """Measure what the rule looks at. By default the updates and what the rule `needs`."""
        return measure(updates, sorted(self.needs & updates.references.keys()))

    def weigh(self, updates: Updates) -> ClientWeights:
        return self.weigh_geometry(self.measure(updates))

    def weights_from_gram(
        self,
        grams: Any,
        clients: Sequence[ClientId] | None = None,
        *,
        references: Sequence[str] = (),
    ) -> ClientWeights:
        """Weigh clients without anybody's update: inner products are enough.

        The weights are those that `aggregate` gives to the same clients. Nothing is remembered.

        Parameters
        ----------
        grams
            Array or tensor of inner products: one Gram matrix per layer, (layers, n, n), or one of
            the whole update, (n, n).
        clients
            Ids; by default 0, 1, 2, …
        references
            Names of rows that follow the clients', such as ``("anchor",)`` for a rule that needs
            the server's own update.

        Raises
        ------
        NotEnoughClientsError
            Fewer clients than the rule needs.
        InputError, ParameterError
            The shapes do not fit, or something that the rule needs is missing.

        Examples
        --------
        >>> from fedimmune import rules
        >>> updates = torch.tensor([[1.0, 0.0], [1.1, 0.0], [1.0, 0.1], [-9.0, 9.0]])
        >>> rules.get("krum").weights_from_gram(updates @ updates.T).weight
        tensor([1., 0., 0., 0.], dtype=torch.float64)
        """
        geometry = Geometry.from_grams(grams, clients, references=references)
        self.check_needs(references)
        if len(geometry) < self.clients_needed:
            raise NotEnoughClientsError(self.name, len(geometry), self.clients_needed, {})
        return self.weigh_geometry(geometry)


class CoordinateRule(Rule):
    """A rule that looks at one coordinate at a time; it has no weights."""

    @abstractmethod
    def column_function(self, n: int) -> ColumnFunction:
        """Return the function from the n clients' columns to the result's."""

    def _attempt(self, updates: Updates) -> Aggregation:
        return self._answer(updates, combine(updates, self.column_function(len(updates))))


def _by_client(updates: Updates, values: Tensor | None) -> dict[ClientId, float] | None:
    if values is None:
        return None
    return dict(zip(updates.clients, values.to(torch.float64).tolist(), strict=True))
