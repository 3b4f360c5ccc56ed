"""The tasks by name. A new task is one file and one line here."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
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
    "task", (Digits, Mnist, FashionMnist, Cifar10, Cifar100, TinyImagenet, Imdb)
)

register = _TASKS.register
names = _TASKS.names


def find(name: str) -> type[Task]:
    """Find a task's class by its name, or by ``package.module:Name`` where it is a user's own."""
    return _imported(name) if isinstance(name, str) and ":" in name else _TASKS.find(name)


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


def _imported(name: str) -> type[Task]:
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # as `python -m` does, so that a script beside the user is found
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ParameterError(f"task {name!r}: cannot import {module_name!r}: {error}") from error
    except Exception as error:
        raise ParameterError(
            f"task {name!r}: importing {module_name!r} failed: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ParameterError(f"task {name!r}: {module_name!r} has no {attribute!r}")
    if not (inspect.isclass(found) and issubclass(found, Task)):
        raise ParameterError(f"task {name!r} is no subclass of fedimmune.tasks.Task")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ParameterError(f"task {name!r} is abstract: it lacks {missing}")
    if not isinstance(getattr(found, "recipe", None), Recipe):
        raise ParameterError(f"task {name!r} needs a `recipe`, a fedimmune.Recipe")
    if not isinstance(getattr(found, "name", None), str):
        raise ParameterError(f"task {name!r} needs a `name`")
    for parameter, default in found.parameters().items():
        if default is inspect.Parameter.empty:
            raise ParameterError(f"task {name!r}: its parameter {parameter!r} needs a default")
    return found
