"""``fedimmune aggregate``: client files into the next global model."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from fedimmune.cli._signals import ANEW, on_stop
from fedimmune.cli._ui import console, progress, read_setting, remarks, say, shown_here
from fedimmune.cli.app import command
from fedimmune.cli.completion import RULES, one_of
from fedimmune.cli.options import AsJson, Before, Quiet
from fedimmune.errors import InputError, ParameterError
from fedimmune.untrusted import MIB, read_bytes

if TYPE_CHECKING:
    from fedimmune.rules import Rule

__all__ = ["aggregate"]


@command(
    "fedimmune aggregate --global base.safetensors client-*.safetensors",
    "fedimmune aggregate --rule krum --set attackers=2 --global base.safetensors \\",
    "    client-*.safetensors -o next.safetensors",
    "fedimmune aggregate --updates --rule foolsgold --history seen u-*.safetensors",
    "fedimmune aggregate --updates --groups 20 --group-rule mean u-*.safetensors",
)
def aggregate(
    files: Annotated[list[Path], typer.Argument(hidden=True)],
    rule: Annotated[
        str,
        typer.Option(
            help="A rule that `fedimmune rules` lists, or module:Class.",
            autocompletion=one_of(RULES),
        ),
    ] = "median",
    global_model: Annotated[
        Path | None,
        typer.Option("--global", metavar="FILE", help="The model that clients started from."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File for the next model. [default: none]"
        ),
    ] = None,
    updates: Annotated[
        bool, typer.Option("--updates", help="FILES hold differences from the global model.")
    ] = False,
    before: Before = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the rule. Repeatable."),
    ] = None,
    buffers: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="More layers that are not trained. Repeatable."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON object: claimed number of samples by client id."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File in which a rule remembers earlier rounds, if it does.",
        ),
    ] = None,
    defense: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Defense of the rule `adaptive`, made by `fedimmune train`. [default: the "
            "universal one]",
        ),
    ] = None,
    anchor: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The server's own model (with --updates: its difference), for rules and defenses "
            "that compare clients with it.",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SIZE",
            help="Aggregate groups first: a JSON object of groups by client id (a list: the "
            "client's edge, region and so on), or how many clients a drawn group has at least "
            "(20,5: groups of 5 groups of 20).",
        ),
    ] = None,
    group_rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="With --groups: rule of the groups; repeatable, the edge first. [default: --rule]",
            autocompletion=one_of(RULES),
        ),
    ] = None,
    sums_only: Annotated[
        bool,
        typer.Option(
            "--sums-only",
            help="With --groups: see no client's update, only groups' means, as under secure "
            "aggregation.",
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Let workers of a Ray cluster read the files (host:port, auto, or local to start "
            "one here); all machines have to find them under the same paths.",
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Aggregate client files into the next global model.

    FILES are safetensors files, one per client; the name without its ending is the client's id.

    Files are read in blocks, so a round may be larger than memory. A file that is damaged, does not
    fit or has NaN is rejected by name, and the others are aggregated. The output is replaced as a
    whole or not at all.
    """
    parameters = dict(_setting(rule, text) for text in settings or [])
    if defense is not None:
        parameters["defense"] = str(defense)
    if before is not None:
        parameters["before"] = before

    def make() -> Rule:
        with_anchor = anchor is not None
        return _make(rule, parameters, with_history=history is not None, with_anchor=with_anchor)

    made = make()
    _check_clients(made, files, samples)
    if groups is not None:
        made = _hierarchy(groups, make, group_rule or [], sums_only=sums_only)
    elif group_rule or sums_only:
        raise ParameterError("--group-rule and --sums-only are for groups: add --groups FILE|SIZE")
    if global_model is None and not updates:
        raise ParameterError(
            "client models need the global model that they started from: add --global FILE, "
            "or --updates if the files hold differences"
        )
    from fedimmune.aggregation import aggregate_files

    notes = remarks(quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn())
    opening = progress(notes, *columns, MofNCompleteColumn(), TimeRemainingColumn())
    reading = progress(notes, *columns, DownloadColumn(), TimeRemainingColumn())
    with shown_here(), on_stop(ANEW), _Bars(opening, reading, len(files), made.name) as bars:
        aggregation = aggregate_files(
            made,
            files,
            global_file=global_model,
            output=output,
            are_updates=updates,
            buffers=buffers or (),
            samples=_read_samples(samples),
            history=history,
            anchor=anchor,
            ray=ray,
            on_open=bars.open,
            on_start=bars.start,
            on_read=bars.read,
        )
    if as_json:
        written = {"output": None if output is None else str(output)}
        typer.echo(json.dumps({**aggregation.to_json(), **written}, indent=2))
        return
    console().print(aggregation)
    nowhere = "nothing written: -o FILE writes the next model"
    say(notes, nowhere if output is None else f"wrote {output}")


