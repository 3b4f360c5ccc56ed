"""Tasks: a data set, a model and a recipe, together."""

from typing import Any

from fedimmune.tasks.base import Data, Facts, Recipe, Samples, SourceFile, Task
from fedimmune.tasks.place import data_folder
from fedimmune.tasks.registry import available, exported, find, get, register
from fedimmune.tasks.using import build_model, load_data

__all__ = [
    "Data",
    "Facts",
    "Recipe",
    "Samples",
    "SourceFile",
    "Task",
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
