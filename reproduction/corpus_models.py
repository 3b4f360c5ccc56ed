"""Models of the corpus, by architecture family, for images, texts and rows of tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from fedimmune.tasks import Data, DataSpec
from fedimmune.tasks.models.resnet import STEMS, ResNet18

__all__ = ["FAMILIES", "Shape", "build", "draw_shape"]

FAMILIES = {
    "image": (
        *("linear", "mlp", "cnn", "cnn-norm", "residual", "resnet18", "recurrent", "transformer"),
    ),
    "text": ("linear", "mlp", "cnn", "recurrent", "transformer"),
    "table": ("linear", "mlp", "residual", "transformer"),
}
"""Families that take a kind of data."""

_NORMS = {
    "linear": ("none",),
    "mlp": ("none", "none", "layer", "batch"),
    "cnn": ("none",),
    "cnn-norm": ("batch", "batch", "group"),
    "residual": ("batch", "batch", "group"),
    "resnet18": ("batch",),
    "recurrent": ("none",),
    "transformer": ("layer",),
}
_CELLS = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}


@dataclass(frozen=True)
class Shape:
    """What distinguishes models of a family.

    Parameters
    ----------
    width, depth
        Units or channels, and how many layers or blocks.
    norm
        Of the hidden layers: none, batch, group or layer.
    variant
        The activation, the recurrent cell, or how ResNet-18 begins.
    head
        Number of linear layers at the end.
    """

    width: int
    depth: int
    norm: str
    variant: str
    head: int


def draw_shape(family: str, draw: random.Random) -> Shape:
    """Draw a model of a family."""
    widths = {
        "linear": (1,),
        "mlp": (8, 16, 32, 64, 128),
        "cnn": (4, 6, 8, 12, 16),
        "cnn-norm": (4, 6, 8, 12, 16),
        "residual": (4, 8, 12),
        "resnet18": (4, 8, 8, 16),
        "recurrent": (8, 16, 32),
        "transformer": (8, 16, 32),
    }
    depths = {
        "linear": (1,),
        "mlp": (1, 1, 2, 3, 4),
        "cnn": (1, 2, 2, 3),
        "cnn-norm": (2, 2, 3, 4),
        "residual": (2, 3, 4),
        "resnet18": (8,),
        "recurrent": (1, 1, 2),
        "transformer": (1, 2),
    }
    variants = {"recurrent": tuple(_CELLS), "resnet18": STEMS}
    usual = ("relu", "relu", "relu", "tanh", "gelu")
    return Shape(
        draw.choice(widths[family]),
        draw.choice(depths[family]),
        draw.choice(_NORMS[family]),
        draw.choice(variants.get(family, usual)),
        draw.choice((1, 1, 2, 3)) if family.startswith("cnn") else 1,
    )


def build(family: str, shape: Shape, data: Data) -> nn.Module:
    """Build a model for some data."""
    spec = data.spec
    words = None if spec.words is None else _Words(spec.words, shape.width, data)
    if family in {"linear", "mlp"}:
        flat: nn.Module = nn.Flatten() if words is None else _Mean(words)
        size = prod(spec.shape) if words is None else words.size
        return nn.Sequential(flat, *_hidden(shape, size, spec.classes, linear=family == "linear"))
    if family in {"cnn", "cnn-norm"}:
        return _text_cnn(shape, words, spec) if words is not None else _image_cnn(shape, spec)
    if family == "residual":
        return _residual(shape, spec)
    if family == "resnet18":
        return _Colors(ResNet18(spec.classes, shape.width, shape.variant))
    recurrent = family == "recurrent"
    tokens, size = (
        (words, words.size) if words is not None else _tokens(shape, spec, by_row=recurrent)
    )
    if recurrent:
        return _Recurrent(tokens, size, shape, spec.classes)
    return _Transformer(tokens, size, shape, spec)


# -------------------------------------------------------------------- units and channels


def _hidden(shape: Shape, size: int, classes: int, *, linear: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(0 if linear else shape.depth):
        layers += [nn.Linear(size, shape.width), *_norm(shape.norm, shape.width, 1)]
        layers.append(_ACTIVATIONS[shape.variant]())
        size = shape.width
    return [*layers, nn.Linear(size, classes)]


def _norm(kind: str, width: int, dimensions: int) -> list[nn.Module]:
    if kind == "batch":
        return [nn.BatchNorm2d(width) if dimensions == 2 else nn.BatchNorm1d(width)]
    if kind == "layer":
        return [nn.LayerNorm(width)]
    return [nn.GroupNorm(2, width)] if kind == "group" else []


def _image_cnn(shape: Shape, spec: DataSpec) -> nn.Module:
    channels, side, _ = spec.shape
    layers: list[nn.Module] = []
    width = shape.width
    for _ in range(shape.depth):
        layers += [nn.Conv2d(channels, width, 3, padding=1), *_norm(shape.norm, width, 2)]
        layers.append(_ACTIVATIONS[shape.variant]())
        if side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        channels, width = width, min(2 * width, 32)
    layers.append(nn.Flatten())
    size = channels * side * side
    for _ in range(shape.head - 1):
        layers += [nn.Linear(size, 4 * shape.width), nn.ReLU()]
        size = 4 * shape.width
    return nn.Sequential(*layers, nn.Linear(size, spec.classes))


def _text_cnn(shape: Shape, words: _Words, spec: DataSpec) -> nn.Module:
    convolutions: list[nn.Module] = []
    size = words.size
    for _ in range(min(shape.depth, 2)):
        convolutions += [nn.Conv1d(size, 2 * shape.width, 3, padding=1), nn.ReLU()]
        size = 2 * shape.width
    return nn.Sequential(
        words, _ChannelsFirst(), *convolutions, nn.AdaptiveMaxPool1d(1), nn.Flatten()
    ).append(nn.Linear(size, spec.classes))


def _residual(shape: Shape, spec: DataSpec) -> nn.Module:
    dimensions = 2 if spec.highest is not None else 1
    width = shape.width if dimensions == 2 else 4 * shape.width
    if dimensions == 2:
        layers: list[nn.Module] = [nn.Conv2d(spec.shape[0], width, 3, padding=1, bias=False)]
    else:
        layers = [nn.Linear(spec.shape[0], width)]
    layers += [*_norm(shape.norm, width, dimensions), nn.ReLU()]
    side = spec.shape[-1]
    for number in range(shape.depth):
        layers.append(_Block(shape, width, dimensions))
        if dimensions == 2 and number % 2 == 0 and side >= 4:
            layers.append(nn.AvgPool2d(2))
            side //= 2
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if dimensions == 2 else []
    return nn.Sequential(*layers, *end, nn.Linear(width, spec.classes))


class _Block(nn.Module):
    """Two layers, and the input added to their output."""

    def __init__(self, shape: Shape, width: int, dimensions: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            if dimensions == 2:
                layers.append(nn.Conv2d(width, width, 3, padding=1, bias=False))
            else:
                layers.append(nn.Linear(width, width))
            layers += [*_norm(shape.norm, width, dimensions), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, came: Tensor) -> Tensor:
        """Map features to features."""
        return torch.relu(came + self.layers(came))


class _Colors(nn.Module):
    """Shows gray images in three channels to a net that expects so many."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        out: Tensor = self.net(images.expand(-1, 3, -1, -1))
        return out


