"""A task with the layers of `digits` and other classes, as CIFAR-100 is to CIFAR-10."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fedimmune.tasks import Data, Samples
from fedimmune.tasks.digits import Digits

__all__ = ["TwentyDigits"]


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
