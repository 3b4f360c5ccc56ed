"""Components by name: rules, attacks, tasks, partitions. One guarded registry per kind."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeGuard, TypeVar, cast
from weakref import WeakKeyDictionary

from fedimmune.errors import ParameterError

__all__ = ["Configurable", "Registry", "make", "meant", "names_code", "never_import_from"]


class Configurable:
    """Something with a name, a summary, and keyword-only parameters."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names; a subclass does not inherit them."""
    summary: ClassVar[str]
    """One line for lists."""
    symbols: ClassVar[Mapping[str, str]] = {}
    """What the paper calls each parameter."""
    shared: ClassVar[frozenset[str]] = frozenset()
    """Parameters that all of its kind have, and that are not shown at their defaults."""
    places: ClassVar[frozenset[str]] = frozenset()
    """Parameters that are file locations; another one must identify the content."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.aliases = vars(cls).get("aliases", ())

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return the parameters with their defaults, those of base classes last."""
        known = _PARAMETERS.get(cls)
        if known is None:
            known = _PARAMETERS[cls] = {}
            for place in [each for each in cls.__mro__ if "__init__" in vars(each)]:
                accepted = list(inspect.signature(place).parameters.values())
                named = [each for each in accepted if each.kind is not each.VAR_KEYWORD]
                known |= {each.name: each.default for each in named if each.name not in known}
                if len(named) == len(accepted):  # it passes nothing on to the next
                    break
        return dict(known)

    def told(self) -> list[str]:
        """Return the names of the parameters to make it again with.

        Those that all of its kind share are left out at their defaults.
        """
        return [
            name
            for name, default in self.parameters().items()
            if name not in self.shared or getattr(self, name, default) != default
        ]

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.told())
        return f"{type(self).__name__}({settings})"


_PARAMETERS: WeakKeyDictionary[type[Configurable], dict[str, Any]] = WeakKeyDictionary()
"""Cached: a grid of scenarios asks thousands of times, and inspecting is slow."""


T = TypeVar("T", bound=Configurable)