# -------------------------------------------------------------------- sequences


class _Words(nn.Module):
    """Words to vectors: trained ones, or those that come with the data, which are not."""

    vectors: Tensor

    def __init__(self, words: int, width: int, data: Data) -> None:
        super().__init__()
        given = data.extras.get("vectors")
        self.own = nn.Embedding(words, width, padding_idx=0) if given is None else None
        self.register_buffer("vectors", torch.empty(0) if given is None else given, False)
        self.size = width if given is None else given.shape[1]

    def forward(self, words: Tensor) -> Tensor:
        """Map word ids (n, length) to vectors (n, length, size)."""
        found: Tensor = (
            embedding(words, self.vectors) if self.own is None else self.own(words.long())
        )
        return found


class _Mean(nn.Module):
    """The mean vector of a text's words."""

    def __init__(self, words: _Words) -> None:
        super().__init__()
        self.words = words

    def forward(self, words: Tensor) -> Tensor:
        """Map word ids (n, length) to vectors (n, size)."""
        shown = (words != 0)[..., None]
        found: Tensor = (self.words(words) * shown).sum(1) / shown.sum(1).clamp(min=1)
        return found


class _ChannelsFirst(nn.Module):
    def forward(self, found: Tensor) -> Tensor:
        """Swap the last two axes."""
        return found.transpose(1, 2)


class _Rows(nn.Module):
    """The rows of an image, one after the other."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images to (n, height, channels · width)."""
        return images.transpose(1, 2).flatten(2)


class _Patches(nn.Module):
    """Pieces of an image, one after the other."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.cut = nn.Unfold(side, stride=side)

    def forward(self, images: Tensor) -> Tensor:
        """Map images to (n, pieces, channels · side²)."""
        found: Tensor = self.cut(images.contiguous())
        return found.transpose(1, 2)


class _Features(nn.Module):
    """Each feature of a row as a vector of its own: the value times a learned direction."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(features, width) / width**0.5)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows (n, features) to (n, features, width)."""
        return rows[..., None] * self.directions


def _tokens(shape: Shape, spec: DataSpec, *, by_row: bool) -> tuple[nn.Module, int]:
    """Make a sequence of images or rows, and say how large its vectors are."""
    if spec.highest is None:
        return _Features(spec.shape[0], shape.width), shape.width
    channels, side, _ = spec.shape
    if by_row:
        return _Rows(), channels * side
    patch = 4 if side % 4 == 0 else 2
    return _Patches(patch), channels * patch**2


class _Recurrent(nn.Module):
    def __init__(self, tokens: nn.Module, size: int, shape: Shape, classes: int) -> None:
        super().__init__()
        self.tokens = tokens
        cell = _CELLS[shape.variant]
        self.cells = cell(size, shape.width, num_layers=shape.depth, batch_first=True)
        self.fc = nn.Linear(shape.width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map sequences to logits."""
        along, _ = self.cells(self.tokens(inputs))
        out: Tensor = self.fc(along.amax(1))
        return out


class _Transformer(nn.Module):
    def __init__(self, tokens: nn.Module, size: int, shape: Shape, spec: DataSpec) -> None:
        super().__init__()
        self.tokens = tokens
        width = max(8, shape.width)
        self.enter = nn.Linear(size, width)
        self.places = nn.Parameter(torch.randn(_length(tokens, spec), width) * 0.1)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    *(width, 2, 2 * width, 0.0),
                    batch_first=True,
                    norm_first=shape.variant != "tanh",
                )
                for _ in range(shape.depth)
            )
        )
        self.fc = nn.Linear(width, spec.classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map sequences to logits."""
        found = self.layers(self.enter(self.tokens(inputs)) + self.places)
        out: Tensor = self.fc(found.mean(1))
        return out


def _length(tokens: nn.Module, spec: DataSpec) -> int:
    if not isinstance(tokens, _Patches):
        return spec.shape[0]
    return (spec.shape[1] // int(tokens.cut.kernel_size)) ** 2  # type: ignore[arg-type]
