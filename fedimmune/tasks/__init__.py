"""Tasks: a data set, a model and a recipe, together."""

from fedimmune.tasks.base import Data, Facts, Recipe, Samples, SourceFile, Task
from fedimmune.tasks.place import data_folder
from fedimmune.tasks.registry import create, find, names, register

__all__ = [
    "Data",
    "Facts",
    "Recipe",
    "Samples",
    "SourceFile",
    "Task",
    "create",
    "data_folder",
    "find",
    "names",
    "register",
]
