"""Data sets of the corpus: bundled, generated from a seed, and small parts of public ones.

What a set looks like (`spec_of`) is known before any sample is made. Generated sets are easy to
learn, but not trivial, and no two seeds give the same classes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from fedimmune import tasks
from fedimmune.simulation.seeding import seed_for
from fedimmune.tasks import Data, DataSpec, Samples
from fedimmune.tasks.images import normalize, resize
from fedimmune.tasks.text import UNKNOWN

__all__ = ["KINDS", "PUBLIC", "load_set", "most_samples", "present", "spec_of"]

KINDS = {
    "image": ("digits", "photographs", "blobs", "textures", "strokes"),
    "text": ("phrases", "topics", "chains"),
    "table": ("breast-cancer", "wine", "iris", "diabetes", "clusters", "rings", "teacher"),
}
"""What is at hand without files, by the kind of data."""
PUBLIC = {"mnist": "image", "fashion-mnist": "image", "cifar10": "image", "cifar100": "image"} | {
    "imdb": "text"
}
"""Data sets that are used where their files are, and their kinds."""

_TABLES = {  # classes, features, samples
    "breast-cancer": (2, 30, 569),
    "wine": (3, 13, 178),
    "iris": (3, 4, 150),
    "diabetes": (3, 10, 442),
}
_DIGITS = 1797
_IMDB_WORDS, _IMDB_LENGTH = 20_000, 40
_FIRST_WORD = UNKNOWN + 1

Floats = NDArray[np.float64]
Made = tuple[Tensor, Tensor]
"""Inputs and labels."""


def present(place: Path) -> tuple[str, ...]:
    """List the public data sets whose files are in a folder; nothing is downloaded."""
    return tuple(
        name
        for name in PUBLIC
        if all(file.verdict != "missing" for file in tasks.get(name).check(place))
    )


def spec_of(name: str, seed: int) -> DataSpec:
    """Return what a set looks like.

    Parameters
    ----------
    name
        Of the set.
    seed
        Decides about size and classes of a generated set, and at which size images are shown.
    """
    draw = random.Random(seed_for(seed, "spec"))
    if name in _TABLES:
        classes, features, _ = _TABLES[name]
        return DataSpec(classes, (features,))
    if name == "digits":
        side = draw.choice((8, 16))
        return DataSpec(10, (1, side, side), (1.0,))
    if name == "photographs":
        side = draw.choice((12, 16, 24))
        return DataSpec(draw.choice((2, 8)), (3, side, side), (1.0,) * 3)
    if name in {"blobs", "textures", "strokes"}:
        side, channels = draw.choice((8, 10, 12, 16)), draw.choice((1, 1, 3))
        classes = draw.choice((2, 3, 4, 5, 6, 8, 10, 10, 12, 20))
        return DataSpec(classes, (channels, side, side), (1.0,) * channels)
    if name in KINDS["text"]:
        words, length = draw.choice((20, 60, 150, 400)), draw.choice((8, 12, 20, 30))
        return DataSpec(draw.choice((2, 2, 3, 4, 6, 10)), (length,), words=words)
    if name in KINDS["table"]:
        return DataSpec(draw.choice((2, 2, 3, 4, 5, 8, 10)), (draw.randint(4, 60),))
    if name == "imdb":
        return DataSpec(2, (_IMDB_LENGTH,), words=_IMDB_WORDS)
    side = draw.choice((16, 32))
    channels = 1 if "mnist" in name else 3
    return DataSpec(100 if name == "cifar100" else 10, (channels, side, side), (1.0,) * channels)


def most_samples(name: str) -> int:
    """Return how many samples a set has, or how many of it are used at most."""
    return _TABLES[name][2] if name in _TABLES else _DIGITS if name == "digits" else 6000


def load_set(name: str, seed: int, clients: int, server: int, place: Path) -> Data:
    """Load or generate a set.

    Parameters
    ----------
    name, seed
        As for `spec_of`; the seed also decides about the samples.
    clients, server
        How many samples the clients have together, and the server.
    place
        Folder of data sets.
    """
    spec = spec_of(name, seed)
    draw = np.random.default_rng(seed_for(seed, "samples"))
    if name in PUBLIC:
        return _part_of(name, spec, clients, server, draw, place)
    count = clients + server
    if name in _TABLES or name == "digits":
        inputs, labels = _bundled(name)
        chosen = torch.from_numpy(draw.permutation(len(labels))[:count])
        inputs, labels = inputs[chosen], labels[chosen]
    else:
        inputs, labels = _GENERATORS[name](spec, draw, count)
    highest = None
    if spec.highest is not None:
        inputs, highest = normalize(
            resize(inputs, spec.shape[1]), (0.5,) * spec.shape[0], (0.5,) * spec.shape[0]
        )
    return Data(
        Samples(inputs[:clients], labels[:clients]),
        Samples(inputs[clients:], labels[clients:]),
        spec.classes,
        highest,
        words=spec.words,
    )


def _part_of(
    name: str, spec: DataSpec, clients: int, server: int, draw: np.random.Generator, place: Path
) -> Data:
    """Draw a small part of a public set, images smaller if the spec says so."""
    task = tasks.get(name, length=_IMDB_LENGTH) if name == "imdb" else tasks.get(name)
    whole = tasks.load_data(task, place)

    def some(samples: Samples, count: int) -> Samples:
        indices = torch.from_numpy(np.sort(draw.choice(len(samples), count, replace=False)))
        found = samples.only(indices)
        if spec.highest is None or found.inputs.shape[-1] == spec.shape[-1]:
            return found
        shrunk = avg_pool2d(found.inputs, found.inputs.shape[-1] // spec.shape[-1])
        return Samples(shrunk, found.labels)

    return replace(
        whole, clients=some(whole.clients, clients), server=some(whole.server, server), file=None
    )


def _bundled(name: str) -> Made:
    from sklearn import datasets  # noqa: PLC0415 (slow to import)

    if name == "digits":
        found = datasets.load_digits()
        return _floats(found.images[:, None] / 16), _labels(found.target)
    loaders = {
        "breast-cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
        "iris": datasets.load_iris,
        "diabetes": datasets.load_diabetes,
    }
    rows, labels = loaders[name](return_X_y=True)
    if name == "diabetes":  # a measure of progression, in thirds
        labels = np.digitize(labels, np.quantile(labels, (1 / 3, 2 / 3)))
    return _floats((rows - rows.mean(0)) / rows.std(0)), _labels(labels)


def _classes(spec: DataSpec, draw: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Draw labels; in some sets classes are of very different sizes."""
    even = draw.random() < 0.7
    shares = None if even else draw.dirichlet(np.full(spec.classes, 3.0))
    return draw.choice(spec.classes, count, p=shares)


