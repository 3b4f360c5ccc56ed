"""The contract of every rule, and its families: rules that weigh clients, rules of coordinates."""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from statistics import median
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor

from fedimmune._layers import Kind, Layer
from fedimmune.aggregation import Aggregation
from fedimmune.buffers import settle
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.geometry import Geometry, Makeup, measure
from fedimmune.io import read_described, write_described
from fedimmune.kernels import (
    ColumnFunction,
    add_noise,
    combine,
    nothing,
    survival,
    weighted_sum,
)
from fedimmune.landmarks import LARGE
from fedimmune.registry import Configurable
from fedimmune.results import ClientResult, Suspicion, Verdict
from fedimmune.rules.preaggregation import Before, Clip, Mixing, PreAggregator, mixed, parse
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
_ENOUGH = 30
"""If clients are used at fewer coordinates than this in the mean, chance may leave one out."""
_SHOWN = 0.001
"""Smaller shares are not told apart in reasons."""
_MOST_KEPT = 1024
"""Inner products of more clients than this do not outlive the weighing: they take n² memory."""
_LENGTHS_FORMAT = "fedimmune-lengths-1"


@dataclass(frozen=True)
class ClientWeights:
    """What a rule makes of the clients: one weight per client, and why.

    Parameters
    ----------
    weight
        Each client's share, float64, not negative, summing to one; all 0 if the rule believes
        nobody: then the model stays as it is.
    score
        What the rule measured of each client, if it measures something.
    coefficients
        What the updates are multiplied by before they are added up, if that is not `weight`: a
        rule that clips updates has smaller ones, which need not sum to one.
    reasons
        Why clients have no weight, if the rule can say more than that, and what else there is to
        say of others.
    suspicions
        What clients without weight are suspected of, if the rule knows kinds of attack.
    unused
        Clients without weight who are not suspected for that.
    probability
        That each client attacks, if the rule can tell; NaN for whom it cannot.
    remarks
        What is to be announced of the round as a whole, in the rule's own words.
    skipped
        Why the model has to stay as it is although the round is valid; empty if it moves. Nobody
        has a weight then.
    noise
        Standard deviation of the normal noise that is added to each trained value of the result.
    memory
        What the reference ``memory`` is multiplied by before it is added to the result.
    geometry
        What the clients were weighed by, all layers in one and before any step, if inner products
        are all that it was, and there are not too many to keep.
    """

    weight: Tensor
    score: Tensor | None = None
    coefficients: Tensor | None = None
    reasons: Mapping[ClientId, str] = field(default_factory=dict)
    suspicions: Mapping[ClientId, Suspicion] = field(default_factory=dict)
    unused: Collection[ClientId] = ()
    probability: Tensor | None = None
    remarks: tuple[str, ...] = ()
    skipped: str = ""
    noise: float = 0.0
    memory: float = 0.0
    geometry: Geometry | None = None

    @property
    def made_of(self) -> Tensor:
        """What the updates are multiplied by before they are added up."""
        return self.weight if self.coefficients is None else self.coefficients

    @property
    def makeup(self) -> Makeup | None:
        """What the result is a sum of; None if it is more than that, or too little is known."""
        if self.geometry is None or self.skipped or self.noise or self.memory:
            return None
        counts = (self.weight > 0).to(self.made_of.dtype)
        return Makeup(self.geometry, self.made_of * counts)

    @classmethod
    def of_kept(cls, kept: Sequence[int], scores: Tensor) -> ClientWeights:
        """Return equal weights for the kept clients, and none for all others."""
        weight = torch.zeros_like(scores)
        weight[list(kept)] = 1 / len(kept)
        return cls(weight, scores)

    @classmethod
    def of_nobody(cls, clients: Sequence[ClientId], scores: Tensor, why: str) -> ClientWeights:
        """Leave everybody without weight: the model stays as it is, and everybody is told why."""
        return cls(torch.zeros_like(scores), scores, reasons=dict.fromkeys(clients, why))

    def of_clients(self, mixing: Mixing, clients: Sequence[ClientId]) -> ClientWeights:
        """Return what weights of mixed rows mean for the clients that the rows were made of."""
        rows, owners = mixing.names(clients), mixing.owner.tolist()
        named = {client: rows[row] for client, row in zip(clients, owners, strict=True)}
        return replace(
            self,
            weight=mixing.shares.T @ self.weight,
            score=None if self.score is None else self.score[mixing.owner],
            coefficients=mixing.matrix.T @ self.made_of,
            reasons={c: self.reasons[row] for c, row in named.items() if row in self.reasons},
            suspicions={
                c: self.suspicions[row] for c, row in named.items() if row in self.suspicions
            },
            unused=[c for c, row in named.items() if row in self.unused],
            probability=None if self.probability is None else self.probability[mixing.owner],
        )


