"""CIFAR-100: 60,000 photographs of 32×32 pixels in 100 classes (Krizhevsky, 2009)."""

from __future__ import annotations

from fedimmune.tasks.archives import Archive
from fedimmune.tasks.cifar10 import Cifar10

__all__ = ["Cifar100"]


class Cifar100(Cifar10):
    """Photographs of 100 kinds of things, with ResNet-18."""

    name = "cifar100"
    summary = "60,000 photographs of 100 kinds at 32×32, ResNet-18"

    archive = Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    )
    md5s = {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    }
    classes = 100
    key = "fine_labels"
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
