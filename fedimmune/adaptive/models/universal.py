"""The universal form: one small network for every model, number of layers and number of clients.

The relational form has inputs for each layer of one model, so a defense belongs to that model. Here
the *same* encoder reads every layer of every client, knows of a layer only what kind of layer it
is, and a pool over the layers makes one description per client. Clients then hear of each other:
what two of them have in common, layer by layer, and how far the other is trusted so far, so that
whoever is like those who are found out is found out with them. Nothing depends on how many layers
or clients there are, in which order they come, how a layer's space is rotated, or how long all
updates are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedimmune.adaptive.models.base import (
    MOST_VALUE,
    AttentionModel,
    Feature,
    FirstLayer,
    FormSettings,
    Inputs,
    Weighed,
    ideal_weights,
)
from fedimmune.adaptive.models.relational import (
    far,
    from_median,
    geometric_median,
    products,
    without_diagonal,
)
from fedimmune.errors import InputError
from fedimmune.landmarks import Landmarks

__all__ = ["Universal", "UniversalSettings", "describe_layers"]

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_COSINES = ("least", "lower quartile", "median", "upper quartile", "largest")
_LIKENESS = tuple(f"cosine to others, {which}" for which in _COSINES)
_BY_CHANCE = tuple(f"cosine to others, {which}, by chance" for which in ("median", "mean square"))
_COMPARED = (
    "length",
    *_LIKENESS,
    *_BY_CHANCE,
    "distance to the nearest",
    "distance to the nearer half",
)
_AMONG = (
    *_LIKENESS,
    *_BY_CHANCE,
    *(f"{kind}, against the median client's" for kind in _COMPARED),
    *(f"{kind}, by how much clients differ" for kind in _COMPARED),
)
_ANCHOR = (
    "there is a server's update",
    "cosine to the server's",
    "cosine to the server's, against the median client's",
    "cosine to the server's, by how much clients differ",
    "length against the server's",
)
_PAIR = ("cosine", "cosine, by how much pairs differ", "distance, against the median pair's")
_PAIRED = 16
"""Width of what two clients have in common."""
_MOST_TRUST = 3.0
"""A client with more than so many times its equal share is not trusted more."""
_LAYER = ("size", "depth", "is a vector", "is a convolution", "is one of the last two")
_TO_ESTIMATE = (
    "cosine to the estimate",
    "cosine to the estimate, against the median client's",
    "cosine to the estimate, by how much clients differ",
    "length against the estimate's",
)
_TINY = 1e-12
_GENTLE = 4.0
"""Scores are tanh(x / 4): the farther from saturation, the sooner a wrong score is unlearned."""
_START_SMOOTHING = 1e-4
_AT_ONCE = 1024
"""So many clients are encoded at a time: what is encoded is 64 numbers per client and layer."""
_LEAST_SPREAD = 1e-3
_BY_CHANCE_UNIT = 3.0
_FAR_OUT = 3.0
"""So many median deviations are 1: inputs of a network are best about 1."""
_FEWEST = 0.1
"""Attackers of a batch count as if they were at least this share."""
_WIDENED = 0.25
"""By how much of its width the range seen in training is widened, at both ends."""


class ManyInputs(dict[str, Tensor]):
    """What the form reads of one round of many clients, without their n×n inner products.

    Parameters
    ----------
    tensors
        What `Universal.prepare` returns, without ``grams``; and ``start``, the first estimate.
    multiply
        Returns inner products with an estimate by layer, (layers, n): a read of the round.
    landmarks
        Which clients everybody was compared with.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        multiply: Callable[[Tensor], Tensor],
        landmarks: Tensor,
    ) -> None:
        super().__init__(tensors)
        self.multiply, self.landmarks = multiply, landmarks


