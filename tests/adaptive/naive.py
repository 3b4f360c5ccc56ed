"""The forms of the learned rule as their definitions read: loops, one client at a time, no tricks.

Everything starts from the update vectors themselves, where the product has inner products only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.models.base import AttentionModel
from fedimmune.adaptive.models.paper import Principal
from fedimmune.adaptive.models.relational import Relational

__all__ = [
    "among_clients",
    "paper_passes",
    "relational_weights",
    "robust_start",
    "shares",
    "to_estimate",
]

Vector = npt.NDArray[np.float64]
FAR = 4.0
TINY = 1e-12


def shares(defense: Defense, layers: Sequence[Vector]) -> Vector:
    """Weights of a relational defense without anchor: one (n, d) matrix a layer."""
    assert isinstance(defense.form, Relational)
    return relational_weights(defense.form, layers)[0]


# -------------------------------------------------------------------- relational


def relational_weights(
    form: Relational, layers: Sequence[Vector], anchor: Sequence[Vector] | None = None
) -> tuple[Vector, list[Vector]]:
    """Weights that sum to one, and the scores of every pass."""
    settings, n = form.settings, len(layers[0])
    network = _Network(form, "perceptron")
    state = {name: tensor.double().numpy() for name, tensor in form.state_dict().items()}
    believed = robust_start(layers)
    every = []
    for _ in range(settings.passes):
        found = []
        for client in range(n):
            read = state["key.weight"] @ among_clients(layers, client, anchor) + state["key.bias"]
            read = read + state["query.weight"] @ to_estimate(layers, believed, client)
            found.append(math.tanh(network(np.maximum(read, 0))[0]))
        scores = np.array(found)
        every.append(scores)
        weights = _truncated_softmax(settings.c * scores, settings.eps)
        believed = weights / weights.sum()
    return believed, every


def robust_start(layers: Sequence[Vector]) -> Vector:
    """Eight steps of Weiszfeld's, every layer in units of its median client's length."""
    n, units = len(layers[0]), []
    for matrix in layers:
        lengths = sorted(_length(row) for row in matrix)
        units.append(lengths[(n - 1) // 2] or lengths[-1] or 1.0)
    clients = [
        np.concatenate([m[i] / unit for m, unit in zip(layers, units, strict=True)])
        for i in range(n)
    ]
    medians = [
        sorted(float(((one - other) ** 2).sum()) for other in clients)[(n - 1) // 2]
        for one in clients
    ]
    usual = max(min(medians), TINY)
    inverse = [1 / math.sqrt(max(median, usual)) for median in medians]
    for step in range(9):
        weights = np.array(inverse) / sum(inverse)
        if step == 8:
            break
        mean = sum(w * client for w, client in zip(weights, clients, strict=True))
        away = [float(((client - mean) ** 2).sum()) for client in clients]
        inverse = [1 / math.sqrt(max(square, 1e-4 * usual)) for square in away]
    return weights


def to_estimate(layers: Sequence[Vector], weights: Vector, client: int) -> Vector:
    """What the network reads of one client and the estimate."""
    cosines: list[float] = []
    logarithms: list[float] = []
    for matrix in layers:
        own = matrix[client]
        estimate = sum(w * row for w, row in zip(weights, matrix, strict=True))
        cosines.append(_cosine(own, estimate))
        logarithms.append(_log(_length(own), _length(estimate)))
    return np.array([*cosines, *logarithms])


def among_clients(
    layers: Sequence[Vector], client: int, anchor: Sequence[Vector] | None = None
) -> Vector:
    """What the network reads of one client and the others, and the anchor."""
    found: list[float] = []
    for number, matrix in enumerate(layers):
        own, n = matrix[client], len(matrix)
        lengths = sorted(_length(row) for row in matrix)
        usual = lengths[(n - 1) // 2]
        found.append(_log(_length(own), usual))
        every = [_likeness(matrix, i, None if anchor is None else anchor[number]) for i in range(n)]
        median = [sorted(values)[(n - 1) // 2] for values in zip(*every, strict=True)]
        found += every[client]
        found += [one - middle for one, middle in zip(every[client], median, strict=True)]
    return np.array(found)


def _likeness(matrix: Vector, client: int, anchor: Vector | None) -> list[float]:
    own, n = matrix[client], len(matrix)
    others = [_cosine(own, matrix[j]) for j in range(n) if j != client]
    found = [float(np.quantile(others or [1.0], q)) for q in (0, 0.25, 0.5, 0.75, 1)]
    return found if anchor is None else [*found, _cosine(own, anchor)]


# -------------------------------------------------------------------- the paper's


def paper_passes(form: Principal, features: Vector) -> tuple[Vector, Vector]:
    """Algorithm 1 on one round's features, (n, k): the last weights and the last estimate."""
    settings, n = form.settings, len(features)
    query, key = _Network(form, "query"), _Network(form, "key")
    estimate = (np.mean if settings.start == "mean" else np.median)(features, axis=0)
    for _ in range(settings.passes):
        asked = query(estimate)
        scores = [_cosine(asked, key(features[i])) for i in range(n)]
        weights = _truncated_softmax(settings.c * np.array(scores), settings.eps)
        estimate = np.zeros_like(estimate)
        for i in range(n):
            estimate = estimate + weights[i] * features[i]  # not renormalized
    return weights, estimate


# -------------------------------------------------------------------- parts


class _Network:
    """A perceptron of the form, from its weights' names alone."""

    def __init__(self, form: AttentionModel, part: str) -> None:
        state = {name: tensor.double().numpy() for name, tensor in form.state_dict().items()}
        places = sorted({int(n.split(".")[1]) for n in state if n.startswith(f"{part}.")})
        self._layers = [
            (state[f"{part}.{at}.weight"], state.get(f"{part}.{at}.bias", 0.0)) for at in places
        ]
        self._slope = 0.01 if getattr(form.settings, "leaky", False) else 0.0

    def __call__(self, values: Vector) -> Vector:
        for number, (weight, bias) in enumerate(self._layers):
            if number:
                values = np.where(values > 0, values, self._slope * values)
            values = weight @ values + bias
        return values


def _truncated_softmax(logits: Vector, eps: float) -> Vector:
    n = len(logits)
    parts = [math.exp(value - max(logits)) for value in logits]
    weights = [part / math.fsum(parts) for part in parts]
    return np.array([0.0 if weight < eps / n else weight for weight in weights])


def _length(vector: Vector) -> float:
    return math.sqrt(float((vector * vector).sum()))


def _cosine(one: Vector, other: Vector) -> float:
    product = _length(one) * _length(other)
    return float((one * other).sum()) / product if product > 0 else 0.0


def _log(one: float, other: float) -> float:
    ratio = one / other if other > 0 else (1.0 if one == 0 else math.inf)
    found = math.log(max(ratio, TINY))
    if abs(found) <= FAR:
        return found
    return math.copysign(FAR + FAR * math.log(abs(found) / FAR), found)
