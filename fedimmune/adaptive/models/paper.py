"""The paper's form: clients as points in the principal axes of each layer, compared by encoders.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedimmune.adaptive.models.base import (
    MOST_WIDTH,
    AttentionModel,
    Feature,
    FirstLayer,
    FormSettings,
    Inputs,
    Weighed,
    ideal_weights,
)

__all__ = ["Perceptron", "Principal", "PrincipalSettings"]

_WEISZFELD_STEPS = 30
_TINY = 1e-12
_NOISE = 1e-3


class PrincipalSettings(FormSettings):
    """What the paper's form is made with.

    Parameters
    ----------
    components
        Number of principal axes per layer.
    start
        The first estimate: the coordinate-wise ``median`` (the paper's), ``mean`` or
        ``geometric-median`` of the clients' features.
    orient
        Orient every axis so that the clients' coordinates sum to at least 0. A principal axis has
        no sign of its own and the paper names none; False takes the one that the decomposition
        happens to return, which differs from round to round.
    scaled
        Scale each round so that the median client's update has length 1.
    hidden, output
        Widths of the encoders, as multiples of the input's for `hidden` and as they are for
        `output`.
    shared
        One encoder for the estimate and the clients; the paper has two.
    bias
        Whether the encoders have biases.
    leaky
        Leaky ReLU instead of ReLU.
    identity
        Start the first layer of each encoder as [I; −I], with noise; takes `hidden` = 2.
    random_start
        In training, the first estimate is a random convex combination of the clients, drawn anew
        for every round and epoch.
    jitter
        In training, multiply every feature by 1 + `jitter` · N(0, 1).
    weight_term
        Share of the loss that is the L1 distance between the weights and the ideal ones.
    limit
        Skip rounds with a feature beyond ±`limit`: they have diverged. By default all count.
    chosen_by
        Which epoch is kept: that of the least ``loss`` on the held-out run, or of the least L1
        distance between the ``weights`` and the ideal ones.
    attention
        If False, a perceptron on all clients' features in their order gives the weights (an
        ablation, bound to their number and order on purpose).
    clients
        Their number; only for the ablation.
    """

    components: int = Field(10, ge=1, le=MOST_WIDTH)
    start: Literal["median", "mean", "geometric-median"] = "median"
    orient: bool = True
    scaled: bool = False
    hidden: float = Field(1.0, gt=0, le=1000)
    output: int = Field(32, ge=1, le=MOST_WIDTH)
    shared: bool = False
    bias: bool = True
    leaky: bool = False
    identity: bool = False
    random_start: bool = False
    jitter: float = Field(0.0, ge=0, allow_inf_nan=False)
    weight_term: float = Field(0.0, ge=0, le=1)
    limit: float | None = Field(None, gt=0)
    chosen_by: Literal["loss", "weights"] = "loss"
    attention: bool = True
    clients: int | None = Field(None, ge=1, le=MOST_WIDTH)

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if not self.attention and self.clients is None:
            raise ValueError("a perceptron on all clients has to know how many there are")
        if self.identity and self.hidden != 2:
            raise ValueError("[I; −I] is twice as high as the input is wide: set hidden = 2")
        return self

    @property
    def features(self) -> int:
        """How many numbers describe a client."""
        return self.layers * self.components


class _OnCoordinates(AttentionModel):
    """What attention and the perceptron of its ablation share: the inputs and the loss."""

    name = "paper"
    side_by_side = frozenset({"features"})
    settings: PrincipalSettings

    def prepare(
        self, grams: Tensor, shapes: Sequence[Sequence[int]] = (), *, anchored: bool = False
    ) -> dict[str, Tensor]:
        return {"features": coordinates(grams, self.settings).to(self.dtype)}

    def usable(self, inputs: Inputs) -> Tensor:
        largest = inputs["features"].abs().amax((1, 2))
        return largest <= (float("inf") if self.settings.limit is None else self.settings.limit)

    def augmented(self, inputs: Inputs, random: torch.Generator) -> Inputs:
        features, settings = inputs["features"], self.settings
        if settings.jitter:
            noise = torch.randn(features.shape, generator=random, dtype=features.dtype)
            features = features * (1 + settings.jitter * noise)
        found = {"features": features}
        if settings.random_start:
            drawn = torch.rand(features.shape[:2], generator=random, dtype=features.dtype)
            shares = -torch.log1p(-drawn)  # brought to a sum of one: every combination alike
            found["start"] = self.estimate(found, shares / shares.sum(-1, keepdim=True))
        return found

    def estimate(self, inputs: Inputs, weights: Tensor) -> Tensor:
        return (weights[..., None] * inputs["features"]).sum(1)

    @property
    def described_by(self) -> int:
        return 2 * self.settings.features

    def describe(self, inputs: Inputs, estimate: Tensor) -> Tensor:
        # Each client's features, and their difference to the estimate.
        features = inputs["features"]
        return torch.cat([features, features - estimate[:, None]], -1)

    def loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        """Return the L1 distance of the last estimate, not renormalized, to the robust mean."""
        truth = self.estimate(inputs, ideal_weights(attackers, weighed.weights.dtype))
        found = (self.estimate(inputs, weighed.weights) - truth).abs().mean()
        share = self.settings.weight_term
        if not share:
            return found
        return (1 - share) * found + share * _off(weighed, attackers)

    def choosing_loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        if self.settings.chosen_by == "weights":
            return _off(weighed, attackers)
        return self.loss(inputs, weighed, attackers)


class Principal(_OnCoordinates):
    """Cosine scores of two-layer encoders on principal coordinates."""

    def __init__(self, settings: PrincipalSettings) -> None:
        super().__init__(settings)
        self.key = _encoder(settings)
        self.query = self.key if settings.shared else _encoder(settings)

    def start(self, inputs: Inputs) -> Tensor:
        if "start" in inputs:
            return inputs["start"]
        features = inputs["features"]
        if self.settings.start == "mean":
            return features.mean(1)
        if self.settings.start == "median":
            return _median(features)
        return _geometric_median(features)

    def keys(self, inputs: Inputs) -> Tensor:
        encoded: Tensor = self.key(inputs["features"])
        return encoded

    def score(self, inputs: Inputs, keys: Tensor, estimate: Tensor) -> Tensor:
        return torch.cosine_similarity(self.query(estimate)[:, None], keys, dim=-1)

    def first_layers(self) -> list[FirstLayer]:
        # The paper's definition looks at the key's encoder alone.
        return [FirstLayer(_linear(self.key[0]).weight, _features(self.settings))]


class Perceptron(_OnCoordinates):
    """The ablation: all clients' features, in order, through a perceptron to one weight each."""

    def __init__(self, settings: PrincipalSettings) -> None:
        super().__init__(settings)
        assert settings.clients is not None
        wide = settings.features * settings.clients
        self.perceptron = nn.Sequential(
            nn.Linear(wide, settings.features),
            nn.ReLU(),
            nn.Linear(settings.features, settings.clients),
        )

    def start(self, inputs: Inputs) -> Tensor:
        return inputs["features"].mean(1)

    def keys(self, inputs: Inputs) -> Tensor:
        return torch.tanh(self.perceptron(inputs["features"].flatten(1)))

    def score(self, inputs: Inputs, keys: Tensor, estimate: Tensor) -> Tensor:
        return keys

    def first_layers(self) -> list[FirstLayer]:
        every_client = _features(self.settings) * (self.settings.clients or 1)
        return [FirstLayer(_linear(self.perceptron[0]).weight, every_client)]


