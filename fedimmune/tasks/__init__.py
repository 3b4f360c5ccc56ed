"""Tasks: a data set, a model and a recipe, together."""

from fedimmune.tasks.base import Data, Facts, Recipe, Samples, SourceFile, Task
from fedimmune.tasks.place import data_folder
from fedimmune.tasks.registry import create, find, names, register
from fedimmune.tasks.using import build_model, load_data

__all__ = [
    "Data",
    "Facts",
    "Recipe",
    "Samples",
    "SourceFile",
    "Task",
    "build_model",
    "create",
    "data_folder",
    "find",
    "load_data",
    "names",
    "register",
]
