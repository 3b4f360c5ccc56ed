"""The command line: ``fedimmune aggregate | rules | demo``.

Results go to standard output, progress and remarks to standard error. PyTorch is imported by the
commands that need it, so that ``--help`` is quick.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedimmune import __version__
from fedimmune.errors import FedimmuneError, InputError, ParameterError

if TYPE_CHECKING:
    from fedimmune.rules import Rule

__all__ = ["app", "main"]

app = typer.Typer(
    help="An immune system for federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# PyTorch's threads spin while they wait for each other: quickest on idle cores, but on a busy
# machine far slower than sleeping (docs/benchmarks.md). Has to be set before PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_INTERRUPTED = 130
_WIDE = 140
"""Columns of a table that goes to a file or a pipe, where nothing tells the width."""


def main() -> None:
    """Run the command line; an error is one line on standard error and exit code 1."""
    try:
        app()
    except FedimmuneError as error:
        typer.echo(f"fedimmune: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:
            typer.echo("fedimmune: interrupted", err=True)
        raise


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedimmune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """An immune system for federated learning."""


@app.command()
def aggregate(
    files: Annotated[
        list[Path], typer.Argument(help="One safetensors file a client; its stem is the id.")
    ],
    rule: Annotated[str, typer.Option(help="The rule; `fedimmune rules` lists them.")] = "median",
    global_model: Annotated[
        Path | None, typer.Option("--global", help="The model that the clients started from.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write the next model. Default: nowhere."),
    ] = None,
    updates: Annotated[
        bool, typer.Option("--updates", help="The files hold differences to the global model.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the rule. Repeatable."),
    ] = None,
    buffers: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Further layers that are not trained. Repeatable."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="JSON file: how many samples each client says it has, by id."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(help="Where foolsgold keeps what it remembers of clients by id."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Aggregate client files into the next global model.

    Files are read in blocks, so a round may be larger than memory. A damaged, odd or NaN file is
    rejected by name and the rest is aggregated. The output is replaced whole or not at all.

    Example: fedimmune aggregate --rule krum --set attackers=2 --global base.safetensors
    client-*.safetensors -o next.safetensors
    """
    parameters = dict(_setting(rule, text) for text in settings or [])
    made = _make(rule, parameters, with_history=history is not None)
    _check_told(made, files, samples)
    if global_model is None and not updates:
        raise InputError(
            "client models need the global model that they started from: give --global FILE, "
            "or --updates where the files hold differences"
        )
    from fedimmune.on_disk import aggregate_files

    with _progress() as progress:
        task = progress.add_task(made.name, total=None)
        aggregation = aggregate_files(
            made,
            files,
            global_file=global_model,
            output=output,
            are_updates=updates,
            buffers=buffers or (),
            samples=_read_samples(samples),
            history=history,
            on_start=lambda total: progress.update(task, total=total),
            on_read=lambda count: progress.advance(task, count),
        )
    if as_json:
        written = {"output": None if output is None else str(output)}
        typer.echo(json.dumps({**aggregation.to_json(), **written}, indent=2))
        return
    _console().print(aggregation)
    if output is not None:
        typer.echo(f"wrote {output}", err=True)
    else:
        typer.echo("nothing written: give -o FILE for the next model", err=True)


@app.command()
def rules(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the rules with their parameters and papers."""
    from fedimmune.rules import find, names

    found = [find(name) for name in names()]
    if as_json:
        described = [
            {
                "name": rule.name,
                "summary": rule.summary,
                "parameters": rule.parameters(),
                "paper": rule.paper,
            }
            for rule in found
        ]
        typer.echo(json.dumps(described, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("rule", "what it gives", "parameters", "paper"):
        table.add_column(heading, overflow="fold")
    for rule in found:
        parameters = "\n".join(
            f"{name}{_symbol(rule.symbols.get(name))} = {_default(rule.name, value)}"
            for name, value in rule.parameters().items()
        )
        table.add_row(f"[cyan]{rule.name}[/]", rule.summary, parameters or "–", rule.paper)
    _console().print(table)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Another round.")] = 1,
) -> None:
    """One round with three attackers among ten clients, aggregated by every rule side by side."""
    from fedimmune.demo import show

    show(_console(), seed)


def _console() -> Console:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without β and █ gets a ? there
    console = Console()
    known = console.is_terminal or "COLUMNS" in os.environ
    return console if known else Console(width=_WIDE)


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    error = Console(stderr=True)
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=error,
        transient=True,
        disable=not error.is_terminal,
    ) as progress:
        yield progress


def _make(name: str, parameters: dict[str, Any], *, with_history: bool) -> Rule:
    from fedimmune.rules import create, find

    if with_history and "history" in find(name).parameters():
        parameters.setdefault("history", True)
    return create(name, **parameters)


def _check_told(rule: Rule, files: list[Path], samples: Path | None) -> None:
    """Refuse what a rule is told of clients that are not there, or not told though it has to be."""
    from fedimmune.rules.mean import Mean
    from fedimmune.rules.oracle import Oracle

    if isinstance(rule, Mean) and rule.by_samples and samples is None:
        raise InputError("mean by samples needs sample counts: give --samples FILE")
    if isinstance(rule, Oracle):
        strangers = ((rule.attackers or set()) | (rule.benign or set())) - {f.stem for f in files}
        if strangers:
            raise ParameterError(f"oracle: there is no client {sorted(strangers)[0]!r}")


def _setting(rule: str, text: str) -> tuple[str, Any]:
    """Read ``name=value``: numbers, true and false as such; ids for the oracle as a list."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ParameterError(f"--set takes NAME=VALUE, not {text!r}")
    if rule == "oracle":
        return name, [client.strip() for client in value.split(",") if client.strip()]
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value  # the rule says what is wrong with it


def _read_samples(path: Path | None) -> dict[Any, float] | None:
    if path is None:
        return None
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read the sample counts in {path}: {error}") from error
    if not isinstance(counts, dict):
        raise InputError(f'{path} must hold an object of counts by client id: {{"a": 600, …}}')
    return counts


def _symbol(symbol: str | None) -> str:
    return f" ({symbol})" if symbol else ""


def _default(rule: str, value: object) -> str:
    if value is None:
        return "not given" if rule == "oracle" else "by the number of clients"
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower()


if __name__ == "__main__":
    main()
