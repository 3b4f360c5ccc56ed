"""What a task is: a data set, a model and a recipe for training it, together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedimmune.errors import InputError
from fedimmune.registry import Configurable
from fedimmune.validation import check_float, check_int, check_open_fraction

__all__ = ["Data", "DataSpec", "Samples", "SourceFile", "Task", "TrainingConfig"]


@dataclass(frozen=True)
class Samples:
    """Samples with their labels.

    Parameters
    ----------
    inputs
        One row per sample, as the model takes them: decoded, resized and normalized.
    labels
        One class per sample, int64, from 0.
    """

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Tensor) or not isinstance(self.labels, Tensor):
            raise InputError(
                f"samples and labels must be PyTorch tensors, not {type(self.inputs).__name__} and "
                f"{type(self.labels).__name__}"
            )
        if len(self.inputs) != len(self.labels) or self.labels.ndim != 1:
            raise InputError(
                f"one label per sample is needed: there are {len(self.inputs)} samples and labels "
                f"of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, indices: Tensor) -> Samples:
        """Copy some of them, by their numbers."""
        return Samples(self.inputs.index_select(0, indices), self.labels.index_select(0, indices))


@dataclass(frozen=True)
class DataSpec:
    """What can be known of a data set without looking at its samples.

    Parameters
    ----------
    classes
        Number of classes.
    shape
        One sample's shape; images are (channels, height, width).
    highest
        For images: each channel's highest value after normalizing. None for anything else.
    words
        For text, whose samples are word ids with the padding, 0, in front: how many ids there
        are. None for anything else.
    """

    classes: int
    shape: tuple[int, ...]
    highest: tuple[float, ...] | None = None
    words: int | None = None


@dataclass(frozen=True)
class Data:
    """A data set, ready to train on.

    Parameters
    ----------
    clients
        The samples that are divided among the clients.
    server
        The server's samples: models are tested on them, and no client ever sees them.
    classes
        Number of classes.
    highest
        For images: each channel's highest value after normalizing, in which attackers draw their
        patterns. None for anything else.
    extras
        Further tensors that the model is built with, such as word vectors.
    file
        The prepared file that the tensors are views of, if there is one.
    words
        For text: how many word ids there are, padding included. None for anything else.
    """

    clients: Samples
    server: Samples
    classes: int
    highest: tuple[float, ...] | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    file: Path | None = None
    words: int | None = None

    def __post_init__(self) -> None:
        check_int("Data", "classes", self.classes, 1)
        for name, samples in (("clients", self.clients), ("server", self.server)):
            if not len(samples):
                raise InputError(f"there are no samples for the {name}")
            if samples.labels.dtype != torch.int64:
                raise InputError(f"labels must be int64; the {name}' are {samples.labels.dtype}")
            least, most = int(samples.labels.min()), int(samples.labels.max())
            if least < 0 or most >= self.classes:
                raise InputError(
                    f"with {self.classes} classes, labels run from 0 to {self.classes - 1}; "
                    f"the {name}' run from {least} to {most}"
                )
        if self.highest is not None:
            shape = tuple(self.clients.inputs.shape[1:])
            if len(shape) != 3 or len(self.highest) != shape[0]:
                raise InputError(
                    f"`highest` has one value per channel of images (channels, height, width); "
                    f"there are {len(self.highest)} values for samples of shape {shape}"
                )
        if self.words is not None:
            check_int("Data", "words", self.words, 1)
            inputs = self.clients.inputs
            if inputs.ndim != 2 or inputs.is_floating_point() or self.highest is not None:
                raise InputError(
                    f"with `words`, samples are word ids (length,), and whole numbers; these have "
                    f"the shape {tuple(inputs.shape[1:])} and are {inputs.dtype}"
                )

    @property
    def spec(self) -> DataSpec:
        """What can be known without looking at samples."""
        shape = tuple(self.clients.inputs.shape[1:])
        return DataSpec(self.classes, shape, self.highest, self.words)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a task is trained unless a scenario says otherwise.

    Parameters
    ----------
    rounds
        Number of rounds.
    lr, momentum, weight_decay
        Of each client's stochastic gradient descent.
    batch
        Samples per batch.
    local_epochs
        Epochs that a client trains per round.
    anchor
        Number of the server's samples set aside for an update of its own.
    """

    rounds: int
    lr: float
    momentum: float = 0.5
    weight_decay: float = 0.0
    batch: int = 128
    local_epochs: int = 1
    anchor: int = 0

    def __post_init__(self) -> None:
        for name, least in {"rounds": 1, "batch": 1, "local_epochs": 1, "anchor": 0}.items():
            check_int("TrainingConfig", name, getattr(self, name), least)
        check_float("TrainingConfig", "lr", self.lr, 0)
        check_open_fraction("TrainingConfig", "momentum", self.momentum, 1)
        if self.weight_decay != 0:
            check_float("TrainingConfig", "weight_decay", self.weight_decay, 0)


@dataclass(frozen=True)
class SourceFile:
    """A file, or a folder of files, compared with what was published.

    Parameters
    ----------
    path
        Where it is, or should be.
    verdict
        "whole": as published. "differs": not as published, such as a subset. "missing": not there.
        "unknown": there is nothing published to compare it with.
    detail
        More about it, such as the number of files in a folder; may be empty.
    """

    path: Path
    verdict: Literal["whole", "differs", "missing", "unknown"]
    detail: str = ""


class Task(Configurable, ABC):
    """A data set, a model and a recipe.

    Parameters of a task are keyword-only arguments of its constructor; each is kept in an
    attribute of its name.
    """

    recipe: ClassVar[TrainingConfig]
    source: ClassVar[str] = ""
    """Where the data comes from."""

    @abstractmethod
    def load(self, place: Path) -> Data:
        """Load the data.

        Parameters
        ----------
        place
            The folder of data sets, each in its own folder.

        Raises
        ------
        InputError
            Files are missing or damaged; the message says which and what to do.
        """

    def check(self, place: Path) -> list[SourceFile]:
        """Compare the files in `place` that the data is made from with what was published.

        Nothing is downloaded. By default there are none.
        """
        return []

    @abstractmethod
    def model(self, data: Data) -> nn.Module:
        """Build the model with fresh weights; the caller has seeded PyTorch.

        It maps a batch of inputs to one logit per class. What is not in its state dict is not
        trained, sent or aggregated.
        """

    def augment(self, inputs: Tensor) -> Tensor:
        """Vary a batch that a client is about to train on; PyTorch is seeded."""
        return inputs

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """What clients minimize: the mean over a batch. By default the cross-entropy."""
        return nn.functional.cross_entropy(outputs, labels)