class _Bars:
    """One bar after the other: files that have been opened, and bytes that have been read.

    Parameters
    ----------
    opening, reading
        The bars.
    files
        How many there are.
    rule
        Its name.
    """

    def __init__(self, opening: Progress, reading: Progress, files: int, rule: str) -> None:
        self._opening, self._reading = opening, reading
        self._files = opening.add_task("opening files", total=files)
        self._bytes = reading.add_task(rule, total=None)

    def __enter__(self) -> Self:
        self._opening.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._opening.stop()
        self._reading.stop()

    def open(self) -> None:
        """Count a file."""
        self._opening.advance(self._files)

    def start(self, total: int) -> None:
        """Begin to read."""
        self._opening.stop()
        self._reading.update(self._bytes, total=total)
        self._reading.start()

    def read(self, count: int) -> None:
        """Count bytes; once there are more than expected, nobody knows how many are left."""
        self._reading.advance(self._bytes, count)
        task = self._reading.tasks[self._bytes]
        if task.total is not None and task.completed > task.total:
            task.total = None


def _make(name: str, parameters: dict[str, Any], *, with_history: bool, with_anchor: bool) -> Rule:
    from fedimmune import rules
    from fedimmune.rules import find

    # --history implies that the rule remembers.
    for remembers in ("history", "memory"):
        if with_history and remembers in find(name).parameters():
            parameters.setdefault(remembers, True)
    made = rules.get(name, **parameters)
    # So does --anchor that it is looked at.
    if with_anchor and "anchor" in made.welcomes:
        return rules.get(name, **parameters, anchor=True)
    return made


def _hierarchy(groups: str, make: Callable[[], Rule], named: list[str], *, sums_only: bool) -> Rule:
    """Put rules of groups before the server's."""
    from fedimmune.hierarchy import Hierarchy

    sizes = groups.split(",")
    if all(size.strip().isdecimal() for size in sizes):
        levels: list[Any] = [int(size) for size in sizes]
    else:
        levels = _read_groups(Path(groups))
    if sums_only and not named:
        named = ["mean"]
    if len(named) > len(levels):
        raise ParameterError(f"{len(named)} group rules, but {len(levels)} levels of groups")
    every: list[str | Rule] = [*named, *(make() for _ in range(len(levels) - len(named) + 1))]
    return Hierarchy(rules=every, groups=levels, sums_only=sums_only)


def _read_groups(path: Path) -> list[dict[str, str]]:
    """Read who is in which group: one mapping per level."""
    found = _read_object(path, "groups")
    paths = {
        client: value if isinstance(value, list) else [value] for client, value in found.items()
    }
    odd = [c for c, path in paths.items() if not path or not all(isinstance(p, str) for p in path)]
    depths = {len(each) for each in paths.values()}
    if odd or len(depths) != 1:
        raise InputError(
            f"{path} must hold a group's name, or lists of equally many, by client id: "
            '{"a": "edge-1", …} or {"a": ["edge-1", "north"], …}'
        )
    levels: list[dict[str, str]] = [{} for _ in range(depths.pop())]
    for client, names in paths.items():
        for level, (member, group) in zip(levels, pairwise([client, *names]), strict=True):
            if level.setdefault(member, group) != group:
                raise InputError(f"{path}: {member!r} is in both {level[member]!r} and {group!r}")
    return levels


def _check_clients(rule: Rule, files: list[Path], samples: Path | None) -> None:
    """Refuse sample counts that are missing, and an oracle told of clients that are not there."""
    from fedimmune.rules.mean import Mean
    from fedimmune.rules.oracle import Oracle

    if isinstance(rule, Mean) and rule.by_samples and samples is None:
        raise ParameterError("mean by samples needs sample counts: add --samples FILE")
    if isinstance(rule, Oracle):
        strangers = ((rule.attackers or set()) | (rule.benign or set())) - {f.stem for f in files}
        if strangers:
            raise ParameterError(f"oracle: there is no client {sorted(strangers)[0]!r}")


def _setting(rule: str, text: str) -> tuple[str, Any]:
    """Read a parameter of a rule; the oracle takes a list of ids."""
    name, value = read_setting(text)
    if rule == "oracle":
        given = text.partition("=")[2]
        return name, [client.strip() for client in given.split(",") if client.strip()]
    return name, value


def _read_samples(path: Path | None) -> dict[Any, float] | None:
    return None if path is None else _read_object(path, "sample counts")


def _read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object by client id."""
    try:
        found = json.loads(read_bytes(path, 64 * MIB))  # a NaN rejects its client alone
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot read the {what} in {path}: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold an object of {what} by client id")
    return found