class UniversalSettings(FormSettings):
    """What the universal form is made with.

    Parameters
    ----------
    layers
        Always 1: the form reads any number.
    hidden
        Width of the encoder and of what comes after the pools.
    labels
        Weight of the scores' cross-entropy with the clients' labels in the loss, compared with the
        distance to the robust mean.
    honest
        How much more all wrongly accused clients count in that than all missed attackers.
    """

    layers: int = Field(1, ge=1, le=1)
    passes: int = Field(3, ge=1, le=1000)
    hidden: int = Field(64, ge=1, le=1024)
    labels: float = Field(3.0, ge=0, le=MOST_VALUE)
    honest: float = Field(1.0, gt=0, le=MOST_VALUE)


class Universal(AttentionModel):
    """One encoder for all layers of all models, pooled over layers; messages between clients.

    A client's weight is proportional to sigmoid(c · score), and 0 if that is below `eps`: whoever
    is likely honest counts alike, so an honest client that is somewhat odd is not left out because
    others are less so.
    """

    name = "universal"
    side_by_side = frozenset()
    settings: UniversalSettings
    low: Tensor
    high: Tensor

    def __init__(self, settings: UniversalSettings) -> None:
        super().__init__(settings)
        width = settings.hidden
        # The encoder's first layer in two parts: one is the same in all passes.
        self.key = nn.Linear(len(_AMONG) + len(_ANCHOR) + len(_LAYER), width)
        self.query = nn.Linear(len(_TO_ESTIMATE), width, bias=False)
        self.encoder = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.gate = nn.Linear(width, 1)
        self.pooled = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU())
        self.pairs = nn.Sequential(
            nn.Linear(len(_PAIR) + len(_LAYER), _PAIRED),
            nn.ReLU(),
            nn.Linear(_PAIRED, _PAIRED),
            nn.ReLU(),
        )
        # What two clients have in common, and what each is: the message's first layer, in parts.
        self.likeness = nn.Linear(2 * _PAIRED, width)
        self.receiver = nn.Linear(width, width, bias=False)
        self.sender = nn.Linear(width + 1, width, bias=False)
        self.head = nn.Sequential(nn.Linear(5 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.register_buffer("low", torch.full((len(_QUANTILES) + 1,), -MOST_VALUE))
        self.register_buffer("high", torch.full((len(_QUANTILES) + 1,), MOST_VALUE))

    def prepare(
        self, grams: Tensor, shapes: Sequence[Sequence[int]] = (), *, anchored: bool = False
    ) -> dict[str, Tensor]:
        layers, n = grams.shape[1], grams.shape[-1] - anchored
        self._check_shapes(shapes, layers)
        squares = grams.diagonal(dim1=-2, dim2=-1).clamp(min=0)
        unit, most = _unit(squares[..., :n])
        scaled = grams / unit[..., None, None]
        lengths = scaled.diagonal(dim1=-2, dim2=-1).clamp(min=_TINY).sqrt()
        cosines = (scaled / (lengths[..., :, None] * lengths[..., None, :])).clamp(-1, 1)
        apart = _distances(scaled[..., :n, :n])
        return {
            "grams": scaled[..., :n, :n].to(self.dtype),
            "pairs": _pairs(cosines[..., :n, :n], apart, torch.arange(n)).to(self.dtype),
            **self._described(
                lengths[..., :n],
                _likeness(without_diagonal(cosines[..., :n, :n]), shapes),
                _nearest(without_diagonal(apart)),
                cosines[..., :n, n:],
                lengths[..., None, n:],
                squares[..., n:, None] > 0,
                most,
                shapes,
            ),
        }

    def prepare_many(self, marks: Landmarks, *, anchored: bool = False) -> ManyInputs:
        """Read what the form needs out of a round that was compared with landmarks.

        Quantiles of cosines, and distances to the nearest and to the nearer half, are those among
        the landmarks; all else is as `prepare` has it.
        """
        k, index = len(marks.rows), marks.rows
        self._check_shapes(marks.shapes, len(marks.squares))
        squares, products = marks.squares[None], marks.products[None]
        unit, most = _unit(squares)
        inner = squares / unit[..., None]
        lengths = inner.clamp(min=_TINY).sqrt()
        scaled = products / unit[..., None, None]
        theirs = lengths[..., index]
        cosines = (scaled[..., :k] / (lengths[..., :, None] * theirs[..., None, :])).clamp(-1, 1)
        likeness = _likeness(cosines, marks.shapes)
        likeness[..., index, :] = _likeness(without_diagonal(cosines[..., index, :]), marks.shapes)
        apart = inner[..., :, None] + inner[..., None, index] - 2 * scaled[..., :k]
        near = _nearest(apart.clamp_(min=0))
        near[..., index, :] = _nearest(without_diagonal(apart[..., index, :]))
        own = (marks.references[None] / unit[..., None]).clamp(min=_TINY).sqrt()
        to_anchor = scaled[..., k:] / (lengths[..., :, None] * own[..., None, :])
        found = self._described(
            lengths,
            likeness,
            near,
            to_anchor.clamp(-1, 1)[..., : int(anchored)],
            own[..., None, :],
            marks.references[None, ..., None] > 0,
            most,
            marks.shapes,
        )
        first, _ = marks.start(unit[0], smoothing=_START_SMOOTHING)

        def multiply(estimate: Tensor) -> Tensor:
            read = marks.multiply(estimate[0].to(torch.float64)) / unit[0][:, None]
            return read[None].to(self.dtype)

        found["start"] = first[None].to(self.dtype)
        found["pairs"] = _pairs(cosines, apart, index).to(self.dtype)
        return ManyInputs(found, multiply, index)

    def _check_shapes(self, shapes: Sequence[Sequence[int]], layers: int) -> None:
        if len(shapes) != layers:
            raise InputError(
                f"the universal form reads what each layer is: there are {layers} Gram matrices "
                f"and {len(shapes)} shapes"
            )

    def _described(
        self,
        lengths: Tensor,
        likeness: Tensor,
        nearness: Tensor,
        to_anchor: Tensor,
        of_anchor: Tensor,
        has_anchor: Tensor,
        most: Tensor,
        shapes: Sequence[Sequence[int]],
    ) -> dict[str, Tensor]:
        """Put together what is known of clients: all but the estimate's part."""
        logs, n = lengths.log(), lengths.shape[-1]
        compared = torch.cat([far(logs[..., None]), likeness, nearness], -1)
        known = lengths.new_zeros(*lengths.shape[:2], n, len(_ANCHOR))
        if to_anchor.shape[-1]:
            parts = [
                torch.ones_like(to_anchor),
                to_anchor,
                *_compared(to_anchor),
                far(logs[..., None] - of_anchor.log()),
            ]
            # A server whose own update is nothing knows nothing.
            known = torch.where(has_anchor, torch.cat(parts, -1), known)
        described = describe_layers(shapes).to(lengths)[None, :, None]
        described = described.expand(len(lengths), -1, n, -1)
        return {
            "lengths": lengths.to(self.dtype),
            "logs": logs.to(self.dtype),
            "known": torch.cat([likeness, *_compared(compared), known, described], -1).to(
                self.dtype
            ),
            # A layer that nobody has changed says nothing.
            "there": (most > 0).to(self.dtype),
        }

    def start(self, inputs: Inputs) -> Tensor:
        """Near the geometric median: the mean would be whatever the longest update is."""
        if isinstance(inputs, ManyInputs):
            return inputs["start"]
        with torch.no_grad():
            return geometric_median(inputs["grams"].sum(1))

    def keys(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        parts = inputs["pairs"].split(_AT_ONCE, 2)
        return self.key(inputs["known"]), torch.cat([self._alike(inputs, p) for p in parts], 1)

    def _alike(self, inputs: Inputs, pairs: Tensor) -> Tensor:
        """Return what clients have in common with those they are compared with."""
        described = inputs["known"][..., :1, -len(_LAYER) :]  # the same for all clients
        described = described[..., None, :].expand(*pairs.shape[:-1], -1)
        encoded = self.pairs(torch.cat([pairs, described], -1))
        there = inputs["there"][..., None, None, None]
        share = there / there.sum(1, keepdim=True).clamp(min=1)
        pools = [(share * encoded).sum(1), (there * encoded).amax(1)]
        alike: Tensor = self.likeness(torch.cat(pools, -1))
        return alike

    def score(self, inputs: Inputs, keys: tuple[Tensor, Tensor], estimate: Tensor) -> Tensor:
        each = self._pooled(inputs, keys[0], estimate)
        n = each.shape[1]
        senders = inputs.landmarks if isinstance(inputs, ManyInputs) else torch.arange(n)
        # What others, as they are trusted so far, have in common with a client.
        trust = (n * estimate - 1).clamp(max=_MOST_TRUST)[..., None]
        sent = self.sender(torch.cat([each, trust], -1)[:, senders])
        heard = [
            _heard(receiver, sent, alike, rows, senders)
            for receiver, alike, rows in zip(
                self.receiver(each).split(_AT_ONCE, 1),
                keys[1].split(_AT_ONCE, 1),
                torch.arange(n).split(_AT_ONCE),
                strict=True,
            )
        ]
        everyone = torch.cat([each.mean(1), each.amax(1)], -1)[:, None].expand(-1, n, -1)
        seen = torch.cat([each, torch.cat(heard, 1), everyone], -1)
        return torch.tanh(self.head(seen)[..., 0] / _GENTLE)

    def _pooled(self, inputs: Inputs, keys: Tensor, estimate: Tensor) -> Tensor:
        """Return one description per client, (rounds, n, hidden), whatever the layers."""
        seen = _to_estimate(inputs, estimate)
        if seen.shape[2] <= _AT_ONCE:
            return self._pool(inputs, keys, seen)
        parts = zip(keys.split(_AT_ONCE, 2), seen.split(_AT_ONCE, 2), strict=True)
        return torch.cat([self._pool(inputs, *part) for part in parts], 1)

    def _pool(self, inputs: Inputs, keys: Tensor, seen: Tensor) -> Tensor:
        encoded = self.encoder(keys + self.query(seen))
        there = inputs["there"][..., None, None]
        share = there / there.sum(1, keepdim=True).clamp(min=1)
        gates = torch.softmax(self.gate(encoded) + (there.clamp(min=_TINY)).log(), 1)
        pools = [
            (share * encoded).sum(1),
            (there * encoded).amax(1),  # what is encoded is never negative
            (gates * there * encoded).sum(1),
        ]
        pooled: Tensor = self.pooled(torch.cat(pools, -1))
        return pooled

    def attend(self, logits: Tensor) -> Tensor:
        likely = torch.sigmoid(logits)
        kept = torch.where(likely < self.settings.eps, torch.zeros_like(likely), likely)
        # If nobody is likely honest, the likeliest lead: what to do then is the rule's to decide.
        weights = torch.where((kept > 0).any(-1, keepdim=True), kept, torch.softmax(logits, -1))
        return weights / weights.sum(-1, keepdim=True)

    def estimate(self, inputs: Inputs, weights: Tensor) -> Tensor:
        return weights / weights.sum(-1, keepdim=True)

    def describe(self, inputs: Inputs, estimate: Tensor) -> Tensor:
        return self._pooled(inputs, self.keys(inputs)[0], estimate)

    @property
    def described_by(self) -> int:
        return self.settings.hidden

    def first_layers(self) -> list[FirstLayer]:
        kinds = (*_AMONG, *_ANCHOR, *_LAYER)
        pair = self.pairs[0]
        assert isinstance(pair, nn.Linear)
        return [
            FirstLayer(self.key.weight, [Feature(None, kind) for kind in kinds]),
            FirstLayer(self.query.weight, [Feature(None, kind) for kind in _TO_ESTIMATE]),
            FirstLayer(
                pair.weight,
                [Feature(None, f"{kind} (pair of clients)") for kind in (*_PAIR, *_LAYER)],
            ),
        ]

    def loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        """The distance to the robust mean relative to its length, and the scores' cross-entropy."""
        wanted = ideal_weights(attackers, weighed.weights.dtype)
        grams = inputs["grams"]
        with torch.no_grad():
            # Nobody knows the robust mean better than honest clients differ: the mean of a model
            # that has converged is shorter than that.
            squares = (grams.diagonal(dim1=-2, dim2=-1) * wanted[:, None]).sum(-1)
            whole = _square(grams, wanted) + squares / (~attackers).sum(-1, keepdim=True)
        square = _square(grams, weighed.shares - wanted)
        distance = (square.clamp(min=1e-10) / whole.clamp(min=1e-6)).clamp(max=25).sqrt()
        logits = self.settings.c * weighed.scores
        benign = (~attackers).to(logits.dtype).expand_as(logits)
        each = nn.functional.binary_cross_entropy_with_logits(logits, benign, reduction="none")
        # The honest together count as much as the attackers, however few those are.
        share = attackers.to(logits.dtype).mean().clamp(min=_FEWEST, max=1 - _FEWEST)
        weight = benign * self.settings.honest / (1 - share) + (1 - benign) / share
        entropy = (each * weight).mean() / (1 + self.settings.honest)
        return distance.mean() + self.settings.labels * entropy

    def familiar(self, inputs: Inputs) -> Tensor:
        seen = _spread(inputs)
        return ((seen >= self.low) & (seen <= self.high)).all(-1)

    @torch.no_grad()
    def note_ranges(self, batches: Sequence[Inputs]) -> None:
        """Note the range of what rounds look like as a whole, for `familiar`."""
        seen = torch.cat([_spread(inputs) for inputs in batches])
        low, high = seen.amin(0), seen.amax(0)
        margin = _WIDENED * (high - low)
        self.low.copy_(low - margin)
        self.high.copy_(high + margin)


def describe_layers(shapes: Sequence[Sequence[int]]) -> Tensor:
    """Return what the form knows of each layer, (layers, 5): none of it depends on names."""
    count = len(shapes)
    rows = [
        (
            math.log10(max(1, math.prod(shape))) / 6,
            place / max(1, count - 1),
            float(len(shape) <= 1),
            float(len(shape) >= 3),
            float(place >= count - 2),
        )
        for place, shape in enumerate(shapes)
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(count, len(_LAYER))


def _quantiles(values: Tensor) -> Tensor:
    """Return `_QUANTILES` of the last dimension; by one sort, quicker than `torch.quantile`."""
    ordered = values.sort(-1).values
    last = values.shape[-1] - 1
    found = []
    for quantile in _QUANTILES:
        place = quantile * last
        below = math.floor(place)
        above = min(below + 1, last)
        found.append(torch.lerp(ordered[..., below], ordered[..., above], place - below))
    return torch.stack(found, -1)


def _likeness(cosines: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """Return how alike each client and others are: quantiles of cosines, and against chance."""
    return torch.cat([_quantiles(cosines), _by_chance(cosines, shapes)], -1)


def _by_chance(cosines: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """Return logarithms of cosines' sizes, in units of what random directions have.

    Of d numbers each, two random directions have a cosine of about 1/√d. Noise has nothing more in
    common with anybody, and honest clients do, however different their data are.
    """
    sizes = cosines.new_tensor([max(1, math.prod(shape)) for shape in shapes])[None, :, None, None]
    squares = cosines.square() * sizes
    found = torch.stack([squares.median(-1).values, squares.mean(-1)], -1)
    return 0.5 * found.clamp(min=1e-2).log() / _BY_CHANCE_UNIT


def _compared(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return differences to the median client, as they are and by how much clients differ.

    How alike honest clients are depends on data, model and how long they train. What carries over
    is how far a client is from the others by the others' own measure, their median deviation.
    """
    away = from_median(values)
    usual = away.abs().median(-2, keepdim=True).values
    return away, far(away / usual.clamp(min=_LEAST_SPREAD)) / _FAR_OUT


def _distances(grams: Tensor) -> Tensor:
    """Return squared distances between clients."""
    squares = grams.diagonal(dim1=-2, dim2=-1)
    return (squares[..., :, None] + squares[..., None, :] - 2 * grams).clamp(min=0)


def _nearest(squared: Tensor) -> Tensor:
    """Return logarithms of distances to the nearest and to the nearer half, given all squared."""
    ordered = squared.sort(-1).values
    half = max(1, ordered.shape[-1] // 2)
    found = torch.stack([ordered[..., 0], ordered[..., :half].mean(-1)], -1)
    return far(0.5 * found.clamp(min=1e-6).log())


def _pairs(cosines: Tensor, apart: Tensor, others: Tensor) -> Tensor:
    """Return what clients have in common with others by layer, (rounds, layers, n, others, 3).

    Parameters
    ----------
    cosines, apart
        Cosines and squared distances, (rounds, layers, n, others).
    others
        Which clients those are.
    """
    n, k = cosines.shape[-2:]
    itself = torch.arange(n)[:, None] == others
    kept = ~itself if k > 1 else torch.ones_like(itself)  # one client alone is its own other

    def middle(values: Tensor) -> Tensor:
        return values[..., kept].median(-1).values[..., None, None]

    away = cosines - middle(cosines)
    apart = apart.clamp(min=_TINY)
    parts = [
        cosines,
        far(away / middle(away.abs()).clamp(min=_LEAST_SPREAD)) / _FAR_OUT,
        far(0.5 * (apart / middle(apart)).log()),
    ]
    return torch.stack(parts, -1)


def _heard(receiver: Tensor, sent: Tensor, alike: Tensor, rows: Tensor, senders: Tensor) -> Tensor:
    """Return the mean and the largest of what some clients hear from others."""
    from_others = rows[:, None] != senders
    messages = torch.relu(receiver[:, :, None] + sent[:, None] + alike)
    messages = messages * from_others[None, :, :, None]
    count = from_others.sum(1).clamp(min=1)[None, :, None]
    return torch.cat([messages.sum(2) / count, messages.amax(2)], -1)


def _to_estimate(inputs: Inputs, estimate: Tensor) -> Tensor:
    """Return cosines to the estimate and lengths against its, (rounds, layers, n, 4)."""
    if isinstance(inputs, ManyInputs):
        with_estimate = inputs.multiply(estimate)
    else:
        with_estimate = products(inputs["grams"], estimate)
    square = (with_estimate * estimate[:, None]).sum(-1, keepdim=True).clamp(min=_TINY)
    cosines = (with_estimate / (inputs["lengths"] * square.sqrt())).clamp(-1, 1)[..., None]
    lengths = far(inputs["logs"] - 0.5 * square.log())[..., None]
    return torch.cat([cosines, *_compared(cosines), lengths], -1)


def _unit(squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each layer is measured in, the median client's square, and the largest."""
    usual, most = squares.median(-1).values, squares.amax(-1)
    return torch.where(usual > 0, usual, torch.where(most > 0, most, torch.ones_like(most))), most


def _square(grams: Tensor, weights: Tensor) -> Tensor:
    """‖Σ wᵢxᵢ‖² by layer."""
    square: Tensor = (products(grams, weights) * weights[:, None]).sum(-1)
    return square


def _spread(inputs: Inputs) -> Tensor:
    """Return what a round looks like as a whole, (rounds, 6): by the median client and layer.

    The median, because what attackers do to single clients or layers does not make a round odd.
    """
    known, there = inputs["known"], inputs["there"]
    usual = known[..., : len(_QUANTILES)].median(-2).values
    length = len(_LIKENESS) + len(_BY_CHANCE)  # against the median client's
    uneven = known[..., length : length + 1].abs().median(-2).values
    every = torch.cat([usual, uneven], -1)
    every = torch.where(there[..., None] > 0, every, torch.nan)
    return torch.nan_to_num(every.nanmedian(1).values)
