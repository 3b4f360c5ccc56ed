"""Using a task that anyone may have written: what goes wrong in it is said in its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from fedimmune.errors import FedimmuneError, InputError
from fedimmune.tasks.base import Data, Task

__all__ = ["build_model", "load_data"]

_FEW = 2


def load_data(task: Task, place: Path) -> Data:
    """Load a task's data.

    Raises
    ------
    InputError
        It cannot be loaded, or is no `Data`.
    """
    with _named(task, "load"):
        data = task.load(place)
    if not isinstance(data, Data):
        raise InputError(f"task {task.name}: load must give fedimmune.Data, not {_kind(data)}")
    return data


def build_model(task: Task, data: Data) -> nn.Module:
    """Build a task's model and see that it takes the data.

    Raises
    ------
    InputError
        It cannot be built, or does not map samples to one number a class.
    """
    with _named(task, "model"):
        model = task.model(data)
    if not isinstance(model, nn.Module):
        raise InputError(f"task {task.name}: model must give a torch.nn.Module, not {_kind(model)}")
    with _named(task, "the model, given two samples,"), torch.no_grad():
        outputs = model.eval()(data.server.inputs[:_FEW])
    wanted = (len(data.server.inputs[:_FEW]), data.classes)
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != wanted:
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else _kind(outputs)
        raise InputError(
            f"task {task.name}: the model must map {wanted[0]} samples to {wanted}, one number a "
            f"class; it gives {found}"
        )
    return model


@contextmanager
def _named(task: Task, step: str) -> Iterator[None]:
    try:
        yield
    except FedimmuneError:
        raise
    except Exception as error:
        raise InputError(f"task {task.name}: {step} failed: {_kind(error)}: {error}") from error


def _kind(value: object) -> str:
    return type(value).__name__
