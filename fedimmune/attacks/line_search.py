"""The rule in the loop: how far attackers can go in a direction before it stops paying.

Shejwalkar and Houmansadr, *Manipulating the Byzantine*, NDSS 2021, fit attacks to a rule by trying
it; ByzFL maximizes ‖rule(honest ∪ f copies) − mean(honest)‖ over ALIE's and IPM's factor. A rule of
inner products is tried on inner products alone: an attacker's update is a sum of rows whose
products are known, and no try reads the updates again. A rule of coordinates is tried on their rows
too, at all coordinates or an even sample of some 30,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedimmune.attacks.base import Context, Knowledge
from fedimmune.attacks.collusion import Seen, State
from fedimmune.errors import FedimmuneError, ParameterError
from fedimmune.geometry import Geometry
from fedimmune.rules.base import CoordinateRule, GeometryRule, Rule
from fedimmune.updates import Updates
from fedimmune.validation import check_float

__all__ = ["SEARCH", "check_factor", "knows", "most_harmful"]

SEARCH = "search"
"""The value of a factor that is to be searched for."""
_FACTORS = tuple(2.0**power for power in range(-4, 6))
"""Tried first. No factor is larger than the last: a rule that bounds nothing has no optimum."""
_TRIES = 10
"""So many more factors are tried in steps that become smaller."""
_SWEEP = tuple(2.0 ** (power / 16) for power in range(-15, 16))
"""What the best of the first is multiplied by, if tries are cheap."""

_COLUMNS, _AT_ONCE = 32_768, 16_384
"""Of a rule of coordinates, so many are tried, and so many at a time: they stay in the cache."""

Harm = Callable[[float], float]


def check_factor(owner: str, name: str, value: object) -> float | str:
    """Check a factor above 0, or the word that lets it be searched for."""
    return SEARCH if value == SEARCH else check_float(owner, name, value, 0)


def knows(factor: float | str | None) -> Knowledge:
    """Return what attackers must know: to search takes the rule."""
    return "defense" if factor == SEARCH else "everyone"


def most_harmful(
    seen: Seen, base: State, direction: State, context: Context, *, keep: float = 0.0
) -> float:
    """Find the factor t for which base + t · direction, sent by all attackers, does most harm.

    Harm is the distance of the rule's result from the honest mean. After factors from 1/16 to 32
    have been tried, the neighborhood of the best is searched in steps that become smaller: the rule
    is tried 20 times. If no factor makes a difference, as with the oracle, it is 1.

    A rule that chooses clients makes another choice every few percent, and harm jumps up and down.
    So a rule of inner products, which takes numbers alone to try, is also tried at every sixteenth
    of an octave between the neighbors of the best, 50 times in all, unless it weighs smoothly.

    Parameters
    ----------
    seen
        The round.
    base, direction
        What attackers' updates are made of.
    context
        About the round, with the rule.
    keep
        Attackers together have to keep that share of an equal weight, where the rule has weights.
    """
    if context.rule is None:
        raise ParameterError("a search needs the server's rule, and there is none")
    rule = context.rule
    least = keep * len(seen.attackers) / len(seen.visible)
    if isinstance(rule, CoordinateRule) and not rule.has_history:
        return _maximize(_harm_by_columns(rule, seen, base, direction))
    if isinstance(rule, GeometryRule) and rule.needs_no_values:
        harm = _harm_by_products(rule, seen, base, direction, least)
        is_smooth = rule.weighs_smoothly and not rule.preaggregators  # mixing chooses neighbors
        return _maximize(harm, () if is_smooth else _SWEEP)
    return _maximize(_harm_by_aggregating(rule, seen, base, direction, least))


def _maximize(harm: Harm, sweep: Sequence[float] = ()) -> float:
    tried = {factor: harm(factor) for factor in _FACTORS}
    if len(set(tried.values())) == 1:
        return 1.0
    best = max(tried, key=tried.__getitem__)
    step = best / 2
    if sweep:
        near = {best * each for each in sweep} - tried.keys()
        tried |= {each: harm(each) for each in sorted(near) if each <= _FACTORS[-1]}
        best = max(tried, key=tried.__getitem__)
        step = best / 32
    enough = len(tried) + _TRIES
    while len(tried) < enough:
        for factor in (min(best + step, _FACTORS[-1]), best - step):
            if factor not in tried:
                tried[factor] = harm(factor)
            if tried[factor] > tried[best]:
                best = factor
                break
        else:
            step /= 2
    return best


class _Mixture:
    """The clients' rows as sums of the honest updates, the base, the direction and references.

    Parameters
    ----------
    seen
        The round.
    references
        How many references follow the clients.
    """

    def __init__(self, seen: Seen, references: int = 0) -> None:
        self.clients, honest = seen.visible.clients, len(seen.honest)
        n = len(self.clients)
        self.attacks = torch.tensor([client in seen.attackers.clients for client in self.clients])
        self.mean = torch.zeros(honest + 2 + references, dtype=torch.float64)
        self.mean[:honest] = 1 / honest
        self._rows = torch.zeros(n + references, len(self.mean), dtype=torch.float64)
        self._rows[(~self.attacks).nonzero().flatten(), torch.arange(honest)] = 1
        self._rows[n:, honest + 2 :] = torch.eye(references, dtype=torch.float64)
        self._forged = slice(honest, honest + 2)

    def at(self, factor: float) -> Tensor:
        """Return what the rows are made of if attackers send base + factor · direction."""
        sent = torch.tensor([1.0, factor], dtype=torch.float64)
        self._rows[: len(self.clients)][self.attacks, self._forged] = sent
        return self._rows


def _harm_by_products(
    rule: GeometryRule, seen: Seen, base: State, direction: State, least: float
) -> Harm:
    names = sorted(rule.needs & seen.visible.references.keys())
    others = [seen.visible.references[name] for name in names]
    grams = seen.products(base, direction, *others)
    whole = grams.sum(0)
    made, shapes = _Mixture(seen, len(names)), [layer.shape for layer in seen.layers]
    if not rule.looks_at_layers:
        grams, shapes = whole[None], []

    def harm(factor: float) -> float:
        rows = made.at(factor)
        try:
            products = rows @ grams @ rows.T
            found = rule.weights_from_gram(products, made.clients, references=names, shapes=shapes)
        except FedimmuneError:
            return -math.inf  # the round would be skipped
        if float(found.weight[made.attacks].sum()) < least:
            return -math.inf
        moves = not found.skipped and bool((found.weight > 0).any())
        made_of = found.made_of if moves else torch.zeros_like(found.weight)
        apart = made_of @ rows[: len(made.clients)] - made.mean
        return float(apart @ whole @ apart)

    return harm


def _harm_by_columns(rule: CoordinateRule, seen: Seen, base: State, direction: State) -> Harm:
    made = _Mixture(seen)
    products = seen.products(base, direction).sum(0) if rule.preaggregators else None
    values, counts = seen.sample(base, direction, most=_COLUMNS)
    parts = [(part, part[: len(seen.honest)].mean(0)) for part in values.split(_AT_ONCE, dim=1)]
    function = cache(rule.column_function)

    def harm(factor: float) -> float:
        rows = made.at(factor)
        try:
            rule.check_count(len(made.clients))
            if products is not None:
                geometry = Geometry.from_grams(rows @ products @ rows.T, made.clients)
                rows = rule.mixing(geometry, seen.visible.round).matrix @ rows
        except FedimmuneError:
            return -math.inf  # the round would be skipped
        found = []
        for part, mean in parts:
            result = torch.empty_like(mean)
            function(len(rows))(rows.to(part.dtype) @ part, result)
            found.append((result - mean).double().square())
        return float(torch.cat(found) @ counts)

    return harm


def _harm_by_aggregating(
    rule: Rule, seen: Seen, base: State, direction: State, least: float
) -> Harm:
    states = {client: seen.honest.state(client) for client in seen.honest.clients}
    visible = seen.visible

    def harm(factor: float) -> float:
        sent = seen.send(seen.along(base, factor, direction))
        forged = {client: sent.state(client) for client in sent.clients}
        everyone = states | forged
        updates = replace(
            Updates.from_states({c: everyone[c] for c in visible.clients}, samples=visible.samples),
            references=visible.references,
            round=visible.round,
            server_loss=visible.server_loss,
        )
        try:
            found = (deepcopy(rule) if rule.has_history else rule).aggregate(updates)
        except FedimmuneError:
            return -math.inf  # the round would be skipped
        if found.weights and sum(found.weights.get(c, 0.0) for c in sent.clients) < least:
            return -math.inf
        names = [layer.name for layer in seen.layers]
        apart = [(found.update[name] - seen.mean[name]).double().square().sum() for name in names]
        return float(sum(apart))

    return harm
