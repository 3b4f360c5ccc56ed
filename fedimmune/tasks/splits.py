"""The halves of a data set, as they should be: every class is there, and subsets say so."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.tasks.base import Data

__all__ = ["check_labels", "tell_subset"]

_LOG = logging.getLogger("fedimmune")


def check_labels(task: str, source: Path, labels: Tensor, samples: int, classes: int) -> None:
    """Check that there is one label a sample, and at least one sample a class.

    Parameters
    ----------
    task
        Its name, for messages.
    source
        Where the labels are from, for messages.
    labels
        The classes.
    samples, classes
        How many there are.

    Raises
    ------
    InputError
        They are not as they should be.
    """
    if len(labels) != samples:
        raise InputError(f"{task}: {source} gives {len(labels):,} labels for {samples:,} samples")
    if not samples:
        raise InputError(f"{task}: {source} holds no samples")
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= classes:
        wrong = least if least < 0 else most
        raise InputError(f"{task}: {source} has a label {wrong}; they run from 0 to {classes - 1}")
    empty = torch.nonzero(torch.bincount(labels, minlength=classes) == 0).flatten().tolist()
    if empty:
        which = ", ".join(map(str, empty[:5])) + (", …" if len(empty) > 5 else "")
        noun = "class" if len(empty) == 1 else "classes"
        raise InputError(f"{task}: {source} has no sample of {noun} {which}")


def tell_subset(task: str, data: Data, train: int, test: int, noun: str = "images") -> None:
    """Warn where a data set is not as large as it was published.

    Parameters
    ----------
    task
        Its name.
    data
        What was loaded.
    train, test
        How many samples were published.
    noun
        What they are called.
    """
    if (len(data.clients), len(data.server)) != (train, test):
        _LOG.warning(
            f"{task}: {len(data.clients):,} of {train:,} training and {len(data.server):,} of "
            f"{test:,} test {noun}: a subset"
        )
