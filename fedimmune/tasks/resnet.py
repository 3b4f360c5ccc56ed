"""ResNet-18 (He et al., 2016), its parameters named as torchvision names them.

So public weights for ImageNet fit. The names say nothing of the activation, which has no weights.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d, relu

__all__ = ["STEMS", "ResNet18"]

STEMS = ("imagenet", "cifar")
"""How the net begins: made for large images, or for small ones."""


class ResNet18(nn.Module):
    """Four stages of two blocks of two convolutions, each block with a way around it.

    Parameters
    ----------
    classes
        How many there are.
    width
        Channels of the first stage; each further one has twice as many.
    stem
        "imagenet": a convolution of 7×7 that halves the image, and a pool that halves it again.
        "cifar": a convolution of 3×3.
    """

    def __init__(self, classes: int = 1000, width: int = 64, stem: str = "imagenet") -> None:
        super().__init__()
        self._pools = stem == "imagenet"
        if self._pools:
            self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        found = relu(self.bn1(self.conv1(images)), inplace=True)
        if self._pools:
            found = max_pool2d(found, 3, stride=2, padding=1)
        found = self.layer4(self.layer3(self.layer2(self.layer1(found))))
        out: Tensor = self.fc(adaptive_avg_pool2d(found, 1).flatten(1))
        return out


def _stage(channels: int, wider: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_Block(channels, wider, stride), _Block(wider, wider, 1))


class _Block(nn.Module):
    """Two convolutions, and what came in added to what comes out."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)
        # What came in must have the shape of what comes out to be added to it.
        self.downsample = (
            None
            if stride == 1
            else nn.Sequential(
                nn.Conv2d(channels, wider, 1, stride=stride, bias=False), nn.BatchNorm2d(wider)
            )
        )

    def forward(self, came: Tensor) -> Tensor:
        """Map features to features."""
        found = relu(self.bn1(self.conv1(came)), inplace=True)
        found = self.bn2(self.conv2(found))
        around = came if self.downsample is None else self.downsample(came)
        return relu(found + around, inplace=True)
