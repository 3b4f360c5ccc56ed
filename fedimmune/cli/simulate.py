"""``fedimmune simulate``: federated training under attack, watched as it goes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedimmune.cli.app import app
from fedimmune.cli.options import DataFolder
from fedimmune.cli.terminal import console, read_setting, remarks
from fedimmune.errors import ParameterError

if TYPE_CHECKING:
    from fedimmune.federation import Scenario

__all__ = ["simulate"]


@app.command()
def simulate(
    scenario_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SCENARIO]", help="A scenario in TOML, or a run's folder, to start from."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="What is learned: `fedimmune tasks`, or module:Class. [default: digits]"),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="How the server aggregates: `fedimmune rules`. [default: mean]"),
    ] = None,
    defence: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The defence of the rule `adaptive`: `fedimmune train`."),
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="What attackers do: `fedimmune attacks`. [default: none]")
    ] = None,
    attackers: Annotated[
        int | None, typer.Option(help="How many attack. [default: 4 in 10 under an attack]")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="How many there are. [default: 10]")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many. [default: the task's]")] = None,
    seed: Annotated[int | None, typer.Option(help="Where all chance is from. [default: 1]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Any field, such as attack.shift_x=20, optimiser.lr=0.05, partition.name=iid, "
            "participation=0.5, device=cuda. Repeatable.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where run folders are kept.")] = Path(
        "runs"
    ),
    data: DataFolder = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that train. [default: one a core, 1 for small tasks]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run anew what was run before.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the records, one JSON object a line.")
    ] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write scalars for TensorBoard too (an extra)."),
    ] = None,
) -> None:
    """Train federatedly under attack and keep the run.

    SCENARIO is a TOML file or a run's folder to start from; options change it.

    A run that was interrupted goes on from its last finished round; one that is finished is shown
    again. The same scenario gives the same bits, whatever the number of workers.

    Example: fedimmune simulate --task mnist --rule krum --attack backdoor --attackers 3
    --set attack.shift_x=20
    """
    named = {
        "task": task,
        "rule": rule,
        "rule.defence": defence,
        "attack": attack,
        "attackers": attackers,
        "clients": clients,
        "rounds": rounds,
        "seed": seed,
    }
    changes = {name: value for name, value in named.items() if value is not None}
    for text in settings or []:
        name, value = read_setting(text)
        known = changes.get(name.removesuffix(".name"))
        if known is not None:
            raise ParameterError(f"{name} is given twice: {known!r} and {value!r}")
        changes[name] = value
    scenario = _scenario(scenario_file, changes)
    if attackers and not scenario.attackers:
        remarks().print(f"nobody attacks: --attackers {attackers} needs an --attack too")

    from fedimmune.cli.display import Display
    from fedimmune.cli.scalars import scalars
    from fedimmune.federation import run_folder
    from fedimmune.federation import simulate as play

    folder = run_folder(scenario, runs)
    with ExitStack() as stack:
        display = stack.enter_context(Display(scenario, console(), remarks(), silent=as_json))
        write = stack.enter_context(scalars(tensorboard, folder.path.name))
        records = play(
            scenario, data=data, runs=runs, workers=workers, force=force, observer=display
        )
        stack.callback(records.close)
        for record in records:
            if as_json:
                typer.echo(record.model_dump_json())
            display.show(record)
            write(record)
    display.finish(folder)


def _scenario(file: Path | None, changes: dict[str, Any]) -> Scenario:
    from fedimmune.federation.scenario import Scenario, changed, read_toml

    return Scenario(**changed({} if file is None else read_toml(file), changes))
