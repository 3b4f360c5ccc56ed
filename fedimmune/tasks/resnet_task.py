"""What the tasks with ResNet-18 share: their parameters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedimmune.errors import ParameterError
from fedimmune.tasks.base import Data, Task
from fedimmune.tasks.models.resnet import STEMS, ResNet18, load_weights
from fedimmune.validation import check_choice, check_int

__all__ = ["ResNetTask"]

_PUBLIC_WIDTH = 64
_HALF = 0.5
_SCALINGS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class ResNetTask(Task):
    """A task whose model is ResNet-18.

    Parameters
    ----------
    width
        Channels of the first stage. 64 is ResNet-18 as published; less is faster.
    stem
        "imagenet" begins with a 7×7 convolution that halves the image, and a pool, as published;
        "cifar" with a 3×3 convolution, without a pool: better for small images, and slower.
    weights
        A file .safetensors or .pth with public ImageNet weights to start from, named as in
        torchvision. Its classifier is left out if its classes are others.
    varied
        "flips" mirrors each training image with a probability of one half.
    scaling
        Means and standard deviations to normalize images with: "half" is 0.5 for all, "imagenet"
        ImageNet's. By default the data set's own.
    """

    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    def __init__(
        self,
        *,
        width: int = _PUBLIC_WIDTH,
        stem: str = "imagenet",
        weights: str | None = None,
        varied: str | None = None,
        scaling: str | None = None,
    ) -> None:
        if weights is not None and not isinstance(weights, str | os.PathLike):
            raise ParameterError(f"{self.name}: weights must be the path of a file: {weights!r}")
        self.width = check_int(self.name, "width", width, 1)
        self.stem = check_choice(self.name, "stem", stem, STEMS)
        self.weights = None if weights is None else os.fspath(weights)
        if varied is not None:
            check_choice(self.name, "varied", varied, ("flips",))
        if scaling is not None:
            check_choice(self.name, "scaling", scaling, tuple(_SCALINGS))
        self.varied, self.scaling = varied, scaling

    @property
    def normalizing(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Means and standard deviations, one per channel."""
        return (self.mean, self.std) if self.scaling is None else _SCALINGS[self.scaling]

    def augment(self, inputs: Tensor) -> Tensor:
        if self.varied is None:
            return inputs
        turned = (torch.rand(len(inputs)) < _HALF).to(inputs.device)
        return torch.where(turned[:, None, None, None], inputs.flip(-1), inputs)

    def model(self, data: Data) -> nn.Module:
        net = ResNet18(data.classes, self.width, self.stem)
        if self.weights is not None:
            advice = (
                'Weights of torchvision\'s resnet18 fit width = 64 and stem = "imagenet"; the task '
                f'has width = {self.width} and stem = "{self.stem}"'
            )
            load_weights(net, Path(self.weights), "fc", advice)
        return net