class Common(TypedDict, total=False):
    """The parameters of every rule; see `Rule`."""

    buffers: Literal["median", "weights"]
    before: Before


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
    before
        What happens to the updates before the rule sees them: steps such as ``[Clip(2), NNM()]``,
        or their text, ``"clip(at=2),nnm"``; see `fedimmune.rules.preaggregation`. How many clients
        may attack is what the step is told, else `attackers_of`.
    """

    shared = frozenset({"buffers", "before"})
    paper: ClassVar[str]
    """Where the rule is from."""
    needs: frozenset[str] = frozenset()
    """What the rule needs besides the updates: of `NEEDS`. Engines and Flower supply it."""
    welcomes: frozenset[str] = frozenset()
    """What the rule can do without, but can be made to need, by its parameter of that name."""
    looks_at: ClassVar[str] = "other"
    """What decides, for lists: inner products (*Gram*), one *coordinate* at a time, or *other*."""
    packages: ClassVar[frozenset[str]] = frozenset()
    """Packages that it imports when it aggregates, besides those that every rule needs."""
    looks_at_layers: ClassVar[bool] = False
    """Whether another division of the same values into layers may give another result."""
    squares: ClassVar[bool] = True
    """Whether updates are measured: a client whose values are too large for that is rejected."""
    keeps_common_update: ClassVar[bool] = True
    """Whether clients that all send the same update get it."""
    bounds_lengths: ClassVar[bool] = False
    """Whether the harm of those that it `withstands` is bounded by honest updates' lengths, and not
    by how far they are apart."""
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
    parts: ClassVar[str] = "coordinates"
    """At what a client is used or not, under a rule without weights."""
    reads: int = 1
    """Number of times that a round is read, for progress displays."""
    is_translation_equivariant: ClassVar[bool] = True
    """Whether shifting all updates, the server's own too, by one vector shifts the result by it."""
    is_scale_equivariant: ClassVar[bool] = True
    """Whether scaling all updates, the server's own too, by one positive number scales the result
    by it."""
    weights_make_result: ClassVar[bool] = True
    """Whether the result is the sum of the updates, each times its weight: not for a rule that
    shortens updates or moves values."""
    remembers_clients: ClassVar[bool] = True
    """Whether a rule with history knows clients by name."""

    defense_label: str = ""
    """Which defense a learned rule uses, for its verdicts; empty for any other rule."""

    buffers: str = "median"
    before: str = ""
    preaggregators: tuple[PreAggregator, ...] = ()
    """What `before` stands for."""

    def __init__(
        self, *, buffers: Literal["median", "weights"] = "median", before: Before = ""
    ) -> None:
        self.buffers = check_choice(self.name, "buffers", buffers, ("median", "weights"))
        self.preaggregators = parse(before)
        self.before = ",".join(map(str, self.preaggregators))

    # ---------------------------------------------------------------- what it says of itself

    @classmethod
    def kind(cls) -> str:
        """Describe for lists what the rule looks at, and what it needs besides: ``Gram, model``."""
        remembers = cls.has_history is not Rule.has_history
        besides = cls.needs | {"history"} if remembers else cls.needs
        return ", ".join([cls.looks_at, *sorted(each.replace("_", " ") for each in besides)])

    @property
    def has_history(self) -> bool:
        """Whether the answer depends on earlier rounds."""
        return bool(self._remembering())

    @property
    def basis(self) -> DecisionInputs | None:
        """What the last answer rests on; None for a rule that does not keep it."""
        return None

    @property
    def clients_needed(self) -> int:
        """How many valid clients the rule needs at least."""
        return 1

    def check_count(self, clients: int, turned_away: Mapping[ClientId, str] | None = None) -> None:
        """Refuse a number of clients of whom the rule, and the steps before it, make no result.

        Parameters
        ----------
        clients
            How many of the valid clients count.
        turned_away
            Why others do not.

        Raises
        ------
        NotEnoughClientsError
            There are too few.
        ParameterError
            There are too many for what the rule has to try.
        """
        rows = self._rows_of(clients)
        if rows < self.clients_needed:
            made = f"before={self.before} makes {rows}" if rows < clients else ""
            raise NotEnoughClientsError(
                self.name, clients, self.clients_needed, dict(turned_away or {}), made=made
            )

    def _rows_of(self, clients: int) -> int:
        for step in self.preaggregators:
            clients = step.rows_of(clients)
        return clients

    def withstands(self, n: int) -> int:
        """Return how many of n clients may send anything at all without moving the result far.

        This is about harm without bound (the *breakdown point*), not about attacks that hide among
        the honest. Steps before the rule count: one attacker is enough to spoil a group.

        Parameters
        ----------
        n
            The number of valid clients.
        """
        most = n
        for step in self.preaggregators:
            most = min(most, step.breakdown(n, self.attackers_of(n)))
            n = step.rows_of(n)
        return min(most, self.breakdown(n))

    def breakdown(self, n: int) -> int:
        """Return how many of n rows may be anything at all: `withstands` without any step.

        By default none.
        """
        return 0

    def attackers_of(self, n: int) -> int:
        """Return how many of n clients may attack, as steps before the rule take it.

        It is the number that the rule itself goes by; ⌊(n − 3) / 2⌋ for one that knows none.
        """
        told = getattr(self, "attackers", None)
        return told if isinstance(told, int) else max(0, (n - 3) // 2)

    def check_needs(self, supplied: Collection[str]) -> None:
        """Refuse a caller that cannot supply what the rule needs.

        Parameters
        ----------
        supplied
            What the caller supplies: of `NEEDS`.

        Raises
        ------
        ParameterError
            Something is missing, or what comes before the rule does not go with it; the message
            says what.
        """
        for need in sorted(self.needs - set(supplied)):
            raise ParameterError(f"{self.name} needs {NEEDS.get(need, need)}, and there is none")
        remembers = self.has_history and self.remembers_clients and not self._remembering()
        for step in self.preaggregators:
            if step.regroups and (remembers or self.is_told_attackers):
                raise ParameterError(
                    f"{self.name} knows clients by name, and before={step} makes groups of them "
                    "that change every round: leave one of the two out"
                )
            if step.has_history and type(self).has_history is not Rule.has_history:
                raise ParameterError(
                    f"{self.name} and before={step} would both remember earlier rounds: leave one "
                    "of the two out, or clip at the median"
                )

    def _remembering(self) -> list[Clip]:
        return [step for step in self.preaggregators if isinstance(step, Clip) and step.has_history]

    def check_model(self, layers: Sequence[Layer]) -> None:
        """Refuse a model whose trained layers the rule was not made for. By default any will do.

        Raises
        ------
        InputError
            A defense was trained for another model, say.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is remembered of earlier rounds; only for a rule with history."""
        steps = self._remembering()
        if not steps:
            raise InputError(f"{self.name} keeps no history, as it was made")
        lengths = torch.tensor([step.length or 0.0 for step in steps], dtype=torch.float64)
        write_described({"lengths": lengths}, path, format=_LENGTHS_FORMAT, before=self.before)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Read what `save` wrote; only for a rule with history."""
        steps = self._remembering()
        if not steps:
            raise InputError(f"{self.name} keeps no history, as it was made")
        tensors, about = read_described(path, _LENGTHS_FORMAT)
        lengths = tensors.get("lengths", torch.empty(0))
        if about.get("before") != self.before or lengths.shape != (len(steps),):
            raise InputError(f"the history {path} is of another rule than before={self.before}")
        if not bool((torch.isfinite(lengths) & (lengths >= 0)).all()):
            raise InputError(f"the history {path} is damaged: its lengths are not lengths")
        for step, length in zip(steps, lengths.tolist(), strict=True):
            step.length = length or None

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
        answer = self.aggregate_quietly(updates)
        for warning in answer.warnings:
            _rounds_log.warning("%s: %s", self.name, warning)
        return answer

    def aggregate_quietly(self, updates: UpdatesLike) -> Aggregation:
        """Aggregate one round as `aggregate` does, and log no warning."""
        given = Updates.of(updates).supplying(self.needs)
        self.check_needs(given.supplied)
        valid, doubtful = self.screen(given), False
        while True:
            try:
                if doubtful:  # here, because a file may change while it is checked
                    valid, doubtful = valid.checked(), False
                heard = self._heard(valid)
                self.check_count(self.eligible(heard), {**heard.rejected, **heard.aside})
                answer = self._attempt(heard)
                break
            except NonFiniteError as found:
                # Rare, so it is not looked for beforehand: name the culprits and start over.
                valid, doubtful = valid.reject(found.reasons or {}), not found.reasons
        for step in self._remembering():
            step.finish()
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
        few, many = (self._rows_of(self.eligible(each)) for each in (heard, updates))
        if few < self.clients_needed <= many:
            # Odd buffers are harmless once settled; a round that is skipped is not. So they stay.
            return replace(updates, aside=heard.aside, settled=heard.settled)
        return heard

    @abstractmethod
    def _attempt(self, updates: Updates) -> Aggregation:
        """Aggregate, or stop with `NonFiniteError` having changed nothing."""

    def mixing(self, geometry: Geometry, round_number: int) -> Mixing:
        """Describe what the steps before the rule make of a round: nothing is read for it.

        Parameters
        ----------
        geometry
            Of the clients' updates.
        round_number
            For steps that draw lots.
        """
        whole = Mixing.of(torch.eye(len(geometry), dtype=torch.float64))
        for step in self.preaggregators:
            later = step.mix(geometry, self.attackers_of(len(geometry)), round_number)
            geometry = geometry.mixed(later.matrix, later.names(geometry.clients))
            whole = whole.then(later)
        return whole

    def _mixed(self, updates: Updates) -> tuple[Updates, Mixing | None]:
        """Return the round as the rule sees it, and how it was made of the clients' updates."""
        if not self.preaggregators:
            return updates, None
        measured = measure(updates, by_layer=len(updates) <= LARGE)
        mixing = self.mixing(measured, updates.round)
        return mixed(updates, mixing), mixing

    def finish(self, updates: Updates) -> None:
        """Take note of a round that has been aggregated. By default nothing is remembered."""

    # ---------------------------------------------------------------- verdicts

    def _answer(
        self,
        updates: Updates,
        update: Any,
        found: ClientWeights | None = None,
        *,
        survived: Tensor | None = None,
    ) -> Aggregation:
        """Put an update together with a verdict for everybody.

        A rule without weights has nothing `found`; it may know how much of each update `survived`.
        """
        weights = _by_client(updates, None if found is None else found.weight)
        scores = _by_client(updates, survived if found is None else found.score)
        likely = _by_client(updates, None if found is None else found.probability) or {}
        # If one client in the middle has nearly all the weight, the others are not odd for that:
        # hence the median client's weight besides an equal one.
        usual = min(1 / len(weights), median(weights.values())) if weights else 0.0
        clients = []
        for client in updates.clients:
            weight = None if weights is None else weights[client]
            score = None if scores is None else scores[client]
            verdict, reason, suspicion = self._verdict(client, weight, usual, found)
            if survived is not None and scores is not None:
                verdict, reason = self._survivor(scores[client], survived, updates.size)
            if client in updates.aside:
                verdict, reason = Verdict.SUSPECTED, updates.aside[client]
            one = ClientResult(client, verdict, weight, score, reason, suspicion)
            probability = likely.get(client, nan)
            clients.append(one if isnan(probability) else replace(one, probability=probability))
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
        return Aggregation(
            self.name,
            update,
            weights,
            scores,
            rejected,
            tuple(clients),
            defense=self.defense_label,
            skipped="" if found is None else found.skipped,
            remarks=() if found is None else found.remarks,
            makeup=None if found is None else found.makeup,
        )

    def _verdict(
        self, client: ClientId, weight: float | None, usual: float, found: ClientWeights | None
    ) -> tuple[Verdict, str, Suspicion | None]:
        """Return what a client's weight means: a verdict, the reason, and the suspected attack."""
        if weight is None or found is None:
            return Verdict.TRUSTED, "", None
        if weight == 0:
            suspicion, reason = found.suspicions.get(client), f"{self.name} gave it no weight"
            if suspicion is not None:
                reason = f"taken for an attack: it {suspicion}"
            accused = self._accuses and client not in found.unused
            verdict = self.unweighted_means if accused else Verdict.UNUSED
            return verdict, found.reasons.get(client) or reason, suspicion
        share, also = weight * len(found.weight), found.reasons.get(client, "")
        if not self._accuses or share >= _REDUCED:
            return Verdict.TRUSTED, also, None
        verdict = Verdict.SUSPECTED if weight < self.suspects_below * usual else Verdict.REDUCED
        said = f"{share:.1%}" if share >= _SHOWN else f"less than {_SHOWN:.1%}"
        reason = f"{self.name} gave it {said} of an equal share"
        return verdict, f"{reason}; {also}" if also else reason, None

    @property
    def _accuses(self) -> bool:
        """Whether little weight says something about a client; of a group it says nothing."""
        groups = any(step.regroups for step in self.preaggregators)
        return self.unweighted_means is not Verdict.UNUSED and not groups

    def _survivor(self, share: float, survived: Tensor, size: int) -> tuple[Verdict, str]:
        """Describe what the share of coordinates at which a client was used means."""
        mean = float(survived.mean())
        if share >= _REDUCED * mean:
            return Verdict.TRUSTED, ""
        usual = min(mean, float(survived.quantile(0.5)))
        verdict = Verdict.SUSPECTED if share < self.suspects_below * usual else Verdict.REDUCED
        if share == 0 and self.unweighted_means is Verdict.UNUSED:
            verdict = Verdict.UNUSED
        elif size * mean < _ENOUGH:
            return Verdict.TRUSTED, ""
        said = f"{share:.1%}" if share >= _SHOWN or share == 0 else f"less than {_SHOWN:.1%}"
        return verdict, f"{self.name} used it at {said} of the {self.parts}; {mean:.1%} is usual"


class WeightRule(Rule):
    """A rule that gives each client a weight; the result is the weighted sum of the updates."""

    @abstractmethod
    def weigh(self, updates: Updates) -> ClientWeights:
        """Weigh the clients."""

    weighing_reads: ClassVar[bool] = False
    """Whether `weigh` reads the parameters, and so has checked them."""

    def _attempt(self, updates: Updates) -> Aggregation:
        reads = self.weighing_reads or bool(self.preaggregators)
        if reads and not updates.settled:
            for _ in updates.blocks(updates.of_kind(Kind.BUFFER), check=True):
                pass  # who is invalid in what is not measured has to be known before the weighing
        found = self._weighed(updates)
        if found.skipped:
            answer = self._answer(updates, nothing(updates), found)
            self.finish(updates)
            return answer
        coefficients, counts = found.made_of, found.weight > 0
        if not bool(counts.any()):  # nobody is believed: everybody's part is 0
            counts, coefficients = ~counts, torch.zeros_like(coefficients)
        if not bool(counts.all()) and not reads and not updates.is_checked:
            raise NonFiniteError  # who is left out below has to be checked before
        counting = [client for client, does in zip(updates.clients, counts, strict=True) if does]
        update = combine(
            updates.only(counting),
            weighted_sum(coefficients[counts]),
            parameters_are_checked=reads,
            # Statistics are averaged: to shorten a step says nothing about them.
            of_buffers=weighted_sum(found.weight[counts]),
            plus={"memory": found.memory} if found.memory else None,
        )
        if found.noise > 0:
            add_noise(update, updates, found.noise, self._random(updates).initial_seed())
        answer = self._answer(updates, update, found)
        self.finish(updates)
        return answer

    def _weighed(self, updates: Updates) -> ClientWeights:
        """Weigh the clients; if something comes before the rule, through the rows that it makes."""
        rows, mixing = self._mixed(updates)
        found = self.weigh(rows)
        return found if mixing is None else found.of_clients(mixing, updates.clients)

    def _random(self, updates: Updates) -> torch.Generator:
        """Return random numbers of this rule in this round."""
        text = f"{self.name}:{getattr(self, 'seed', 0)}:{updates.round}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1
        return torch.Generator().manual_seed(seed)


class GeometryRule(WeightRule):
    """A weight rule that looks at nothing but inner products."""

    looks_at = "Gram"
    reads = 2
    weighing_reads = True

    @property
    def compares_clients(self) -> bool:
        """Whether the rule looks at inner products of clients with each other.

        If not, it is spared them: only lengths, and what references make of clients, are measured.
        """
        return True

    @property
    def reads_values(self) -> bool:
        """Whether the rule, as it was made, looks at more than inner products, in `weigh`."""
        return False

    weighs_smoothly: ClassVar[bool] = False
    """Whether a small change of an update changes weights little, at most one threshold aside: not
    for a rule that chooses clients by comparing them."""

    @property
    def needs_no_values(self) -> bool:
        """Whether `weights_from_gram` gives the weights that `aggregate` would give now."""
        return not self.reads_values and not self.has_history

    @abstractmethod
    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        """Weigh the clients, given their geometry."""

    def measure(self, updates: Updates) -> Geometry:
        """Measure what the rule looks at. By default the updates and what the rule `needs`."""
        return measure(
            updates,
            sorted(self.needs & updates.references.keys()),
            pairs=self._takes_pairs,
            by_layer=self.looks_at_layers or len(updates) <= LARGE,
        )

    @property
    def _takes_pairs(self) -> bool:
        return self.compares_clients or bool(self.preaggregators)  # whose rows are mixed

    def weigh(self, updates: Updates) -> ClientWeights:
        return self.weigh_geometry(self.measure(updates))

    def _weighed(self, updates: Updates) -> ClientWeights:
        if self.reads_values:
            return super()._weighed(updates)
        geometry = self.measure(updates)
        found = self._weigh_rows(geometry, updates.round)
        is_kept = self._takes_pairs and len(geometry) <= _MOST_KEPT
        return replace(found, geometry=geometry.total() if is_kept else None)

    def _weigh_rows(self, geometry: Geometry, round_number: int) -> ClientWeights:
        """Weigh the clients, given their geometry before any step: nothing is read for it."""
        if not self.preaggregators:
            return self.weigh_geometry(geometry)
        mixing = self.mixing(geometry, round_number)
        rows = geometry.mixed(mixing.matrix, mixing.names(geometry.clients))
        return self.weigh_geometry(rows).of_clients(mixing, geometry.clients)

    def weights_from_gram(
        self,
        grams: Any,
        clients: Sequence[ClientId] | None = None,
        *,
        references: Sequence[str] = (),
        shapes: Sequence[Sequence[int]] = (),
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
        shapes
            Of the layers, in order, for a rule that asks what layers are: ``adaptive`` with a
            universal defense.

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
        if self.reads_values:
            raise ParameterError(f"{self!r} looks at more than inner products")
        geometry = Geometry.from_grams(grams, clients, references=references, shapes=shapes)
        self.check_needs(references)
        self.check_count(len(geometry))
        return self._weigh_rows(geometry, 0)


class CoordinateRule(Rule):
    """A rule that looks at one coordinate at a time; it has no weights.

    It says instead how much of each client's update survived: the share of coordinates at which the
    client's value was among those used. In large models that is counted on an even sample.
    """

    looks_at = "coordinate"
    squares = False

    @abstractmethod
    def column_function(self, n: int) -> ColumnFunction:
        """Return the function from the n clients' columns to the result's."""

    def used(self, values: Tensor) -> Tensor | None:
        """Return which values the result is made of.

        Parameters
        ----------
        values
            Some columns, (n, columns).

        Returns
        -------
        Tensor or None
            Booleans of the same shape; equal values are used or not together. None, the default, if
            the rule cannot say.
        """
        return None

    def _attempt(self, updates: Updates) -> Aggregation:
        rows, mixing = self._mixed(updates)
        function = self.column_function(len(rows))
        update = combine(rows, function)
        # Of a group's mean nobody can say whose values were used.
        groups = mixing is not None and len(mixing.matrix) < len(updates)
        survived = None if groups else survival(rows, self.used, function)
        return self._answer(updates, update, survived=survived)


def _by_client(updates: Updates, values: Tensor | None) -> dict[ClientId, float] | None:
    if values is None:
        return None
    return dict(zip(updates.clients, values.to(torch.float64).tolist(), strict=True))
