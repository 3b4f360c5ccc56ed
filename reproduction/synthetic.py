"""The paper's synthetic demonstration: outliers that attention finds and PCA does not show.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021, "Demonstrations on
synthetic data": sets of 10 samples of a 30-dimensional normal distribution, outliers that differ in
the first third of the features, noise in the last, 2048 sets to learn from. The paper does not give
the distribution; `draw_sets` says which one this is. What learns is the paper's network as it is,
with the 30 features in place of principal coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedimmune.adaptive.evaluation import detection
from fedimmune.adaptive.models.paper import Principal, PrincipalSettings, coordinates
from fedimmune.adaptive.training import Epoch, Examples, fit
from fedimmune.errors import ParameterError

__all__ = [
    "FEATURES",
    "SAMPLES",
    "THIRD",
    "Demonstration",
    "demonstrate",
    "draw_sets",
    "importance",
    "learn",
    "measure",
    "principal_plane",
]

SAMPLES, FEATURES = 10, 30
THIRD = FEATURES // 3
"""Features below THIRD tell outliers; those from 2 × THIRD on are noise."""

_MOST_OUTLIERS = 4
_CORRELATION = 0.5
_TO_VALIDATE, _TO_MEASURE = 256, 512
# Larger steps than for real rounds: 640 of them have to do.
_EPOCHS, _BATCH, _LEARNING_RATE = 20, 64, 5e-3
_DIRECTIONS = 90


@dataclass(frozen=True)
class Demonstration:
    """The result of the demonstration.

    Parameters
    ----------
    form
        The network, trained.
    curve
        How it learned.
    sets
        Sets that had no part in the training, which it was measured on.
    weights
        What it gives their samples, (sets, samples); each row sums to one.
    importance
        One number per feature.
    figures
        From `measure`, and ``important``: how many of the ten most important features are among
        the first ten.
    """

    form: Principal
    curve: list[Epoch]
    sets: Examples
    weights: Tensor
    importance: Tensor
    figures: dict[str, float]

    @property
    def shown(self) -> int:
        """The set to draw, a typical one: with three outliers, as the paper's has.

        Of these sets it is the one in the middle when they are put in the order of what the best
        line through PCA's picture tells. What the network makes of it has no say.
        """
        three = (self.sets.attackers.sum(1) == 3).nonzero().flatten()
        some = self.sets.take(three)
        told = _best_line(principal_plane(some.inputs["features"]), some.attackers)
        return int(three[told.argsort(stable=True)[len(three) // 2]])


def demonstrate(
    *,
    seed: int = 1,
    sets: int = 2048,
    epochs: int = _EPOCHS,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Demonstration:
    """Draw sets, learn from them, and measure on others.

    Parameters
    ----------
    seed
        Of everything that is drawn.
    sets
        How many to learn from. Those to measure on are the same, however many these are.
    epochs
        Number of epochs.
    on_epoch
        Called after every epoch.

    Returns
    -------
    Demonstration
        The same for the same arguments.

    Raises
    ------
    ParameterError
        There is nothing to learn from.
    """
    if sets < 1 or epochs < 1:
        raise ParameterError(f"sets and epochs must be at least 1: {sets} and {epochs}")
    random = torch.Generator().manual_seed(seed)
    to_measure = draw_sets(_TO_MEASURE, random)
    to_validate = draw_sets(_TO_VALIDATE, random)
    to_train = draw_sets(sets, random)
    form, curve = learn(to_train, to_validate, epochs=epochs, seed=seed, on_epoch=on_epoch)
    with torch.no_grad():
        weights = form(to_measure.inputs).shares
    found = importance(form)
    figures = measure(weights, to_measure, random)
    figures["important"] = float((found.topk(THIRD).indices < THIRD).sum())
    return Demonstration(form, curve, to_measure, weights, found, figures)


def draw_sets(
    count: int, random: torch.Generator, *, own: float = 0.3, noise: float = 3.0
) -> Examples:
    """Draw sets of samples, one to four of the ten outliers.

    Within a set, samples are normal. The first 20 features have a mean that is drawn for the set
    from the standard normal, and covariance own² · 0.5^|i − j|; the last 10 have mean 0 and
    variance noise², each by itself. The outliers of a set have another mean in the first 10
    features, which they share, drawn in the same way. So an outlier looks like a sample of some
    other set: none can be told by itself, nor by its length.

    Parameters
    ----------
    count
        How many sets.
    random
        Source of randomness.
    own
        How much samples of a set differ in the first 20 features.
    noise
        How large the last 10 features are.

    Returns
    -------
    sets : Examples
        The samples' ``features``, (count, 10, 30), and who is an outlier.
    """
    means = torch.randn(count, 1, 2 * THIRD, generator=random)
    others = torch.randn(count, 1, THIRD, generator=random)
    how_many = torch.randint(1, _MOST_OUTLIERS + 1, (count, 1), generator=random)
    ranks = torch.rand(count, SAMPLES, generator=random).argsort(1).argsort(1)
    outliers = ranks < how_many
    told = torch.where(outliers[..., None], others, means[..., :THIRD])
    common = means[..., THIRD:].expand(-1, SAMPLES, -1)
    place = torch.arange(2 * THIRD)
    covariance = _CORRELATION ** (place[:, None] - place).abs().double()
    root = torch.linalg.cholesky(covariance).float()
    varying = torch.randn(count, SAMPLES, 2 * THIRD, generator=random) @ root.T
    rest = torch.randn(count, SAMPLES, THIRD, generator=random)
    meant = torch.cat([told, common], -1) + own * varying
    return Examples({"features": torch.cat([meant, noise * rest], -1)}, outliers)


def learn(
    to_train: Examples,
    to_validate: Examples,
    *,
    epochs: int = _EPOCHS,
    seed: int = 1,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> tuple[Principal, list[Epoch]]:
    """Train the paper's network on features as they are given.

    Returns
    -------
    Principal
        As it was in the epoch that was best on `to_validate`.
    list of Epoch
        The learning curve.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        form = Principal(PrincipalSettings(layers=1, components=FEATURES))
    curve = fit(
        form,
        [to_train],
        [to_validate],
        epochs=epochs,
        batch=_BATCH,
        lr=_LEARNING_RATE,
        seed=seed,
        on_epoch=on_epoch,
    )
    return form, curve


