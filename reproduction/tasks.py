"""Tasks of experiments alone: `digits` in other classes, MNIST with another network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fedimmune.tasks import Data, Samples
from fedimmune.tasks.digits import Digits
from fedimmune.tasks.mnist import Mnist

__all__ = ["ByzflMnist", "TwentyDigits"]


class TwentyDigits(Digits):
    """Handwritten digits; each class is split into those with little ink and those with much."""

    name = "twenty-digits"
    summary = "the bundled digits in 20 classes: each digit with little ink, or with much"

    def load(self, place: Path) -> Data:
        data = super().load(place)
        clients, server = _split(data.clients), _split(data.server)
        return replace(data, clients=clients, server=server, classes=20, file=None)


def _split(samples: Samples) -> Samples:
    ink = samples.inputs.flatten(1).mean(1)
    labels = samples.labels.clone()
    for digit in range(10):
        own = samples.labels == digit
        labels[own & (ink > ink[own].median())] += 10
    return Samples(samples.inputs, labels.to(torch.int64))


class ByzflMnist(Mnist):
    """MNIST with the network of ByzFL's benchmark, on images of 28×28 pixels."""

    name = "mnist-byzfl"
    summary = "MNIST with ByzFL's network: two convolutions, 500 hidden units"

    def load(self, place: Path) -> Data:
        data = super().load(place)
        clients, server = (
            Samples(nn.functional.interpolate(own.inputs, 28), own.labels)
            for own in (data.clients, data.server)
        )
        return replace(data, clients=clients, server=server, file=None)

    def model(self, data: Data) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 500),
            nn.ReLU(),
            nn.Linear(500, data.classes),
        )
