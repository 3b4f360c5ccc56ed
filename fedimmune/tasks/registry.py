"""The tasks by name. A new task is one file in this folder."""

from __future__ import annotations

from typing import Any

from fedimmune.errors import ParameterError
from fedimmune.registry import Registry, make
from fedimmune.tasks.base import Task, TrainingConfig

__all__ = ["available", "exported", "find", "get", "register"]

_TASKS: Registry[Task] = Registry("task", base=Task, homes=("fedimmune.tasks",))

available = _TASKS.available
exported = _TASKS.exported
register = _TASKS.register


def find(name: str) -> type[Task]:
    """Find a task's class by its name, or a user's own by ``package.module:Name``."""
    found = _TASKS.find(name)
    if not isinstance(getattr(found, "recipe", None), TrainingConfig):
        raise ParameterError(f"task {name!r} needs a `recipe`, a fedimmune.TrainingConfig")
    return found


def get(name: str, **parameters: Any) -> Task:
    """Make a task.

    Parameters
    ----------
    name
        One of `available`, or ``package.module:Name`` for a class of the user's own.
    **parameters
        The task's own; see its class, or ``fedimmune tasks``.
    """
    return make(find(name), parameters)
