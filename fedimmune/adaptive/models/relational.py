"""The relational form: scores from inner products alone.

A similarity that must not change when a layer's space is rotated can only depend on inner products.
So the network reads, layer by layer, what the Gram matrix says about a client and the current
estimate q = Σ wⱼxⱼ. There are no axes with an arbitrary sign or order, and no fixed number of
clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedimmune.adaptive.models.base import (
    MOST_VALUE,
    MOST_WIDTH,
    AttentionModel,
    Feature,
    FirstLayer,
    FormSettings,
    Inputs,
    Weighed,
    ideal_weights,
)

__all__ = ["Relational", "RelationalSettings", "far", "from_median", "geometric_median", "products"]
__all__ += ["without_diagonal"]

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_COSINES = ("least", "lower quartile", "median", "upper quartile", "largest")
"""Names of those quantiles of the cosines to the other clients."""
_TINY = 1e-12
_FAR = 4.0
"""Logarithms of ratios of lengths are compressed beyond this: see `far`."""
_WEISZFELD_STEPS = 8
_SMOOTHING = 1e-4


class RelationalSettings(FormSettings):
    """What the relational form is made with.

    Parameters
    ----------
    anchor
        Whether clients are compared with the server's own update.
    relative
        Whether cosines among clients are read as differences to the median client's too.
    hidden
        Width of the perceptron's two hidden layers.
    labels
        Weight of the scores' cross-entropy with the clients' labels in the loss, compared with the
        distance to the robust mean.
    """

    anchor: bool = True
    relative: bool = True
    hidden: int = Field(64, ge=1, le=MOST_WIDTH)
    labels: float = Field(1.0, ge=0, le=MOST_VALUE)


class Relational(AttentionModel):
    """A perceptron on what inner products say of a client and the current estimate.

    Per layer: the cosine to the estimate, the length against the estimate's and against the median
    client's, five quantiles of the cosines to the other clients; with an anchor, the cosine to it.
    Cosines among clients are read as they are and as differences to the median client's: how alike
    honest clients are depends on how long they train, which a rehearsal cannot know.
    """

    name = "relational"
    side_by_side = frozenset({"among_clients"})
    settings: RelationalSettings

    def __init__(self, settings: RelationalSettings) -> None:
        super().__init__(settings)
        among_clients = settings.layers * len(_kinds(settings))
        # The perceptron's first layer in two parts: one is the same in all passes.
        self.key = nn.Linear(among_clients, settings.hidden)
        self.query = nn.Linear(2 * settings.layers, settings.hidden, bias=False)
        self.perceptron = nn.Sequential(
            nn.ReLU(),
            nn.Linear(settings.hidden, settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, 1),
        )

    @property
    def references(self) -> tuple[str, ...]:
        return ("anchor",) if self.settings.anchor else ()

    def prepare(
        self, grams: Tensor, shapes: Sequence[Sequence[int]] = (), *, anchored: bool = False
    ) -> dict[str, Tensor]:
        n = grams.shape[-1] - self.settings.anchor
        squares = grams.diagonal(dim1=-2, dim2=-1).clamp(min=0)
        # In units of the median client's length, or of the longest if that is 0: float32 keeps
        # numbers about 1.
        usual, most = squares[..., :n].median(-1).values, squares[..., :n].amax(-1)
        unit = torch.where(usual > 0, usual, torch.where(most > 0, most, torch.ones_like(most)))
        scaled = grams / unit[..., None, None]
        lengths = scaled.diagonal(dim1=-2, dim2=-1).clamp(min=_TINY).sqrt()
        logs = lengths.log()
        cosines = (scaled / (lengths[..., :, None] * lengths[..., None, :])).clamp(-1, 1)
        others = without_diagonal(cosines[..., :n, :n])
        quantiles = others.new_tensor(_QUANTILES)
        likeness = torch.quantile(others, quantiles, dim=-1).movedim(0, -1)
        if self.settings.anchor:
            likeness = torch.cat([likeness, cosines[..., :n, n:]], -1)
        if self.settings.relative:
            likeness = torch.cat([likeness, from_median(likeness)], -1)
        length = far(from_median(logs[..., :n, None]))
        return {
            "grams": scaled[..., :n, :n].to(self.dtype),
            "lengths": lengths[..., :n].to(self.dtype),
            "logs": logs[..., :n].to(self.dtype),
            "among_clients": torch.cat([length, likeness], -1)
            .movedim(1, 2)
            .flatten(2)
            .to(self.dtype),
        }

    def start(self, inputs: Inputs) -> Tensor:
        """Near the geometric median: the mean would be whatever the longest update is."""
        with torch.no_grad():
            return geometric_median(inputs["grams"].sum(1))

    def keys(self, inputs: Inputs) -> Tensor:
        encoded: Tensor = self.key(inputs["among_clients"])
        return encoded

    def score(self, inputs: Inputs, keys: Tensor, estimate: Tensor) -> Tensor:
        queries = self.query(_to_estimate(inputs, estimate))
        return torch.tanh(self.perceptron(keys + queries)[..., 0])

    def describe(self, inputs: Inputs, estimate: Tensor) -> Tensor:
        layers, to_estimate = self.settings.layers, _to_estimate(inputs, estimate)
        among_clients = inputs["among_clients"].unflatten(-1, (layers, -1))
        # Without lengths: the first number of each layer, and the second half about the estimate.
        return torch.cat([among_clients[..., 1:].flatten(-2), to_estimate[..., :layers]], -1)

    @property
    def described_by(self) -> int:
        return self.settings.layers * len(_kinds(self.settings))

    def estimate(self, inputs: Inputs, weights: Tensor) -> Tensor:
        return weights / weights.sum(-1, keepdim=True)

    def first_layers(self) -> list[FirstLayer]:
        layers = range(self.settings.layers)
        return [
            FirstLayer(
                self.key.weight,
                [Feature(layer, kind) for layer in layers for kind in _kinds(self.settings)],
            ),
            FirstLayer(
                self.query.weight,
                [Feature(layer, kind) for kind in _TO_ESTIMATE for layer in layers],
            ),
        ]

    def loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        """The distance to the robust mean relative to its length, averaged over layers."""
        wanted = ideal_weights(attackers, weighed.weights.dtype)
        with torch.no_grad():
            whole = _square(inputs["grams"], wanted).clamp(min=1e-6)
        square = _square(inputs["grams"], weighed.shares - wanted)
        distance = (square.clamp(min=1e-10) / whole).clamp(max=100).sqrt().mean()
        if not self.settings.labels:
            return distance
        logits = 0.5 * self.settings.c * weighed.scores
        labels = (~attackers).to(logits.dtype).expand_as(logits)
        return distance + self.settings.labels * nn.functional.binary_cross_entropy_with_logits(
            logits, labels
        )


_TO_ESTIMATE = ("cosine to the estimate", "length against the estimate's")
"""In the order of `Relational.score`."""


def _kinds(settings: RelationalSettings) -> list[str]:
    """Return the features of a client and a layer that do not involve the estimate, in order."""
    likeness = [f"cosine to others, {which}" for which in _COSINES]
    if settings.anchor:
        likeness.append("cosine to the server's")
    kinds = ["length against the median client's", *likeness]
    if settings.relative:
        kinds += [f"{kind}, against the median client's" for kind in likeness]
    return kinds


def _to_estimate(inputs: Inputs, estimate: Tensor) -> Tensor:
    """Return cosines to the estimate and lengths against its, by layer: (rounds, n, 2 × layers)."""
    with_estimate = products(inputs["grams"], estimate)
    square = (with_estimate * estimate[:, None]).sum(-1, keepdim=True).clamp(min=_TINY)
    cosines = with_estimate / (inputs["lengths"] * square.sqrt())
    return torch.cat([cosines, far(inputs["logs"] - 0.5 * square.log())], 1).mT


def _square(grams: Tensor, weights: Tensor) -> Tensor:
    """‖Σ wᵢxᵢ‖² by layer."""
    square: Tensor = (products(grams, weights) * weights[:, None]).sum(-1)
    return square


def products(grams: Tensor, weights: Tensor) -> Tensor:
    """⟨xᵢ, Σ wⱼxⱼ⟩ by layer and client; one product per round, because its layers are stacked."""
    stacked = grams.flatten(1, 2)  # (rounds, layers × n, n)
    return torch.bmm(stacked, weights[..., None]).view(grams.shape[:-1])


def from_median(values: Tensor) -> Tensor:
    """Return differences to the median client; clients are the last dimension but one."""
    return values - values.median(-2, keepdim=True).values


def far(logarithm: Tensor) -> Tensor:
    """Compress what is beyond e⁴ times as long or short; 10³⁰ times still differs from it."""
    size = logarithm.abs()
    compressed = _FAR * (1 + (size.clamp(min=_FAR) / _FAR).log())
    return torch.where(size <= _FAR, logarithm, compressed.copysign(logarithm))


def geometric_median(gram: Tensor) -> Tensor:
    """Return the clients' approximate weights in their geometric median, (rounds, n).

    As in the rule of that name, differences are taken to the client in the middle of the others: a
    single immense update would otherwise leave no digits of the others.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    distances = (squares[:, :, None] + squares[:, None, :] - 2 * gram).clamp(min=0)
    medians = distances.median(-1).values
    usual, middle = medians.min(-1, keepdim=True)
    usual, every = usual.clamp(min=_TINY), torch.arange(len(gram), device=gram.device)
    away, cross = distances[every, middle[:, 0]], gram[every, middle[:, 0]]
    seen = gram - cross[:, :, None] - cross[:, None, :] + squares.gather(1, middle)[..., None]
    weights = _inverse(medians, usual)
    for _ in range(_WEISZFELD_STEPS):
        to_mean = torch.bmm(seen, weights[..., None])[..., 0]
        square = (weights * to_mean).sum(-1, keepdim=True)
        weights = _inverse(away - 2 * to_mean + square, _SMOOTHING * usual)
    return weights


def _inverse(squared: Tensor, least: Tensor) -> Tensor:
    inverse = torch.maximum(squared, least).rsqrt()
    return inverse / inverse.sum(-1, keepdim=True)


def without_diagonal(square: Tensor) -> Tensor:
    """(…, n, n) → (…, n, n − 1); one client alone is compared with itself."""
    n = square.shape[-1]
    if n == 1:
        return square
    kept = ~torch.eye(n, dtype=torch.bool, device=square.device)
    return square[..., kept].reshape(*square.shape[:-1], n - 1)
