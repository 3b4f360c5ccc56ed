"""Tiny ImageNet: 110,000 photographs of 64×64 pixels in 200 classes (Stanford's CS231n, 2015)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedimmune.errors import InputError
from fedimmune.tasks.archives import Archive, need_folder, tracked
from fedimmune.tasks.base import Data, Samples, SourceFile, TrainingConfig
from fedimmune.tasks.data import check_labels, count_verdict, files_in, prepared, tell_subset
from fedimmune.tasks.images import inputs_of
from fedimmune.tasks.resnet_task import ResNetTask

__all__ = ["TinyImagenet"]

_CLASSES = 200
_SIDE = 64
_TRAIN, _VAL = 100_000, 10_000
_WAY = 1
"""Version of the preparation; a new one must not find files of an old one."""


class TinyImagenet(ResNetTask):
    """Photographs of 200 kinds of things, with ResNet-18.

    The server has the validation set: the labels of the test set were not published.
    """

    name = "tiny-imagenet"
    summary = "110,000 photographs of 200 kinds at 64×64, ResNet-18"
    source = "http://cs231n.stanford.edu/ (a part of ImageNet, Russakovsky et al. 2015)"
    recipe = TrainingConfig(rounds=45, lr=0.1, batch=128, anchor=500)

    mean = (0.4802, 0.4481, 0.3975)
    std = (0.2770, 0.2691, 0.2821)
    archive: ClassVar[Archive] = Archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        "tiny-imagenet-200",
    )

    def load(self, place: Path) -> Data:
        names = ("wnids.txt", "train", "val/images", "val/val_annotations.txt")
        folder = need_folder(self.name, place, self.archive, names)
        wnids, annotations = folder / "wnids.txt", folder / "val" / "val_annotations.txt"
        classes = self._classes(wnids)
        train = self._train(folder / "train", classes)
        val = self._val(folder / "val" / "images", annotations, classes)
        sources = [wnids, annotations, *(file for file, _ in train), *(file for file, _ in val)]
        mean, std = self.normalizing
        settings = {"way": _WAY, "mean": mean, "std": std}
        data = prepared(self.name, place, sources, settings, lambda: self._read(train, val))
        tell_subset(self.name, data, _TRAIN, _VAL)
        return data

    def check(self, place: Path) -> list[SourceFile]:
        folder = place / self.archive.folder
        train, val = folder / "train", folder / "val" / "images"
        kinds = sorted(train.iterdir()) if train.is_dir() else []
        images = sum(len(files_in(kind / "images", ".JPEG")) for kind in kinds)
        return [
            count_verdict(train, images, _TRAIN),
            count_verdict(val, len(files_in(val, ".JPEG")), _VAL),
        ]

    def _classes(self, wnids: Path) -> dict[str, int]:
        # By name, as folders are sorted: the order in the file means nothing.
        names = sorted(set(_lines(wnids)))
        if len(names) != _CLASSES:
            raise InputError(
                f"{self.name}: {wnids} names {len(names)} classes; {_CLASSES} are expected"
            )
        return {name: label for label, name in enumerate(names)}

    def _train(self, folder: Path, classes: dict[str, int]) -> list[tuple[Path, int]]:
        found = []
        for name, label in classes.items():
            files = files_in(folder / name / "images", ".JPEG")
            if not files:
                raise InputError(f"{self.name}: {folder / name / 'images'} holds no images")
            found += [(file, label) for file in files]
        return found

    def _val(
        self, folder: Path, annotations: Path, classes: dict[str, int]
    ) -> list[tuple[Path, int]]:
        labels = {}
        for number, line in enumerate(_lines(annotations), start=1):
            parts = line.split("\t")
            if len(parts) < 2 or parts[1] not in classes:
                raise InputError(
                    f"{self.name}: {annotations}, line {number}: expected a file and one of the "
                    "classes of wnids.txt, separated by tabs"
                )
            labels[parts[0]] = classes[parts[1]]
        files = files_in(folder, ".JPEG")
        for file in files:
            if file.name not in labels:
                raise InputError(f"{self.name}: {annotations} does not say what {file} shows")
        found = [(file, labels[file.name]) for file in files]
        given = torch.tensor([label for _, label in found], dtype=torch.int64)
        check_labels(self.name, folder, given, len(found), _CLASSES)
        return found

    def _read(self, train: list[tuple[Path, int]], val: list[tuple[Path, int]]) -> Data:
        halves = []
        highest: tuple[float, ...] = ()
        for half, words in ((train, "training"), (val, "validation")):
            files = [file for file, _ in half]
            batches = _decoded(files, f"Decoding {words} images")
            inputs, highest = inputs_of(batches, len(files), _SIDE, *self.normalizing)
            halves.append(Samples(inputs, torch.tensor([label for _, label in half])))
        return Data(halves[0], halves[1], _CLASSES, highest)


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _decoded(files: Sequence[Path], words: str) -> Iterator[NDArray[np.uint8]]:
    batch = []
    for file in tracked(files, words):
        batch.append(_pixels(file))
        if len(batch) == 500:
            yield np.stack(batch)
            batch = []
    if batch:
        yield np.stack(batch)


def _pixels(file: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 (slow to import)

    try:
        with Image.open(file, formats=("JPEG",)) as image:
            if image.size != (_SIDE, _SIDE):
                raise InputError(
                    f"{file} is an image of {image.size[0]}×{image.size[1]} pixels; "
                    f"{_SIDE}×{_SIDE} are expected"
                )
            pixels = np.array(image.convert("RGB"))  # some are gray
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} cannot be read as JPEG: {error}") from error
    return pixels.transpose(2, 0, 1)
