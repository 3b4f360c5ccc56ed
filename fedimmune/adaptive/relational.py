"""The relational form: scores from inner products alone, whatever the axes.

A similarity that must not change when a layer's space is rotated can depend on inner products
only. So the network reads, layer by layer, what the Gram matrix says about a client and the current
estimate q = Σ wⱼxⱼ: no sign and no order of axes that could be arbitrary, and no fixed number of
clients.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from fedimmune.adaptive.forms import Form, FormSettings, Inputs, Weighed

__all__ = ["Relational", "RelationalSettings"]

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_TINY = 1e-12
_FAR = 4.0
"""Logarithms of ratios of lengths are cut off here: e⁴ times as long is as odd as it gets."""


class RelationalSettings(FormSettings):
    """What the relational form is made with.

    Parameters
    ----------
    layers
        How many layers are measured.
    anchor
        Whether the server's own update is among the rows, last.
    hidden
        Width of the perceptron's two hidden layers.
    labels
        How much the loss asks each score for its client's label, beside the distance to the
        robust mean.
    """

    layers: int = Field(ge=1)
    anchor: bool = True
    hidden: int = Field(64, ge=1)
    labels: float = Field(1.0, ge=0)


class Relational(Form):
    """A perceptron on what inner products say of a client and the current estimate.

    Per layer: the cosine to the estimate, the length against the estimate's and against the median
    client's, five quantiles of the cosines to the other clients; with an anchor, the cosine to it.
    """

    name = "relational"
    settings: RelationalSettings

    def __init__(self, settings: RelationalSettings) -> None:
        super().__init__(settings)
        features = settings.layers * (2 + 1 + len(_QUANTILES) + settings.anchor)
        self.perceptron = nn.Sequential(
            nn.Linear(features, settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, 1),
        )

    def prepare(self, grams: Tensor) -> dict[str, Tensor]:
        n = grams.shape[-1] - self.settings.anchor
        squares = grams.diagonal(dim1=-2, dim2=-1).clamp(min=0)
        # Any unit will do, so take the median client's, or the longest where that is nothing:
        # small numbers lose nothing in float32.
        usual, most = squares[..., :n].median(-1).values, squares[..., :n].amax(-1)
        unit = torch.where(usual > 0, usual, torch.where(most > 0, most, torch.ones_like(most)))
        scaled = grams / unit[..., None, None]
        lengths = scaled.diagonal(dim1=-2, dim2=-1).clamp(min=_TINY).sqrt()
        cosines = (scaled / (lengths[..., :, None] * lengths[..., None, :])).clamp(-1, 1)
        others = _without_diagonal(cosines[..., :n, :n])
        quantiles = others.new_tensor(_QUANTILES)
        fixed = [
            _log(lengths[..., :n] / lengths[..., :n].median(-1, keepdim=True).values)[..., None],
            torch.quantile(others, quantiles, dim=-1).movedim(0, -1),
        ]
        if self.settings.anchor:
            fixed.append(cosines[..., :n, n:])
        return {
            "grams": scaled[..., :n, :n].to(self.dtype),
            "lengths": lengths[..., :n].to(self.dtype),
            "fixed": torch.cat(fixed, -1).to(self.dtype),
        }

    def start(self, inputs: Inputs) -> Tensor:
        lengths = inputs["lengths"]
        n = lengths.shape[-1]
        return lengths.new_full((len(lengths), n), 1 / n)

    def score(self, inputs: Inputs, estimate: Tensor) -> Tensor:
        lengths = inputs["lengths"]
        with_estimate = (inputs["grams"] @ estimate[:, None, :, None])[..., 0]
        square = (with_estimate * estimate[:, None]).sum(-1, keepdim=True)
        length = square.clamp(min=_TINY).sqrt()
        cosines = (with_estimate / (lengths * length)).clamp(-1, 1)
        features = torch.cat(
            [cosines[..., None], _log(lengths / length)[..., None], inputs["fixed"]], -1
        )
        by_client = features.movedim(1, 2).flatten(2)  # (rounds, n, layers × features)
        return torch.tanh(self.perceptron(by_client)[..., 0])

    def estimate(self, inputs: Inputs, weights: Tensor) -> Tensor:
        return weights / weights.sum(-1, keepdim=True)

    def loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        """The distance to the robust mean relative to its length, averaged over layers."""
        benign = (~attackers).to(weighed.weights.dtype)
        wanted = benign / benign.sum(-1, keepdim=True)
        square = _square(inputs["grams"], weighed.shares - wanted)
        whole = _square(inputs["grams"], wanted).clamp(min=1e-6)
        distance = (square.clamp(min=1e-10) / whole).clamp(max=100).sqrt().mean()
        if not self.settings.labels:
            return distance
        logits = 0.5 * self.settings.c * weighed.scores
        labels = benign.expand_as(logits)
        return distance + self.settings.labels * nn.functional.binary_cross_entropy_with_logits(
            logits, labels
        )


def _square(grams: Tensor, weights: Tensor) -> Tensor:
    """‖Σ wᵢxᵢ‖² by layer."""
    products = (grams @ weights[:, None, :, None])[..., 0]
    square: Tensor = (products * weights[:, None]).sum(-1)
    return square


def _log(ratio: Tensor) -> Tensor:
    return ratio.clamp(min=_TINY).log().clamp(-_FAR, _FAR)


def _without_diagonal(square: Tensor) -> Tensor:
    """(…, n, n) → (…, n, n − 1); one client alone is compared with itself."""
    n = square.shape[-1]
    if n == 1:
        return square
    kept = ~torch.eye(n, dtype=torch.bool, device=square.device)
    return square[..., kept].reshape(*square.shape[:-1], n - 1)
