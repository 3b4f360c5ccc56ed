"""Things that users name: rules, attacks, tasks, partitions. One guarded list of names a kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakKeyDictionary

from fedimmune.errors import ParameterError

__all__ = ["Named", "Registry", "make"]


class Named:
    """Something with a name, a line about itself, and keyword-only parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for lists."""
    symbols: ClassVar[Mapping[str, str]] = {}
    """What the paper calls each parameter."""
    places: ClassVar[frozenset[str]] = frozenset()
    """Parameters that say where something is; another one must say what it is."""

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Give the parameters with their defaults."""
        known = _PARAMETERS.get(cls)
        if known is None:
            accepted = inspect.signature(cls).parameters.values()
            known = _PARAMETERS[cls] = {each.name: each.default for each in accepted}
        return dict(known)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.parameters())
        return f"{type(self).__name__}({settings})"


_PARAMETERS: WeakKeyDictionary[type[Named], dict[str, Any]] = WeakKeyDictionary()
"""Looked up once: a grid of scenarios asks thousands of times, and looking is slow."""


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Classes by name; unknown and double names are refused with a message that helps.

    Parameters
    ----------
    noun
        What its members are called in messages, such as "rule".
    members
        The classes that are there from the start.
    """

    def __init__(self, noun: str, members: Iterable[type[T]] = ()) -> None:
        self._noun = noun
        self._members: dict[str, type[T]] = {}
        for member in members:
            self.register(member)

    def register(self, member: type[T]) -> type[T]:
        """Add a class, under its `name`; also usable as a decorator."""
        if inspect.isabstract(member):
            raise ParameterError(f"{member.__name__} is abstract and cannot be registered")
        known = self._members.setdefault(member.name, member)
        if known is not member:
            raise ParameterError(
                f"there is a {self._noun} {member.name!r} already: {known.__name__}"
            )
        return member

    def names(self) -> tuple[str, ...]:
        """List the names of all members."""
        return tuple(self._members)

    def find(self, name: str) -> type[T]:
        """Find a class by its name.

        Raises
        ------
        ParameterError
            There is none of that name; the message lists those that there are.
        """
        try:
            return self._members[name]
        except (KeyError, TypeError):
            there_are = ", ".join(self._members)
            message = f"there is no {self._noun} {name!r}; there are {there_are}"
            raise ParameterError(message) from None

    def create(self, name: str, **parameters: Any) -> T:
        """Make a member by its name; a parameter that it has not is refused."""
        return make(self.find(name), parameters)


def make(member: type[T], parameters: Mapping[str, Any]) -> T:
    """Call a class with parameters, having refused those that it has not."""
    accepted = member.parameters()
    for parameter in parameters:
        if parameter not in accepted:
            known = ", ".join(
                f"{each} ({member.symbols[each]})" if each in member.symbols else each
                for each in accepted
            )
            takes = f"it takes {known}" if known else "it takes none"
            raise ParameterError(f"{member.name} has no parameter {parameter!r}; {takes}")
    return member(**parameters)
