"""Images into inputs: resized, and normalised once for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

__all__ = ["inputs_of", "normalise", "resize"]


def resize(images: Tensor, side: int) -> Tensor:
    """Resize images (n, channels, height, width) to a square, bilinearly."""
    if tuple(images.shape[2:]) == (side, side):
        return images
    return interpolate(
        images, size=(side, side), mode="bilinear", align_corners=False, antialias=True
    )


def normalise(
    images: Tensor, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,)
) -> tuple[Tensor, tuple[float, ...]]:
    """Normalise images that run from 0 to 1.

    Parameters
    ----------
    images
        (n, channels, height, width), not changed.
    mean, std
        One a channel.

    Returns
    -------
    inputs
        What the model takes.
    highest
        What the highest value, 1, has become in each channel.
    """
    means = torch.tensor(mean, dtype=images.dtype).reshape(1, -1, 1, 1)
    stds = torch.tensor(std, dtype=images.dtype).reshape(1, -1, 1, 1)
    highest = tuple((1 - m) / s for m, s in zip(mean, std, strict=True))
    return (images - means) / stds, highest


def inputs_of(
    batches: Iterable[NDArray[np.uint8]],
    count: int,
    side: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[Tensor, tuple[float, ...]]:
    """Make inputs of images as files have them, batch by batch: memory is needed for them once.

    Parameters
    ----------
    batches
        Images (n, channels, height, width) from 0 to 255.
    count
        How many there are in all.
    side
        Height and width of the inputs; images of other sizes are resized.
    mean, std
        One a channel, of images from 0 to 1.

    Returns
    -------
    inputs
        What the model takes.
    highest
        What the highest value has become in each channel.
    """
    inputs = torch.empty(count, len(mean), side, side)
    highest: tuple[float, ...] = ()
    first = 0
    for batch in batches:
        images = torch.from_numpy(batch).to(torch.float32) / 255
        made, highest = normalise(resize(images, side), mean, std)
        inputs[first : first + len(made)] = made
        first += len(made)
    if first != count:
        raise ValueError(f"{first} images came; {count} were said to come")
    return inputs, highest
