"""Handwritten digits that come with scikit-learn: nothing to download, fast rounds.

1,797 images of 8×8 pixels from the UCI repository (Alpaydin and Kaynak, 1998), shown at 16×16 so
that an attacker's pattern has room. Half is for the clients, half for the server.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from fedimmune.tasks.base import Data, Samples, Task, TrainingConfig
from fedimmune.tasks.images import normalize, resize

__all__ = ["Digits", "DigitsNet"]

_SPLIT_SEED = 0
_BRIGHTEST = 16


class Digits(Task):
    """Small handwritten digits, bundled: the task for a first try and for tests."""

    name = "digits"
    summary = "1,797 bundled handwritten digits at 16×16, a small convolutional net"
    source = "bundled with scikit-learn (UCI, Alpaydin and Kaynak 1998)"
    recipe = TrainingConfig(rounds=20, lr=0.1, batch=16, anchor=100)

    def load(self, place: Path) -> Data:
        from sklearn.datasets import load_digits  # noqa: PLC0415 (slow to import)

        found = load_digits()
        images = torch.from_numpy(found.images).to(torch.float32)[:, None] / _BRIGHTEST
        labels = torch.from_numpy(found.target).to(torch.int64)
        inputs, highest = normalize(resize(images, 16))
        # The file is in the order of writing: neighbors are by the same writer.
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        half = len(labels) // 2
        clients, server = order[:half], order[half:]
        return Data(
            Samples(inputs[clients], labels[clients]),
            Samples(inputs[server], labels[server]),
            classes=10,
            highest=highest,
        )

    def model(self, data: Data) -> nn.Module:
        return DigitsNet(data.classes)


class DigitsNet(nn.Module):
    """Two convolutions and two linear layers for 16×16 images; about 10,000 parameters."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        found = relu(max_pool2d(self.conv1(images), 2))
        found = relu(max_pool2d(self.conv2(found), 2))
        out: Tensor = self.fc2(relu(self.fc1(found.flatten(1))))
        return out
