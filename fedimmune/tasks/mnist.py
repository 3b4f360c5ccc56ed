"""MNIST: 70,000 handwritten digits (LeCun, Cortes and Burges, 1998)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedimmune.errors import InputError
from fedimmune.tasks.archives import compare, need_files
from fedimmune.tasks.base import Data, Samples, SourceFile, Task, TrainingConfig
from fedimmune.tasks.data import check_labels, prepared, tell_subset
from fedimmune.tasks.images import inputs_of, read_idx
from fedimmune.tasks.models.lenet import LeNet

__all__ = ["Mnist"]

_CLASSES = 10
_PIXELS = 28
_SIDE = 32
_WAY = 1
"""Version of the preparation; a new one must not find files of an old one."""


class Mnist(Task):
    """Handwritten digits, with the paper's LeNet."""

    name = "mnist"
    summary = "70,000 handwritten digits at 32×32, LeNet"
    source = "http://yann.lecun.com/exdb/mnist/ (LeCun, Cortes and Burges 1998)"
    recipe = TrainingConfig(rounds=30, lr=0.01, batch=128, anchor=500)

    folder: ClassVar[str] = "MNIST/raw"
    address: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    # In this order: training images and labels, test images and labels.
    md5s: ClassVar[Mapping[str, str]] = {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }
    mean: ClassVar[float] = 0.1307
    std: ClassVar[float] = 0.3081

    def load(self, place: Path) -> Data:
        files = need_files(self.name, place, self.folder, self.address, self.md5s)
        settings = {"way": _WAY, "side": _SIDE, "mean": self.mean, "std": self.std}
        data = prepared(self.name, place, files, settings, lambda: self._read(files))
        tell_subset(self.name, data, 60_000, 10_000)
        return data

    def check(self, place: Path) -> list[SourceFile]:
        return compare(place / self.folder, self.md5s)

    def model(self, data: Data) -> nn.Module:
        return LeNet(data.classes)

    def _read(self, files: Sequence[Path]) -> Data:
        clients, highest = self._samples(*files[:2])
        server, _ = self._samples(*files[2:])
        return Data(clients, server, _CLASSES, highest)

    def _samples(self, images_file: Path, labels_file: Path) -> tuple[Samples, tuple[float, ...]]:
        images = read_idx(images_file, 3)
        if images.shape[1:] != (_PIXELS, _PIXELS):
            raise InputError(
                f"{self.name}: {images_file} has images of {images.shape[1]}×{images.shape[2]} "
                f"pixels; {_PIXELS}×{_PIXELS} are expected"
            )
        labels = _tensor(read_idx(labels_file, 1))
        check_labels(self.name, labels_file, labels, len(images), _CLASSES)
        inputs, highest = inputs_of(
            (images[first : first + 1000, None] for first in range(0, len(images), 1000)),
            len(images),
            _SIDE,
            (self.mean,),
            (self.std,),
        )
        return Samples(inputs, labels), highest


def _tensor(labels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))
