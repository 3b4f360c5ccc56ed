"""What a defense looks at, and why it gave a client its score.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, measure the
importance of feature i by imptz(i) = Σⱼ |Wᵢⱼ| over the first layer of the key's encoder, and sum it
up by layer of the model. So it is done here for their form; the relational form reads a client in
two parts, alone and against the estimate, and both are added up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import torch
from torch import Tensor

from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.models.base import AttentionModel, Inputs
from fedimmune.errors import InputError
from fedimmune.updates import ClientId

__all__ = ["Explanation", "Importance", "LayerBlame", "Standing", "explain", "importance_of"]


@dataclass(frozen=True)
class Importance:
    """How strongly a defense reacts to its features.

    As in the paper, features have no common unit: it does not say how much they vary.

    Parameters
    ----------
    by_layer
        The sum over a layer's features, by the layer's name, in the model's order; empty for a
        universal defense, which reads all layers alike.
    by_kind
        The sum over all layers, by what is measured there: a principal component in the paper's
        form, such as the length or the cosine to the server's update in the relational form.
    """

    by_layer: Mapping[str, float]
    by_kind: Mapping[str, float]

    @property
    def most_telling(self) -> str:
        """Name of the layer that matters most."""
        return max(self.by_layer, key=lambda name: self.by_layer[name])


@torch.no_grad()
def importance_of(defense: Defense) -> Importance:
    """Sum up the importance of a defense's features."""
    names = list(defense.about.layers)
    by_layer = dict.fromkeys(names, 0.0)
    by_kind: dict[str, float] = {}
    for part in defense.form.first_layers():
        reactions = part.weight.abs().sum(0).tolist()
        for feature, reaction in zip(part.features, reactions, strict=True):
            if feature.layer is not None:
                by_layer[names[feature.layer]] += reaction
            by_kind[feature.kind] = by_kind.get(feature.kind, 0.0) + reaction
    return Importance(by_layer, by_kind)


_EXACT_LAYERS = 10
"""Up to this many layers all sets of layers are tried; beyond, orders of them are drawn."""
_ORDERS, _FEW_ORDERS = 32, 8
"""Number of orders; few if a round has more than `_LARGE` inner products and takes seconds."""
_LARGE = 200_000
_BATCH_VALUES = 4_000_000
"""Number of inner products that are weighed at a time."""
_RELATIVE_ZERO = 1e-10


@dataclass(frozen=True)
class Standing:
    """A client's score, from −1 to 1, and its weight."""

    score: float
    weight: float


@dataclass(frozen=True)
class LayerBlame:
    """What one layer has to do with a client's score.

    Parameters
    ----------
    layer
        Its name.
    blame
        By how much the client's own update of this layer lowers the score, averaged over all
        orders in which its layers could be corrected (the Shapley value). The layers' blame adds
        up to the whole difference to an ordinary client.
    put_right
        If the client had been ordinary in this layer.
    alone
        If it had been ordinary in all others.
    """

    layer: str
    blame: float
    put_right: Standing
    alone: Standing


@dataclass(frozen=True)
class Explanation:
    """Why a client has its score, without memory.

    Parameters
    ----------
    client
        Who it is about.
    stand_in
        The client that it is compared with.
    found
        By this round alone.
    ordinary
        If it had been ordinary in all layers.
    layers
        In the defense's order.
    held
        What earlier rounds hold against it, in units of c times a score; None without memory.
    with_memory
        By this and earlier rounds together: what the rule used.
    """

    client: ClientId
    stand_in: ClientId
    found: Standing
    ordinary: Standing
    layers: tuple[LayerBlame, ...]
    held: float | None
    with_memory: Standing

    @property
    def is_memory_alone(self) -> bool:
        """Whether the client has no weight, but would have some by this round alone."""
        return self.found.weight > 0 and self.with_memory.weight == 0


