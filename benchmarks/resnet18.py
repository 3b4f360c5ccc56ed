"""The layers of ResNet-18: a model of the size that rounds of federated learning really have."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

__all__ = ["Shapes", "first_columns", "resnet18", "size"]

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by layer name, in the order of the columns."""


def resnet18(classes: int = 10) -> Shapes:
    """Give the 62 trainable tensors of ResNet-18, named as torchvision names them.

    Parameters
    ----------
    classes
        How many outputs the last layer has.
    """
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), **_norm("bn1", 64)}
    before = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            shapes |= _basic_block(f"layer{stage}.{block}", before, width)
            before = width
    return shapes | {"fc.weight": (classes, before), "fc.bias": (classes,)}


def size(shapes: Shapes) -> int:
    """Count the values of one update."""
    return sum(prod(shape) for shape in shapes.values())


def first_columns(shapes: Shapes, columns: int) -> Shapes:
    """Give the first layers with that many values in all; the last of them is cut and flat."""
    kept: dict[str, tuple[int, ...]] = {}
    room = columns
    for name, shape in shapes.items():
        if room == 0:
            break
        kept[name] = shape if prod(shape) <= room else (room,)
        room -= prod(kept[name])
    return kept


def _basic_block(name: str, before: int, width: int) -> Shapes:
    shapes = {
        f"{name}.conv1.weight": (width, before, 3, 3),
        **_norm(f"{name}.bn1", width),
        f"{name}.conv2.weight": (width, width, 3, 3),
        **_norm(f"{name}.bn2", width),
    }
    if before != width:
        shapes[f"{name}.downsample.0.weight"] = (width, before, 1, 1)
        shapes |= _norm(f"{name}.downsample.1", width)
    return shapes


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
