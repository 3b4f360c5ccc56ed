"""Tasks: a data set, a model and a recipe, together."""

from typing import Any

from fedimmune.tasks.base import Data, DataSpec, Samples, SourceFile, Task, TrainingConfig
from fedimmune.tasks.data import build_model, data_folder, load_data
from fedimmune.tasks.registry import available, exported, find, get, register

__all__ = [
    "Data",
    "DataSpec",
    "Samples",
    "SourceFile",
    "Task",
    "TrainingConfig",
    "available",
    "build_model",
    "data_folder",
    "find",
    "get",
    "load_data",
    "register",
]


def __getattr__(name: str) -> Any:
    return exported(name)
