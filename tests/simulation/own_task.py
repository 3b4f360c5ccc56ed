"""Tasks of a user's own: small and quick, and some that break as one might fear."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedimmune import Data, Samples, Task, TrainingConfig

__all__ = ["Blobs", "Rows", "Wobbly"]

CLASSES = 4
WAYS = ("nan", "raise", "print")


def blobs(samples: int, seed: int = 0) -> Samples:
    """Images of 8×8 with one bright row a class; the last pixel tells the label."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    images = 0.5 * torch.randn(samples, 1, 8, 8, generator=random)
    images[torch.arange(samples), 0, 2 * labels, 1:5] += 1
    images[:, 0, 7, 7] = labels / 10
    return Samples(images.clamp_(-1, 1), labels)


class Blobs(Task):
    """Rows of light, told apart by a linear model.

    Parameters
    ----------
    samples
        How many the clients have; the server has 100.
    breaks
        Classes whose samples break the training of whoever has them.
    how
        ``nan``, ``raise``, or ``print``, which should do no harm.
    """

    name = "blobs"
    summary = "rows of light"
    recipe = TrainingConfig(rounds=4, lr=0.1, batch=8, anchor=20)
    seed_of_data = 0  # to be changed by tests that come with other data

    def __init__(self, *, samples: int = 160, breaks: Sequence[int] = (), how: str = "nan") -> None:
        self.samples, self.breaks, self.how = samples, tuple(breaks), how
        assert how in WAYS

    def load(self, place: Path) -> Data:
        clients, server = blobs(self.samples, self.seed_of_data), blobs(100, seed=99)
        return Data(clients, server, classes=CLASSES, highest=(1.0,))

    def model(self, data: Data) -> nn.Module:
        return _Linear(self.breaks, self.how)


class _Linear(nn.Module):
    def __init__(self, breaks: tuple[int, ...], how: str) -> None:
        super().__init__()
        self.fc = nn.Linear(64, CLASSES)
        self.breaks, self.how = breaks, how

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.fc(images.flatten(1))
        seen = set((images[:, 0, 7, 7] * 10).round().int().tolist())
        if self.training and seen & set(self.breaks):
            if self.how == "raise":
                raise RuntimeError("it does not\nlike this class")
            if self.how == "print":
                print("a user's own words", flush=True)  # noqa: T201
            else:
                found = found * torch.nan
        return found


class Rows(Task):
    """The same as a table: one row of 64 numbers a sample, which nobody can draw a pattern into."""

    name = "rows"
    summary = "a table"
    recipe = TrainingConfig(rounds=1, lr=0.1, batch=8, anchor=20)

    def load(self, place: Path) -> Data:
        clients, server = blobs(160), blobs(100, seed=99)
        return Data(
            Samples(clients.inputs.flatten(1), clients.labels),
            Samples(server.inputs.flatten(1), server.labels),
            classes=CLASSES,
        )

    def model(self, data: Data) -> nn.Module:
        return nn.Linear(64, CLASSES)


class Wobbly(Task):
    """The same, with chance in the training and with statistics beside the weights."""

    name = "wobbly"
    summary = "dropout, batch norm, an integer and a flag in the state dict"
    recipe = TrainingConfig(rounds=3, lr=0.05, batch=8, anchor=20)

    def load(self, place: Path) -> Data:
        return Data(blobs(160), blobs(100, seed=99), classes=CLASSES, highest=(1.0,))

    def model(self, data: Data) -> nn.Module:
        return _Net()


class _Net(nn.Module):
    steps: Tensor
    even: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(256, CLASSES)
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int32))
        self.register_buffer("even", torch.tensor(True))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.even.logical_not_()
        found = torch.relu(self.norm(self.conv(images)))
        out: Tensor = self.fc(self.drop(found.flatten(1)))
        return out
