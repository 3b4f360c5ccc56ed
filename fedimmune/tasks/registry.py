"""The tasks by name. A new task is one file and one line here."""

from __future__ import annotations

from typing import Any

from fedimmune.errors import ParameterError
from fedimmune.registry import Registry, make
from fedimmune.tasks.base import Recipe, Task
from fedimmune.tasks.cifar10 import Cifar10
from fedimmune.tasks.cifar100 import Cifar100
from fedimmune.tasks.digits import Digits
from fedimmune.tasks.fashion_mnist import FashionMnist
from fedimmune.tasks.imdb import Imdb
from fedimmune.tasks.mnist import Mnist
from fedimmune.tasks.tiny_imagenet import TinyImagenet

__all__ = ["create", "find", "names", "register"]

_TASKS: Registry[Task] = Registry(
    "task", (Digits, Mnist, FashionMnist, Cifar10, Cifar100, TinyImagenet, Imdb), base=Task
)

register = _TASKS.register
names = _TASKS.names


def find(name: str) -> type[Task]:
    """Find a task's class by its name, or by ``package.module:Name`` where it is a user's own."""
    found = _TASKS.find(name)
    if not isinstance(getattr(found, "recipe", None), Recipe):
        raise ParameterError(f"task {name!r} needs a `recipe`, a fedimmune.Recipe")
    return found


def create(name: str, **parameters: Any) -> Task:
    """Make a task.

    Parameters
    ----------
    name
        One of `names`, or ``package.module:Name`` for a class of the user's own.
    **parameters
        The task's own; see its class, or ``fedimmune tasks``.
    """
    return make(find(name), parameters)
