"""CIFAR-10: 60,000 photographs of 32×32 pixels in 10 classes (Krizhevsky, 2009)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedimmune.errors import InputError
from fedimmune.tasks.archives import Archive, compare, need_folder
from fedimmune.tasks.base import Data, Samples, SourceFile, TrainingConfig
from fedimmune.tasks.data import check_labels, prepared, tell_subset
from fedimmune.tasks.images import inputs_of, read_pickle
from fedimmune.tasks.resnet_task import ResNetTask

__all__ = ["Cifar10"]

_SIDE = 32
_WAY = 1
"""Version of the preparation; a new one must not find files of an old one."""


class Cifar10(ResNetTask):
    """Photographs of 10 kinds of things, with ResNet-18."""

    name = "cifar10"
    summary = "60,000 photographs of 10 kinds at 32×32, ResNet-18"
    source = "https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009)"
    recipe = TrainingConfig(rounds=30, lr=0.1, batch=128, anchor=500)

    archive: ClassVar[Archive] = Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    )
    # The last file is the test set.
    md5s: ClassVar[Mapping[str, str]] = {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }
    classes: ClassVar[int] = 10
    key: ClassVar[str] = "labels"
    """Name of the labels in the files."""
    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)

    def load(self, place: Path) -> Data:
        folder = need_folder(self.name, place, self.archive, tuple(self.md5s))
        files = [folder / name for name in self.md5s]
        mean, std = self.normalizing
        settings = {"way": _WAY, "mean": mean, "std": std}
        data = prepared(self.name, place, files, settings, lambda: self._read(files))
        tell_subset(self.name, data, 50_000, 10_000)
        return data

    def check(self, place: Path) -> list[SourceFile]:
        return compare(place / self.archive.folder, self.md5s)

    def _read(self, files: Sequence[Path]) -> Data:
        clients, highest = self._samples(files[:-1])
        server, _ = self._samples(files[-1:])
        return Data(clients, server, self.classes, highest)

    def _samples(self, files: Sequence[Path]) -> tuple[Samples, tuple[float, ...]]:
        read = [self._pixels_and_labels(file) for file in files]
        labels = torch.from_numpy(np.concatenate([labels for _, labels in read]))
        source = files[0] if len(files) == 1 else files[0].parent
        count = sum(len(pixels) for pixels, _ in read)
        check_labels(self.name, source, labels, count, self.classes)
        batches = _batches([pixels for pixels, _ in read])
        inputs, highest = inputs_of(batches, count, _SIDE, *self.normalizing)
        return Samples(inputs, labels), highest

    def _pixels_and_labels(self, file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        found = read_pickle(file)
        pixels = found.get("data")
        row = 3 * _SIDE * _SIDE
        if not (
            isinstance(pixels, np.ndarray)
            and pixels.dtype == np.uint8
            and pixels.ndim == 2
            and pixels.shape[1] == row
        ):
            raise InputError(f"{self.name}: {file} has no 'data' of bytes, {row} per image")
        labels = self._labels(file, found.get(self.key))
        if len(labels) != len(pixels):
            raise InputError(
                f"{self.name}: {file} has {len(pixels):,} images and {len(labels):,} labels"
            )
        return pixels, labels

    def _labels(self, file: Path, given: object) -> NDArray[np.int64]:
        if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu":
            return given.astype(np.int64)
        if isinstance(given, list) and all(
            type(label) is int and 0 <= label < self.classes for label in given
        ):
            return np.array(given, np.int64)
        raise InputError(
            f"{self.name}: {file} has no list {self.key!r} of numbers from 0 to {self.classes - 1}"
        )


def _batches(files: Sequence[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    for pixels in files:
        for first in range(0, len(pixels), 1000):
            yield pixels[first : first + 1000].reshape(-1, 3, _SIDE, _SIDE)
