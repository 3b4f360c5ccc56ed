"""``fedimmune data``: fetch, prepare and check a data set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedimmune.cli.app import app
from fedimmune.cli.options import DataFolder
from fedimmune.cli.terminal import console, read_setting, remarks

if TYPE_CHECKING:
    from fedimmune.tasks import Data, Samples

__all__ = ["data"]

_STYLES = {"whole": "green", "differs": "yellow", "missing": "red", "unknown": "dim"}


@app.command()
def data(
    task: Annotated[str, typer.Argument(help="The task whose data it is: `fedimmune tasks`.")],
    place: DataFolder = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the task. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Prepare the data set of TASK and check it; what is missing is downloaded.

    Example: fedimmune data mnist --data DIR
    """
    from fedimmune.tasks import create, data_folder, load_data

    made = create(task, **dict(read_setting(text) for text in settings or []))
    folder = data_folder(place)
    remarks().print(f"loading {made.name} from {folder} …", highlight=False, soft_wrap=True)
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
    table = Table(title=f"{task} in {folder}", title_justify="left")
    for heading in ("", "samples", "shape", "classes", "samples a class"):
        table.add_column(heading, justify="left" if not heading else "right")
    for part, row in found["parts"].items():
        fewest, most = min(row["by_class"]), max(row["by_class"])
        span = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        shape = "×".join(str(size) for size in row["shape"])
        table.add_row(part, f"{row['samples']:,}", shape, str(found["classes"]), span)
    console().print(table)
    for each in sources:
        detail = f" ({each.detail})" if each.detail else ""
        verdict = f"[{_STYLES[each.verdict]}]{each.verdict:<7}[/]"
        console().print(f"{verdict}  {each.path}{detail}", highlight=False, soft_wrap=True)
    if loaded.file is not None:
        console().print(f"prepared in {loaded.file}", highlight=False, soft_wrap=True)


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
