"""What the tasks with ResNet-18 have in common: their parameters."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from fedimmune.checks import choice, whole
from fedimmune.errors import ParameterError
from fedimmune.tasks.base import Data, Task
from fedimmune.tasks.resnet import STEMS, ResNet18
from fedimmune.tasks.weights import load_weights

__all__ = ["ResNetTask"]

_PUBLIC_WIDTH = 64


class ResNetTask(Task):
    """A task whose model is ResNet-18.

    Parameters
    ----------
    width
        Channels of the first stage. 64 is ResNet-18 as published; less is faster.
    stem
        "imagenet" begins with a convolution of 7×7 that halves the image, and a pool, as published;
        "cifar" with one of 3×3, without a pool: better for small images, and slower.
    weights
        A file .safetensors or .pth with public weights for ImageNet to begin with, named as
        torchvision names them. Its classifier is left out where its classes are others.
    """

    def __init__(
        self, *, width: int = _PUBLIC_WIDTH, stem: str = "imagenet", weights: str | None = None
    ) -> None:
        if weights is not None and not isinstance(weights, str | os.PathLike):
            raise ParameterError(f"{self.name}: weights must be the path of a file: {weights!r}")
        self.width = whole(self.name, "width", width, 1)
        self.stem = choice(self.name, "stem", stem, STEMS)
        self.weights = None if weights is None else os.fspath(weights)

    def model(self, data: Data) -> nn.Module:
        net = ResNet18(data.classes, self.width, self.stem)
        if self.weights is not None:
            load_weights(net, Path(self.weights), "fc", self._advice())
        return net

    def _advice(self) -> str:
        return (
            'Weights of torchvision\'s resnet18 fit width = 64 and stem = "imagenet"; the task '
            f'has width = {self.width} and stem = "{self.stem}"'
        )
