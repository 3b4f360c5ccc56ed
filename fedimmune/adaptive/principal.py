"""The paper's form: clients as points in the principal axes of each layer, compared by encoders.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedimmune.adaptive.forms import (
    MOST_WIDTH,
    Feature,
    FirstLayer,
    Form,
    FormSettings,
    Inputs,
    Weighed,
)

__all__ = ["Perceptron", "Principal", "PrincipalSettings"]

_WEISZFELD_STEPS = 30
_TINY = 1e-12


class PrincipalSettings(FormSettings):
    """What the paper's form is made with.

    Parameters
    ----------
    layers
        How many layers are measured.
    components
        How many principal axes a layer.
    start
        The first estimate: the coordinate-wise ``median`` (the paper's), ``mean`` or
        ``geometric-median`` of the clients' features.
    orient
        Turn every axis so that the clients' coordinates sum to at least 0; the paper leaves the
        signs as the decomposition gives them.
    hidden, output
        Widths of the encoders, as multiples of the input's for `hidden` and as they are for
        `output`.
    shared
        One encoder for the estimate and the clients; the paper has two.
    bias
        Whether the encoders have biases.
    leaky
        Leaky ReLU instead of ReLU.
    attention
        With False: a perceptron on all clients' features in their order gives the weights (an
        ablation, bound to their number and order on purpose).
    clients
        How many, for the ablation alone.
    """

    layers: int = Field(ge=1, le=MOST_WIDTH)
    components: int = Field(10, ge=1, le=MOST_WIDTH)
    start: Literal["median", "mean", "geometric-median"] = "median"
    orient: bool = False
    hidden: float = Field(1.0, gt=0, le=1000)
    output: int = Field(32, ge=1, le=MOST_WIDTH)
    shared: bool = False
    bias: bool = True
    leaky: bool = False
    attention: bool = True
    clients: int | None = Field(None, ge=1, le=MOST_WIDTH)

    @model_validator(mode="after")
    def _clients_are_for_the_ablation(self) -> Self:
        if not self.attention and self.clients is None:
            raise ValueError("a perceptron on all clients has to know how many there are")
        return self

    @property
    def features(self) -> int:
        """How many numbers describe a client."""
        return self.layers * self.components


class Principal(Form):
    """Cosine scores of two-layer encoders on principal coordinates."""

    name = "paper"
    side_by_side = frozenset({"features"})
    settings: PrincipalSettings

    def __init__(self, settings: PrincipalSettings) -> None:
        super().__init__(settings)
        self.key = _encoder(settings)
        self.query = self.key if settings.shared else _encoder(settings)

    def prepare(self, grams: Tensor) -> dict[str, Tensor]:
        return {"features": coordinates(grams, self.settings).to(self.dtype)}

    def start(self, inputs: Inputs) -> Tensor:
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

    def estimate(self, inputs: Inputs, weights: Tensor) -> Tensor:
        return (weights[..., None] * inputs["features"]).sum(1)

    def first_layers(self) -> list[FirstLayer]:
        # The paper's definition looks at the key's encoder alone.
        return [FirstLayer(_linear(self.key[0]).weight, _features(self.settings))]

    def describe(self, inputs: Inputs, estimate: Tensor) -> Tensor:
        return _beside(inputs["features"], estimate)

    @property
    def described_by(self) -> int:
        return 2 * self.settings.features

    def loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        """The L1 distance of the last estimate, not renormalised, to the robust mean."""
        return _l1_loss(self, inputs, weighed, attackers)


class Perceptron(Form):
    """The ablation: all clients' features, in order, through a perceptron to one weight each."""

    name = "paper"
    side_by_side = frozenset({"features"})
    settings: PrincipalSettings

    def __init__(self, settings: PrincipalSettings) -> None:
        super().__init__(settings)
        assert settings.clients is not None
        wide = settings.features * settings.clients
        self.perceptron = nn.Sequential(
            nn.Linear(wide, settings.features),
            nn.ReLU(),
            nn.Linear(settings.features, settings.clients),
        )

    def prepare(self, grams: Tensor) -> dict[str, Tensor]:
        return {"features": coordinates(grams, self.settings).to(self.dtype)}

    def start(self, inputs: Inputs) -> Tensor:
        return inputs["features"].mean(1)

    def keys(self, inputs: Inputs) -> Tensor:
        return torch.tanh(self.perceptron(inputs["features"].flatten(1)))

    def score(self, inputs: Inputs, keys: Tensor, estimate: Tensor) -> Tensor:
        return keys

    def estimate(self, inputs: Inputs, weights: Tensor) -> Tensor:
        return (weights[..., None] * inputs["features"]).sum(1)

    def first_layers(self) -> list[FirstLayer]:
        every_client = _features(self.settings) * (self.settings.clients or 1)
        return [FirstLayer(_linear(self.perceptron[0]).weight, every_client)]

    def describe(self, inputs: Inputs, estimate: Tensor) -> Tensor:
        return _beside(inputs["features"], estimate)

    @property
    def described_by(self) -> int:
        return 2 * self.settings.features

    def loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        return _l1_loss(self, inputs, weighed, attackers)


def coordinates(grams: Tensor, settings: PrincipalSettings) -> Tensor:
    """Principal coordinates of every layer, side by side: (rounds, n, layers × components).

    For X = U S Vᵀ they are the first columns of U S, from the Gram matrix X Xᵀ = U S² Uᵀ alone.
    """
    values, vectors = torch.linalg.eigh(grams)
    values, vectors = values.flip(-1).clamp(min=0), vectors.flip(-1)
    found = (vectors * values.sqrt()[..., None, :])[..., : settings.components]
    if settings.orient:
        found = torch.where(found.sum(-2, keepdim=True) < 0, -found, found)
    found = nn.functional.pad(found, (0, settings.components - found.shape[-1]))
    return found.movedim(1, 2).flatten(2)


def _features(settings: PrincipalSettings) -> list[Feature]:
    """What the columns of `coordinates` are."""
    return [
        Feature(layer, f"component {component}")
        for layer in range(settings.layers)
        for component in range(1, settings.components + 1)
    ]


def _linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def _beside(features: Tensor, estimate: Tensor) -> Tensor:
    """Each client's features, and their difference to the estimate."""
    return torch.cat([features, features - estimate[:, None]], -1)


def _l1_loss(form: Form, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
    benign = (~attackers).to(weighed.weights.dtype)
    truth = form.estimate(inputs, benign / benign.sum(-1, keepdim=True))
    return (form.estimate(inputs, weighed.weights) - truth).abs().mean()


def _encoder(settings: PrincipalSettings) -> nn.Sequential:
    hidden = max(1, round(settings.hidden * settings.features))
    return nn.Sequential(
        nn.Linear(settings.features, hidden, bias=settings.bias),
        nn.LeakyReLU() if settings.leaky else nn.ReLU(),
        nn.Linear(hidden, settings.output, bias=settings.bias),
    )


def _median(features: Tensor) -> Tensor:
    """For an even number the mean of the middle two."""
    in_order, n = features.sort(1).values, features.shape[1]
    return (in_order[:, (n - 1) // 2] + in_order[:, n // 2]) / 2


def _geometric_median(features: Tensor) -> Tensor:
    found = features.mean(1, keepdim=True)
    for _ in range(_WEISZFELD_STEPS):
        weights = 1 / (features - found).norm(dim=-1, keepdim=True).clamp(min=_TINY)
        found = (weights * features).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
    return found[:, 0]
