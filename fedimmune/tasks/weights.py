"""Public weights into a net: all layers, or all but the classifier where classes differ."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from fedimmune.errors import InputError
from fedimmune.files import load_mapped

__all__ = ["load_weights"]

_SUFFIXES = (".safetensors", ".pth", ".pt")


def load_weights(net: nn.Module, path: Path, classifier: str, advice: str) -> None:
    """Load weights from a file into a net.

    Parameters
    ----------
    net
        Changed in place, all of it or, where an error is raised, nothing.
    path
        A file .safetensors, or .pth as PyTorch writes state dicts.
    classifier
        The layer that is left as it is where its shape in the file is another one, or where the
        file has none.
    advice
        What to do where the other layers do not fit.

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
        raise InputError(f"{path}: weights come in files {', '.join(_SUFFIXES)}")
    if path.suffix == ".safetensors":
        return load_mapped(path)
    try:
        # It reads tensors and plain containers only: a hostile file runs nothing.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"cannot be read: no such file ({path})") from error
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    except (pickle.UnpicklingError, zipfile.BadZipFile, AttributeError, IndexError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()
    ):
        raise InputError(
            f"{path} holds no state dict of tensors by name: save `model.state_dict()` there"
        )
    return dict(found)


def _unreadable(path: Path, error: Exception) -> InputError:
    lines = str(error).strip().splitlines()
    return InputError(
        f"{path} cannot be read as a state dict of tensors: {lines[0] if lines else repr(error)}"
    )
