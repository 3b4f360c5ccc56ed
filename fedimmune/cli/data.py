"""``fedimmune data``: fetch, prepare and check a data set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedimmune.cli._signals import on_stop
from fedimmune.cli._ui import console, make_table, read_setting, remarks, say
from fedimmune.cli.app import command
from fedimmune.cli.completion import TASKS, one_of
from fedimmune.cli.options import AsJson, DataFolder, Quiet

if TYPE_CHECKING:
    from fedimmune.tasks import Data, Samples

__all__ = ["data"]

_STYLES = {"whole": "green", "differs": "yellow", "missing": "red", "unknown": "dim"}


@command(
    "fedimmune data digits",
    "fedimmune data mnist --data DIR",
    "fedimmune data imdb --set vectors=FILE --json",
)
def data(
    task: Annotated[str, typer.Argument(hidden=True, autocompletion=one_of(TASKS))],
    place: DataFolder = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the task. Repeatable."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Prepare and check the data set of a task; download what is missing.

    TASK is one that `fedimmune tasks` lists, or module:Class.
    """
    from fedimmune import tasks
    from fedimmune.tasks import data_folder, load_data
    from fedimmune.tasks.archives import unwatched

    made = tasks.get(task, **dict(read_setting(text) for text in settings or []))
    folder = data_folder(place)
    say(remarks(quiet=quiet), f"loading {made.name} from {folder} …")
    with (
        on_stop("files that are whole are kept; the same command resumes with the others"),
        unwatched(quiet),
    ):
        loaded = load_data(made, folder)
        sources = made.check(folder)
    found = _described(loaded)
    if as_json:
        checked = [
            {"path": str(each.path), "verdict": each.verdict, "detail": each.detail}
            for each in sources
        ]
        typer.echo(json.dumps({"task": task, "folder": str(folder), **found, "files": checked}))
        return
    out = console()
    say(out, f"{task} in {folder}")
    table = make_table(None, ("",), ("samples", "shape", "classes", "samples per class"))
    for part, row in found["parts"].items():
        fewest, most = min(row["by_class"]), max(row["by_class"])
        span = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        shape = "×".join(map(str, row["shape"]))
        table.add_row(part, f"{row['samples']:,}", shape, str(found["classes"]), span)
    out.print(table)
    for each in sources:
        detail = f" ({each.detail})" if each.detail else ""
        verdict = Text(f"{each.verdict:<7}", _STYLES[each.verdict])
        say(out, verdict.append(f"  {each.path}{detail}", "default"))
    if loaded.file is not None:
        say(out, f"prepared in {loaded.file}")


def _described(loaded: Data) -> dict[str, Any]:
    parts = {"clients": loaded.clients, "server": loaded.server}
    return {
        "classes": loaded.classes,
        "parts": {name: _part(samples, loaded.classes) for name, samples in parts.items()},
    }


def _part(samples: Samples, classes: int) -> dict[str, Any]:
    return {
        "samples": len(samples),
        "shape": list(samples.inputs.shape[1:]),
        "by_class": samples.labels.bincount(minlength=classes).tolist(),
    }
