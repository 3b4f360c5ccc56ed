"""The layers of ResNet-18: a model of the size that rounds of federated learning really have."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from fedimmune.tasks.models.resnet import ResNet18

__all__ = ["Shapes", "first_columns", "resnet18", "size"]

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by layer name, in the order of the columns."""


def resnet18(classes: int = 10) -> Shapes:
    """Return the 62 trainable tensors of ResNet-18, named as torchvision names them.

    Parameters
    ----------
    classes
        How many outputs the last layer has.
    """
    with torch.device("meta"):  # shapes alone: nothing is allocated
        model = ResNet18(classes)
    return {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}


def size(shapes: Shapes) -> int:
    """Count the values of one update."""
    return sum(prod(shape) for shape in shapes.values())


def first_columns(shapes: Shapes, columns: int) -> Shapes:
    """Return the first layers with that many values in all; the last of them is cut and flat."""
    kept: dict[str, tuple[int, ...]] = {}
    room = columns
    for name, shape in shapes.items():
        if room == 0:
            break
        kept[name] = shape if prod(shape) <= room else (room,)
        room -= prod(kept[name])
    return kept
