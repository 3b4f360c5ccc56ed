"""``fedimmune rules | attacks | tasks``: lists of components."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedimmune.cli._ui import console
from fedimmune.cli.app import command

if TYPE_CHECKING:
    from fedimmune.registry import Configurable

__all__ = ["attacks", "rules", "tasks"]

_NARROW = 100
_BY = {
    "krum": "by the number of clients",
    "multi-krum": "by the number of clients",
    "rlr": "by the number of clients",
    "zeno": "by the number of clients",
    "label-flip": "by the number of classes",
    "alie": "by the number of clients",
}
"""What a default that is None depends on."""

AsJsonList = Annotated[bool, typer.Option("--json", help="Print a JSON list.")]


@command("fedimmune rules", "fedimmune rules --json")
def rules(as_json: AsJsonList = False) -> None:
    """List the rules with their parameters, what they look at and need, and papers."""
    from fedimmune import rules as known

    found = [known.find(name) for name in known.available()]
    facts: dict[str, Callable[[Any], Any]] = {
        "class": lambda rule: rule.kind(),
        "paper": lambda rule: rule.paper,
    }
    _list("rule", "what it returns", found, facts, as_json)


@command("fedimmune attacks", "fedimmune attacks --json")
def attacks(as_json: AsJsonList = False) -> None:
    """List the attacks with their parameters and papers."""
    from fedimmune import attacks as known

    found = [known.find(name) for name in known.available()]
    facts: dict[str, Callable[[Any], Any]] = {
        "acts on": lambda attack: attack().acts_on(),
        "knows": lambda attack: attack().knowledge,
        "paper": lambda attack: attack.paper,
    }
    _list("attack", "what an attacker does", found, facts, as_json)


@command("fedimmune tasks", "fedimmune tasks --json")
def tasks(as_json: AsJsonList = False) -> None:
    """List the tasks with their parameters, recipes and data."""
    from fedimmune import tasks as known

    found = [known.find(name) for name in known.available()]
    facts: dict[str, Callable[[Any], Any]] = {
        "recipe": lambda task: vars(task.recipe),
        "data": lambda task: task.source,
    }
    _list("task", "what is learned", found, facts, as_json)


def _list(
    noun: str,
    what: str,
    members: Sequence[type[Configurable]],
    facts: Mapping[str, Callable[[Any], Any]],
    as_json: bool,
) -> None:
    if as_json:
        described = [
            {
                "name": member.name,
                "aliases": list(member.aliases),
                "summary": member.summary,
                "parameters": member.parameters(),
                **{name.replace(" ", "_"): fact(member) for name, fact in facts.items()},
            }
            for member in members
        ]
        typer.echo(json.dumps(described, indent=2))
        return
    if console().width < _NARROW:
        _blocks(members, facts)
        return
    table = Table(box=None, padding=(0, 2, 1, 0), header_style="bold")
    for heading in (noun, what, "parameters", *facts):
        table.add_column(heading, overflow="fold")
    for member in members:
        parameters = "\n".join(
            f"{name}{_symbol(member.symbols.get(name))} = {_default(member.name, value)}"
            for name, value in _own(member).items()
        )
        others = [_shown(fact(member)) for fact in facts.values()]
        table.add_row(Text(_called(member), "cyan"), member.summary, parameters or "–", *others)
    console().print(table)
    _say_shared(members)


def _own(member: type[Configurable]) -> dict[str, Any]:
    """Return the parameters that not all of its kind have."""
    return {k: v for k, v in member.parameters().items() if k not in member.shared}


def _say_shared(members: Iterable[type[Configurable]]) -> None:
    """Say once what all take."""
    shared = {name for member in members for name in member.shared}
    known = {k: v for member in members for k, v in member.parameters().items() if k in shared}
    if known:
        said = ", ".join(f"{name} = {_default('', value)}" for name, value in known.items())
        console().print(f"All take, besides: {said}.", highlight=False)


def _blocks(
    members: Sequence[type[Configurable]], facts: Mapping[str, Callable[[Any], Any]]
) -> None:
    """Print one block per member, for a narrow terminal."""
    out = console()
    for member in members:
        out.print(f"[cyan]{_called(member)}[/]  {member.summary}", highlight=False)
        settings = _own(member) | {name: fact(member) for name, fact in facts.items()}
        for name, value in settings.items():
            text = _shown(value) if name in facts else _default(member.name, value)
            out.print(f"  {name}: {text}".replace("\n", ", "), highlight=False)
        out.print()
    _say_shared(members)


def _called(member: type[Configurable]) -> str:
    return ", ".join((member.name, *member.aliases))


def _shown(fact: object) -> str:
    if isinstance(fact, Mapping):
        return "\n".join(f"{name} = {value}" for name, value in fact.items())
    return str(fact)


def _symbol(symbol: str | None) -> str:
    return f" ({symbol})" if symbol else ""


def _default(owner: str, value: object) -> str:
    if value is None:
        return _BY.get(owner, "not given")
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower() or "none"