# -------------------------------------------------------------------- images


def _photographs(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Cut pieces out of two photographs; the class is which one, and which quarter."""
    from sklearn.datasets import load_sample_images  # noqa: PLC0415

    shots = [image.astype(np.float64) / 255 for image in load_sample_images().images]
    labels, side = _classes(spec, draw, count), spec.shape[1]
    pieces = np.empty((count, side, side, 3))
    for piece, label in zip(pieces, labels, strict=True):
        shot, quarter = shots[label % 2], label // 2
        room = np.array(shot.shape[:2])
        low, high = np.zeros(2, int), room
        if spec.classes > 2:
            low = room // 2 * (quarter // 2, quarter % 2)
            high = low + room // 2
        y, x = (int(draw.integers(a, b - side)) for a, b in zip(low, high, strict=True))
        piece[:] = shot[y : y + side, x : x + side]
    return _floats(pieces.transpose(0, 3, 1, 2)), _labels(labels)


def _blobs(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Draw a few bright spots; the class decides where, roughly."""
    labels = _classes(spec, draw, count)
    spots = int(draw.integers(2, 5))
    places = draw.random((spec.classes, spots, 2))[labels]
    places = places + draw.normal(0, draw.uniform(0.02, 0.1), places.shape)
    size = draw.uniform(0.06, 0.16)
    pixels = _pixels(spec)
    away = ((places[:, :, None] - pixels) ** 2).sum(-1)
    shown = np.exp(-away / (2 * size**2)).sum(1).clip(0, 1)
    return _colored(shown, spec, draw, labels), _labels(labels)


def _textures(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Draw waves; the class decides about their direction and length."""
    labels = _classes(spec, draw, count)
    angles = draw.permutation(spec.classes) / spec.classes * np.pi
    lengths = draw.uniform(1.5, 4.0, spec.classes)
    angle = angles[labels] + draw.normal(0, 0.08, count)
    towards = np.stack([np.sin(angle), np.cos(angle)], 1) * lengths[labels, None]
    phase = draw.uniform(0, 2 * np.pi, count)
    along = towards @ _pixels(spec).T * 2 * np.pi + phase[:, None]
    return _colored((np.sin(along) + 1) / 2, spec, draw, labels), _labels(labels)


def _strokes(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Draw lines from point to point; the class decides about the points, roughly."""
    labels = _classes(spec, draw, count)
    points = draw.uniform(0.1, 0.9, (spec.classes, int(draw.integers(3, 6)), 2))[labels]
    points = points + draw.normal(0, draw.uniform(0.02, 0.07), points.shape)
    thick, pixels = draw.uniform(0.03, 0.07), _pixels(spec)
    shown = np.zeros((count, len(pixels)))
    for start, end in zip(points[:, :-1].swapaxes(0, 1), points[:, 1:].swapaxes(0, 1), strict=True):
        line = end - start
        length = (line**2).sum(-1, keepdims=True) + 1e-9
        share = ((pixels - start[:, None]) * (line / length)[:, None]).sum(-1).clip(0, 1)
        away = ((start[:, None] + share[..., None] * line[:, None] - pixels) ** 2).sum(-1)
        shown = np.maximum(shown, np.exp(-away / (2 * thick**2)))
    return _colored(shown, spec, draw, labels), _labels(labels)


def _pixels(spec: DataSpec) -> Floats:
    """Return each pixel's place, from 0 to 1."""
    side = spec.shape[1]
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1)
    return (grid.reshape(-1, 2) + 0.5) / side


def _colored(
    shown: Floats, spec: DataSpec, draw: np.random.Generator, labels: NDArray[np.int64]
) -> Tensor:
    """Show gray images in the spec's channels, with noise."""
    channels, side, _ = spec.shape
    count = len(labels)
    tints = draw.uniform(0.4, 1.0, (count, channels, 1))
    noise = draw.normal(0, draw.uniform(0.03, 0.2), (count, channels, side * side))
    images = (shown[:, None] * tints + noise).clip(0, 1)
    return _floats(images.reshape(count, channels, side, side))


# -------------------------------------------------------------------- text


def _phrases(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Write random words, rarer ones less often, and among them a phrase of the class."""
    labels, (length,), ids = _classes(spec, draw, count), spec.shape, _ids(spec)
    common = 1 / (np.arange(ids) + 2.0)
    texts = draw.choice(ids, (count, length), p=common / common.sum())
    size = int(draw.integers(2, 4))
    known = draw.integers(0, ids, (spec.classes, 3, size))
    for text, label in zip(texts, labels, strict=True):
        for _ in range(int(draw.integers(1, 3))):
            start = int(draw.integers(0, length - size + 1))
            text[start : start + size] = known[label, int(draw.integers(3))]
    return _padded(texts, draw), _labels(labels)


def _topics(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Write words of which some are more frequent in each class."""
    labels, (length,), ids = _classes(spec, draw, count), spec.shape, _ids(spec)
    shares = draw.dirichlet(np.full(ids, draw.uniform(0.1, 0.5)), spec.classes)
    shares = 0.6 * shares + 0.4 / ids
    edges = shares.cumsum(1)[labels]
    drawn = draw.random((count, length))
    texts = np.stack([np.searchsorted(e, d) for e, d in zip(edges, drawn, strict=True)])
    return _padded(texts.clip(0, ids - 1), draw), _labels(labels)


def _chains(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Write words that depend on the one before; how they do is the class."""
    labels, (length,), ids = _classes(spec, draw, count), spec.shape, _ids(spec)
    after = draw.integers(0, ids, (spec.classes, ids, 2))
    texts = draw.integers(0, ids, (count, length))
    for place in range(1, length):
        follows = draw.random(count) < 0.7
        which = draw.integers(0, 2, count)
        texts[follows, place] = after[labels, texts[:, place - 1], which][follows]
    return _padded(texts, draw), _labels(labels)


def _ids(spec: DataSpec) -> int:
    assert spec.words is not None
    return spec.words - _FIRST_WORD


def _padded(texts: NDArray[np.int64], draw: np.random.Generator) -> Tensor:
    """Number words from the first that means one, and cut texts to different lengths."""
    ids = texts + _FIRST_WORD
    count, length = ids.shape
    missing = draw.integers(0, length // 3 + 1, count)
    ids[np.arange(length) < missing[:, None]] = 0
    return torch.from_numpy(ids.astype(np.int64))


# -------------------------------------------------------------------- tables


def _clusters(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Draw rows around two centers per class."""
    labels, (features,) = _classes(spec, draw, count), spec.shape
    spread = draw.uniform(1.0, 2.5)
    centers = draw.normal(0, 1, (spec.classes, 2, features))
    centers[..., int(draw.integers(2, features + 1)) :] = 0  # the other features say nothing
    rows = spread * centers[labels, draw.integers(0, 2, count)] + draw.normal(
        0, 1, (count, features)
    )
    return _scaled(rows), _labels(labels)


def _rings(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Draw rows on spheres in a few directions; the radius is the class."""
    labels, (features,) = _classes(spec, draw, count), spec.shape
    inside = int(draw.integers(2, 5))
    rows = draw.normal(0, 1, (count, features))
    rows[:, :inside] /= np.linalg.norm(rows[:, :inside], axis=1, keepdims=True)
    rows[:, :inside] *= (1 + labels + draw.normal(0, 0.15, count))[:, None]
    turned, _ = np.linalg.qr(draw.normal(0, 1, (features, features)))
    return _scaled(rows @ turned), _labels(labels)


def _teacher(spec: DataSpec, draw: np.random.Generator, count: int) -> Made:
    """Draw rows, and ask a random network what their classes are."""
    (features,) = spec.shape
    rows = draw.normal(0, 1, (count, features))
    hidden = np.maximum(rows @ draw.normal(0, 1, (features, 32)) + draw.normal(0, 1, 32), 0)
    said = hidden @ draw.normal(0, 1, (32, spec.classes))
    said = (said - said.mean(0)) / said.std(0)
    return _scaled(rows), _labels((said + draw.gumbel(0, 0.1, said.shape)).argmax(1))


def _scaled(rows: Floats) -> Tensor:
    return _floats((rows - rows.mean(0)) / rows.std(0))


def _floats(array: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def _labels(array: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.int64))


_GENERATORS: dict[str, Callable[[DataSpec, np.random.Generator, int], Made]] = {
    "photographs": _photographs,
    "blobs": _blobs,
    "textures": _textures,
    "strokes": _strokes,
    "phrases": _phrases,
    "topics": _topics,
    "chains": _chains,
    "clusters": _clusters,
    "rings": _rings,
    "teacher": _teacher,
}
