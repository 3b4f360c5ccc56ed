"""LeNet as in the paper, after LeCun et al. (1998), "Gradient-based learning"."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

__all__ = ["LeNet"]


class LeNet(nn.Module):
    """Two convolutions and three linear layers for gray 32×32 images."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.fc1 = nn.Linear(16 * 6 * 6, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        # Pooling first gives the same result and leaves a quarter of the values for ReLU.
        found = relu(max_pool2d(self.conv1(images), 2))
        found = relu(max_pool2d(self.conv2(found), 2))
        found = relu(self.fc2(relu(self.fc1(found.flatten(1)))))
        out: Tensor = self.fc3(found)
        return out