class Registry(Generic[T]):
    """Classes by name; unknown and duplicate names are refused with a helpful message.

    Parameters
    ----------
    noun
        What its members are called in messages, such as "rule".
    members
        Classes that are registered from the start.
    base
        Their base class. With it, users' own classes can be named too, as ``package.module:Name``.
    homes
        Modules, or packages of modules, whose classes with a `name` of their own are members. They
        are imported when the first name is looked up.
    """

    def __init__(
        self,
        noun: str,
        members: Iterable[type[T]] = (),
        *,
        base: type | None = None,
        homes: Sequence[str] = (),
    ) -> None:
        self._noun, self._base, self._homes = noun, base, homes
        self._members: dict[str, type[T]] = {}
        self._aliases: dict[str, str] = {}
        for member in members:
            self.register(member)

    def register(self, member: type[T]) -> type[T]:
        """Add a class under its `name`; also usable as a decorator."""
        self._discover()
        if inspect.isabstract(member):
            raise ParameterError(f"{member.__name__} is abstract and cannot be registered")
        for name in (member.name, *member.aliases):
            known = self._members.get(self._aliases.get(name, name), member)
            if known is not member:
                raise ParameterError(f"there is a {self._noun} {name!r} already: {known.__name__}")
        self._members[member.name] = member
        self._aliases |= dict.fromkeys(member.aliases, member.name)
        return member

    def available(self) -> tuple[str, ...]:
        """List the names of all members, sorted, without their aliases."""
        self._discover()
        return tuple(sorted(self._members))

    def find(self, name: str) -> type[T]:
        """Find a class by its name or an alias, or a user's own by ``package.module:Name``.

        Raises
        ------
        ParameterError
            There is none of that name (the message suggests the nearest, or lists all), or it
            cannot be imported, or is not such a class.
        """
        if self._base is not None and names_code(name):
            return self._imported(name, self._base)
        self._discover()
        try:
            return self._members[self._aliases.get(name, name)]
        except (KeyError, TypeError):
            own = " and, of your own, module:Class" if self._base is not None else ""
            else_say = f"there are {', '.join(self.available())}{own}"
            hint = meant(name, (*self.available(), *self._aliases), else_say)
            raise ParameterError(f"there is no {self._noun} {name!r}; {hint}") from None

    def known(self, name: str) -> type[T] | None:
        """Find a class as `find` does, but import no user's code: None if it is not loaded yet."""
        self._discover()
        if not names_code(name):
            return self._members.get(self._aliases.get(name, name))
        module, _, attribute = name.partition(":")
        found = getattr(sys.modules.get(module), attribute, None)
        right = inspect.isclass(found) and issubclass(found, self._base or Configurable)
        return cast("type[T]", found) if right else None

    def resolve(self, name: str) -> str:
        """Return the name that an alias stands for; any other name as it is."""
        self._discover()
        return self._aliases.get(name, name)

    def get(self, name: str, **parameters: Any) -> T:
        """Make a member.

        Parameters
        ----------
        name
            One of `available`, or ``package.module:Name`` for a class of the user's own.
        **parameters
            The member's own; see its class. One that it does not have is refused.
        """
        return make(self.find(name), parameters)

    def exported(self, name: str) -> type[T]:
        """Return the member whose class has this name, for a package's ``__getattr__``."""
        if name[:1].isupper():  # modules of the package are asked for too
            self._discover()
            for member in self._members.values():
                if member.__name__ == name:
                    return member
        raise AttributeError(f"fedimmune.{self._noun}s has no {name!r}")

    def _discover(self) -> None:
        homes, self._homes = self._homes, ()  # first, because `register` calls this too
        try:
            modules = [module for home in homes for module in _modules(home)]
        except BaseException:
            self._homes = homes  # the next call fails the same way
            raise
        for module in modules:
            for member in vars(module).values():
                if (
                    inspect.isclass(member)
                    and issubclass(member, self._base or Configurable)
                    and member.__module__ == module.__name__
                    and "name" in vars(member)
                ):
                    self.register(cast("type[T]", member))

    def _imported(self, name: str, base: type) -> type[T]:
        module_name, _, attribute = name.partition(":")
        said = f"{self._noun} {name!r}"
        try:
            with _import_places():
                module = importlib.import_module(module_name)
        except ImportError as error:
            raise ParameterError(f"{said}: cannot import {module_name!r}: {error}") from error
        except Exception as error:
            raise ParameterError(
                f"{said}: importing {module_name!r} failed: {type(error).__name__}: {error}"
            ) from error
        found = getattr(module, attribute, None)
        if found is None:
            raise ParameterError(f"{said}: {module_name!r} has no {attribute!r}")
        if not (inspect.isclass(found) and issubclass(found, base)):
            public = f"fedimmune.{self._noun}s.{base.__name__}"
            raise ParameterError(f"{said} is not a subclass of {public}")
        member = cast("type[T]", found)
        if inspect.isabstract(member):
            missing = ", ".join(sorted(getattr(member, "__abstractmethods__", ())))
            raise ParameterError(f"{said} is abstract: it lacks {missing}")
        if not isinstance(getattr(member, "name", None), str):
            raise ParameterError(f"{said} needs a `name`")
        for parameter, default in member.parameters().items():
            if default is inspect.Parameter.empty:
                raise ParameterError(f"{said}: its parameter {parameter!r} needs a default")
        return member


def _modules(home: str) -> list[ModuleType]:
    """Import a module, or all modules of a package."""
    module = importlib.import_module(home)
    below = pkgutil.iter_modules(getattr(module, "__path__", ()), f"{home}.")
    return [module, *(importlib.import_module(each.name) for each in below)]


def names_code(name: object) -> TypeGuard[str]:
    """Whether a name stands for a class that has to be imported, ``package.module:Name``."""
    return isinstance(name, str) and ":" in name


_BARRED: set[str] = set()


def never_import_from(folder: str | os.PathLike[str]) -> None:
    """Never look for users' classes in a folder that a stranger may have filled."""
    _BARRED.add(os.path.realpath(folder))


@contextmanager
def _import_places() -> Iterator[None]:
    """Also look for modules in the current folder, as `python -m` does, but in no barred one."""
    here = os.getcwd()
    if here not in sys.path and os.path.realpath(here) not in _BARRED:
        sys.path.append(here)
    before = list(sys.path)
    sys.path[:] = [place for place in before if os.path.realpath(place or here) not in _BARRED]
    try:
        yield
    finally:
        sys.path[:] = [*before, *(place for place in sys.path if place not in before)]


def make(member: type[T], parameters: Mapping[str, Any]) -> T:
    """Call a class with parameters; those that it does not have are refused."""
    accepted = member.parameters()
    for parameter in parameters:
        if parameter not in accepted:
            known = ", ".join(
                f"{each} ({member.symbols[each]})" if each in member.symbols else each
                for each in accepted
            )
            hint = meant(parameter, accepted, f"it takes {known or 'none'}")
            raise ParameterError(f"{member.name} has no parameter {parameter!r}; {hint}")
    return member(**parameters)


def meant(name: object, known: Iterable[str], else_say: str) -> str:
    """Ask whether the nearest of the known names was meant; if none is near, return `else_say`."""
    near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else else_say