@torch.no_grad()
def explain(
    defense: Defense,
    clients: Sequence[ClientId],
    client: ClientId,
    grams: Tensor,
    evidence: Tensor | None = None,
    *,
    layers: Mapping[str, Sequence[int]] | None = None,
    threshold: float = 0.0,
) -> Explanation:
    """Find which layers made a client's score what it is.

    Parameters
    ----------
    defense
        What weighed the round.
    clients
        Who took part, in the order of the rows.
    client
        Whom to explain.
    grams
        Inner products by layer, (layers, rows, rows), in the defense's order of layers; the anchor,
        if the defense needs one, is the last row.
    evidence
        What earlier rounds held against each client.
    layers
        Shapes of the model's layers by name; by default those that the defense was trained for.
    threshold
        Of a universal defense: below which logit the rule suspects.

    Raises
    ------
    InputError
        The client took no part, or took part alone.
    """
    if client not in clients:
        raise InputError(f"client {client} was not weighed in this round")
    if len(clients) < 2:
        raise InputError("there was no other client to compare with in this round")
    i = list(clients).index(client)
    layers = defense.about.layers if layers is None else layers
    known: dict[str, Any] = {"shapes": [*layers.values()]}
    if defense.is_universal:
        known["anchored"] = grams.shape[-1] > len(clients)
    weights, scores = defense.weigh(grams, threshold=threshold, **known)
    j = _stand_in(grams[:, : len(clients), : len(clients)], weights, i)
    twin = with_twin(grams, i, j)
    # A form reads layer by layer, so preparing both once is enough for all mixtures of them.
    prepared = [defense.form.prepare(both[None], **known) for both in (grams, twin)]

    def standings(own: Tensor) -> Tensor:
        """Return the client's score and weight, (sets, 2), if only these layers are its own."""
        some = max(1, _BATCH_VALUES // grams.numel())
        parts = own.split(some)
        return torch.cat([_weighed(defense.form, prepared, p, i, threshold) for p in parts])

    each = torch.eye(len(grams), dtype=torch.bool)
    extremes = torch.stack([torch.zeros_like(each[0]), torch.ones_like(each[0])])
    ordinary, found = (Standing(*row) for row in standings(extremes).tolist())
    put_right, alone = (standings(own).tolist() for own in (~each, each))
    orders = _FEW_ORDERS if grams.numel() > _LARGE else _ORDERS
    blames = _shapley(lambda own: standings(own)[:, 0], len(grams), orders)
    held, with_memory = None, found
    if evidence is not None:
        held = float(evidence[i])
        weights, scores = defense.weigh(grams, evidence, threshold=threshold, **known)
        with_memory = Standing(float(scores[i]), float(weights[i]))
    return Explanation(
        client=client,
        stand_in=clients[j],
        found=found,
        ordinary=ordinary,
        layers=tuple(
            LayerBlame(name, -value, Standing(*right), Standing(*only))
            for name, value, right, only in zip(layers, blames, put_right, alone, strict=True)
        ),
        held=held,
        with_memory=with_memory,
    )


def with_twin(grams: Tensor, i: int, j: int) -> Tensor:
    """Return the Gram matrices with a twin of j in row i.

    Its length and its inner products with all others are j's. With j itself it shares only what j
    shares with the others: the part of j within their span.
    """
    rows = torch.arange(grams.shape[-1])
    others = rows[(rows != i) & (rows != j)]
    places = rows.clone()
    places[i] = j
    found = grams[:, places][:, :, places].clone()
    among, to_j = grams[:, others][:, :, others], grams[:, others, j]
    values, vectors = torch.linalg.eigh(among)
    most = values.amax(-1, keepdim=True) if len(others) else values.new_zeros(len(grams), 1)
    along = (vectors.mT @ to_j[..., None])[..., 0].square()
    counts = values > _RELATIVE_ZERO * most.clamp(min=torch.finfo(values.dtype).tiny)
    shared = torch.where(counts, along / values.where(counts, torch.ones_like(values)), 0.0).sum(-1)
    square = grams[:, j, j].clamp(min=0)
    found[:, i, j] = found[:, j, i] = torch.minimum(shared, square)
    return found


def _weighed(
    form: AttentionModel, prepared: Sequence[Inputs], own: Tensor, i: int, threshold: float
) -> Tensor:
    """Weigh mixtures: `own` layers are the client's own, the others its twin's."""
    inputs = {}
    for name, mine in prepared[0].items():
        if name in form.side_by_side:
            which = own.repeat_interleave(mine.shape[-1] // own.shape[1], 1)[:, None]
        else:
            which = own.reshape(*own.shape, *(1 for _ in mine.shape[2:]))
        inputs[name] = torch.where(which, mine, prepared[1][name])
    moved = torch.full((len(own), 1), -threshold, dtype=form.dtype) if threshold else None
    weighed = form(inputs, moved)
    return torch.stack([weighed.scores[-1, :, i], weighed.shares[:, i]], -1)


def _stand_in(grams: Tensor, weights: Tensor, i: int) -> int:
    """Return the client closest to the mean of the trusted, every layer in its own unit."""
    shares = weights.clone()
    shares[i] = 0
    if float(shares.sum()) == 0:
        shares = torch.ones_like(shares)
        shares[i] = 0
    trusted = (shares > 0).nonzero().flatten().tolist()
    shares = shares / shares.sum()
    with_mean = grams @ shares  # (layers, n)
    square = (with_mean * shares).sum(-1, keepdim=True)
    away = grams.diagonal(dim1=1, dim2=2) - 2 * with_mean + square
    relative = away / square.clamp(min=torch.finfo(square.dtype).tiny)
    distances = torch.where(square > 0, relative, torch.zeros_like(relative)).sum(0).tolist()
    return int(min(trusted, key=lambda k: float(distances[k])))


def _shapley(value: Callable[[Tensor], Tensor], layers: int, orders: int) -> list[float]:
    """Divide value(all layers) − value(no layer) among the layers, averaged over their orders.

    `value` is a function of sets of layers, (sets, layers), bool. If there are too many layers to
    try all sets, this many `orders` are drawn.
    """
    if layers <= _EXACT_LAYERS:
        return _shapley_exactly(value, layers)
    # Each order is used forwards and backwards, which removes much of the randomness.
    random = torch.Generator().manual_seed(0)
    drawn = [torch.randperm(layers, generator=random) for _ in range(orders // 2)]
    total = torch.zeros(layers, dtype=torch.float64)
    for order in itertools.chain.from_iterable((one, one.flip(0)) for one in drawn):
        sets = torch.zeros(layers + 1, layers, dtype=torch.bool)
        for step, layer in enumerate(order.tolist(), start=1):
            sets[step:, layer] = True
        total[order] += value(sets).diff().double()
    return (total / (2 * len(drawn))).tolist()


def _shapley_exactly(value: Callable[[Tensor], Tensor], layers: int) -> list[float]:
    numbers = torch.arange(2**layers)
    bits = 2 ** torch.arange(layers)
    sets = (numbers[:, None] & bits) > 0
    values, sizes = value(sets).double(), sets.sum(1)
    shares = []
    for layer in range(layers):
        without = numbers[~sets[:, layer]]
        orders = [1 / (layers * comb(layers - 1, size)) for size in sizes[without].tolist()]
        gains = values[without + bits[layer]] - values[without]
        shares.append(float((gains * torch.tensor(orders, dtype=torch.float64)).sum()))
    return shares
