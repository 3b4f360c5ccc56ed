"""ResNet-18 (He et al., 2016), and public weights for it."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d, relu

from fedimmune.errors import InputError
from fedimmune.io import load_mapped

__all__ = ["STEMS", "ResNet18", "load_weights"]

_SUFFIXES = (".safetensors", ".pth", ".pt")
_UNREADABLE = (
    *(OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError, IndexError),
    *(pickle.UnpicklingError, zipfile.BadZipFile),
)


def load_weights(net: nn.Module, path: Path, classifier: str, advice: str) -> None:
    """Load weights from a file into a net.

    Parameters
    ----------
    net
        Changed in place, unless an error is raised.
    path
        A file .safetensors, or .pth as PyTorch writes state dicts.
    classifier
        The layer that is left as it is if the file has none, or one of another shape.
    advice
        What to do if other layers do not fit.

    Raises
    ------
    InputError
        The file cannot be read, or does not fit; the message names the first layer.
    """
    given = _read(path)
    state = net.state_dict()
    last = [name for name in state if name.startswith(f"{classifier}.")]
    if not any(name in given for name in last) or any(
        name in given and given[name].shape != state[name].shape for name in last
    ):
        given = {name: tensor for name, tensor in given.items() if name not in last}
        given |= {name: state[name] for name in last}
    for name, tensor in state.items():
        if name.endswith(".num_batches_tracked"):
            # Files from before PyTorch counted batches have none, and nothing here depends on it.
            given.setdefault(name, tensor)
        if name not in given:
            raise InputError(f"{path} does not fit: it has no {name!r}. {advice}")
        if given[name].shape != tensor.shape:
            raise InputError(
                f"{path} does not fit: {name!r} has shape {tuple(given[name].shape)}, and "
                f"{tuple(tensor.shape)} is needed. {advice}"
            )
    for name, tensor in given.items():
        if name not in state:
            raise InputError(f"{path} does not fit: the model has no {name!r}. {advice}")
        if not torch.isfinite(tensor).all():
            raise InputError(f"{path} is damaged: {name!r} has values that are not finite")
    net.load_state_dict(given)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise InputError(f"cannot be read: no such file ({path})")
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: expected a file that ends in {', '.join(_SUFFIXES)}")
    if path.suffix == ".safetensors":
        return load_mapped(path)
    try:
        # It reads tensors and plain containers only: a hostile file runs nothing.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"cannot be read: no such file ({path})") from error
    except _UNREADABLE as error:
        lines = str(error).strip().splitlines() or [repr(error)]
        raise InputError(f"{path} cannot be read as a state dict of tensors: {lines[0]}") from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()
    ):
        raise InputError(
            f"{path} does not hold a state dict of tensors by name: save `model.state_dict()` there"
        )
    return dict(found)


STEMS = ("imagenet", "cifar")
"""How the net begins: made for large images, or for small ones."""


class ResNet18(nn.Module):
    """Four stages of two blocks of two convolutions, each block with a shortcut.

    Parameters
    ----------
    classes
        Number of classes.
    width
        Channels of the first stage; each further one has twice as many.
    stem
        "imagenet": a 7×7 convolution that halves the image, and a pool that halves it again.
        "cifar": a 3×3 convolution.
    """

    def __init__(self, classes: int = 1000, width: int = 64, stem: str = "imagenet") -> None:
        super().__init__()
        self._pools = stem == "imagenet"
        if self._pools:
            self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        found = relu(self.bn1(self.conv1(images)), inplace=True)
        if self._pools:
            found = max_pool2d(found, 3, stride=2, padding=1)
        found = self.layer4(self.layer3(self.layer2(self.layer1(found))))
        out: Tensor = self.fc(adaptive_avg_pool2d(found, 1).flatten(1))
        return out


def _stage(channels: int, wider: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_Block(channels, wider, stride), _Block(wider, wider, 1))


class _Block(nn.Module):
    """Two convolutions, and the input added to their output."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)
        # The input must have the output's shape to be added to it.
        self.downsample = (
            None
            if stride == 1
            else nn.Sequential(
                nn.Conv2d(channels, wider, 1, stride=stride, bias=False), nn.BatchNorm2d(wider)
            )
        )

    def forward(self, came: Tensor) -> Tensor:
        """Map features to features."""
        found = relu(self.bn1(self.conv1(came)), inplace=True)
        found = self.bn2(self.conv2(found))
        around = came if self.downsample is None else self.downsample(came)
        return relu(found + around, inplace=True)