def coordinates(grams: Tensor, settings: PrincipalSettings) -> Tensor:
    """Return principal coordinates of every layer: (rounds, n, layers × components).

    For X = U S Vᵀ they are the first columns of U S, from the Gram matrix X Xᵀ = U S² Uᵀ alone.
    """
    if settings.scaled:
        squares = grams.diagonal(dim1=-2, dim2=-1).sum(1).clamp(min=0)
        grams = grams / _median(squares).clamp(min=_TINY)[:, None, None, None]
    values, vectors = torch.linalg.eigh(grams)
    values, vectors = values.flip(-1).clamp(min=0), vectors.flip(-1)
    found = (vectors * values.sqrt()[..., None, :])[..., : settings.components]
    if settings.orient:
        found = torch.where(found.sum(-2, keepdim=True) < 0, -found, found)
    found = nn.functional.pad(found, (0, settings.components - found.shape[-1]))
    return found.movedim(1, 2).flatten(2)


def _features(settings: PrincipalSettings) -> list[Feature]:
    """Return what the columns of `coordinates` are."""
    return [
        Feature(layer, f"component {component}")
        for layer in range(settings.layers)
        for component in range(1, settings.components + 1)
    ]


def _linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def _off(weighed: Weighed, attackers: Tensor) -> Tensor:
    """Return the L1 distance between the weights and the ideal ones."""
    return (weighed.weights - ideal_weights(attackers, weighed.weights.dtype)).abs().mean()


def _encoder(settings: PrincipalSettings) -> nn.Sequential:
    hidden = max(1, round(settings.hidden * settings.features))
    first = nn.Linear(settings.features, hidden, bias=settings.bias)
    if settings.identity:
        eye = torch.eye(settings.features)
        with torch.no_grad():
            first.weight.normal_(std=_NOISE).add_(torch.cat([eye, -eye]))
    return nn.Sequential(
        first,
        nn.LeakyReLU() if settings.leaky else nn.ReLU(),
        nn.Linear(hidden, settings.output, bias=settings.bias),
    )


def _median(values: Tensor) -> Tensor:
    """Return the median over the clients; for an even number the mean of the middle two."""
    in_order, n = values.sort(1).values, values.shape[1]
    return (in_order[:, (n - 1) // 2] + in_order[:, n // 2]) / 2


def _geometric_median(features: Tensor) -> Tensor:
    found = features.mean(1, keepdim=True)
    for _ in range(_WEISZFELD_STEPS):
        weights = 1 / (features - found).norm(dim=-1, keepdim=True).clamp(min=_TINY)
        found = (weights * features).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
    return found[:, 0]