def importance(form: Principal) -> Tensor:
    """Σⱼ |Wᵢⱼ| over the first layer of the key encoder, one number per feature i."""
    (first,) = form.first_layers()
    return first.weight.detach().abs().sum(0)


def measure(weights: Tensor, sets: Examples, random: torch.Generator) -> dict[str, float]:
    """Measure how well weights detect outliers, and how well other means do.

    Parameters
    ----------
    weights
        Of the samples, (sets, samples).
    sets
        The samples, and which are outliers.
    random
        Source of randomness, for ``line_chance``.

    Returns
    -------
    dict
        Means over the sets. ``attacker_weight`` (the outliers' share), ``benign_kept``, ``exact``,
        ``auroc`` and ``over_half`` of the weights, as `fedimmune.adaptive.evaluation.validate` has
        them. ``distance``, ``distance_of_mean``, ``distance_of_median``: from the robust mean, the
        mean of the inliers, relative to its length. ``median_auroc``: of how far samples are from
        the median in all features. ``plane_auroc``: of how far they are from the center in the
        first two principal components. ``line_auroc``: the best that a straight line in that
        picture can do, drawn by someone who knows the outliers; ``line_chance``: the same if as
        many samples, picked at random, are called outliers.
    """
    features, outliers = sets.inputs["features"], sets.attackers
    inliers = (~outliers).to(features.dtype)
    truth = _mix(inliers / inliers.sum(1, keepdim=True), features)
    # Of an even number, the mean of the middle two.
    median = features.quantile(0.5, dim=1)
    plane = principal_plane(features)
    shuffled = torch.rand(outliers.shape, generator=random).argsort(1)
    length = truth.norm(dim=-1)
    every = detection(weights, outliers) | {
        "distance": (_mix(weights, features) - truth).norm(dim=-1) / length,
        "distance_of_mean": (features.mean(1) - truth).norm(dim=-1) / length,
        "distance_of_median": (median - truth).norm(dim=-1) / length,
        "median_auroc": _auroc((features - median[:, None]).norm(dim=-1), outliers),
        "plane_auroc": _auroc(plane.norm(dim=-1), outliers),
        "line_auroc": _best_line(plane, outliers),
        "line_chance": _best_line(plane, outliers.gather(1, shuffled)),
    }
    return {name: float(values.double().mean()) for name, values in every.items()}


def principal_plane(features: Tensor) -> Tensor:
    """The first two principal components of each set, (sets, samples, 2), about its mean."""
    centered = (features - features.mean(1, keepdim=True)).double()
    grams = centered @ centered.mT
    return coordinates(grams[:, None], PrincipalSettings(layers=1, components=2))


def _mix(weights: Tensor, features: Tensor) -> Tensor:
    return (weights[..., None] * features).sum(1)


def _auroc(values: Tensor, outliers: Tensor) -> Tensor:
    """Probability that an outlier has the larger value."""
    return detection(-values, outliers)["auroc"]


def _best_line(plane: Tensor, outliers: Tensor) -> Tensor:
    """The largest AUROC over directions in a plane, each taken both ways."""
    angles = math.pi / _DIRECTIONS * torch.arange(_DIRECTIONS, dtype=plane.dtype)
    ways = torch.stack([angles.cos(), angles.sin()])
    found = torch.stack([_auroc(along, outliers) for along in (plane @ ways).movedim(-1, 0)])
    return torch.maximum(found, 1 - found).amax(0)
