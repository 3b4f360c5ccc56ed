"""``fedimmune simulate``: federated training under attack, shown as it runs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedimmune.cli._signals import on_stop
from fedimmune.cli._ui import console, in_ascii, read_setting, remarks, say, shown_here
from fedimmune.cli.app import command
from fedimmune.cli.completion import ATTACKS, RULES, TASKS, one_of
from fedimmune.cli.options import Before, DataFolder, Quiet
from fedimmune.errors import ParameterError

if TYPE_CHECKING:
    from fedimmune.runs.folder import RunFolder
    from fedimmune.simulation import Scenario

__all__ = ["simulate"]


@command(
    "fedimmune simulate --rule median --attack backdoor --attackers 4",
    "fedimmune simulate --rule adaptive --attack backdoor",
    "fedimmune simulate --rule adaptive --defense digits.defense --attack backdoor",
    "fedimmune simulate --task mnist --rule krum --attack backdoor --attackers 3 \\",
    "    --set attack.shift_x=20 --workers 2",
    "fedimmune simulate scenario.toml --seed 2 --quiet",
)
def simulate(
    scenario_file: Annotated[Path | None, typer.Argument(metavar="[SCENARIO]", hidden=True)] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="A task that `fedimmune tasks` lists, or module:Class. [default: digits]",
            autocompletion=one_of(TASKS),
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="A rule that `fedimmune rules` lists, or module:Class. [default: mean]",
            autocompletion=one_of(RULES),
        ),
    ] = None,
    before: Before = None,
    defense: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Defense of the rule `adaptive`, made by `fedimmune train`. [default: the "
            "universal one]",
        ),
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(
            help="An attack that `fedimmune attacks` lists, or module:Class. [default: none]",
            autocompletion=one_of(ATTACKS),
        ),
    ] = None,
    attackers: Annotated[
        int | None, typer.Option(help="Number of attackers. [default: 4 in 10 under an attack]")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients. [default: 10]")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Number of rounds. [default: the task's]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed. [default: 1]")] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="Defaults of other fields: as in the `paper`'s text or the `authors`' program.",
            autocompletion=one_of(("paper", "authors")),
        ),
    ] = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Any scenario field, such as attack.shift_x=20, optimizer.lr=0.05, "
            "partition.name=iid, participation=0.5, device=cuda. Repeatable.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder for run folders.")] = Path(
        "runs"
    ),
    data: DataFolder = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Training processes. [default: one per core, 1 for small tasks]"),
    ] = None,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Import code (module:Class) that SCENARIO names."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run again even if the run is finished.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print records, one JSON object per line.")
    ] = False,
    save_updates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="Save every client's updates of a layer with the run, for `report`. Repeatable.",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write scalars for TensorBoard (needs an extra)."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Simulate federated training under attack, and keep the run.

    SCENARIO is a TOML file or a run's folder to start from; options change it. Code that it names
    (module:Class) is imported only with --trust-code.

    An interrupted run resumes after its last finished round; a finished one is shown again. The
    same scenario gives the same bits, whatever the number of workers.
    """
    named = {
        "task": task,
        "rule": rule,
        "rule.defense": defense,
        "rule.before": before,
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
    scenario = _scenario(scenario_file, changes, protocol, trust_code=trust_code).resolve()
    notes = remarks(quiet=quiet)
    if attackers and not scenario.attackers:
        say(notes, f"nobody attacks: --attackers {attackers} also needs --attack")

    from fedimmune.cli._progress import Display
    from fedimmune.cli._tensorboard import scalars
    from fedimmune.simulation import run_folder
    from fedimmune.simulation import simulate as play
    from fedimmune.tasks.archives import unwatched

    folder = run_folder(scenario, runs)
    with ExitStack() as stack:
        display = Display(scenario, console(), notes, silent=as_json)
        stack.enter_context(on_stop(lambda: _kept(folder, display.shown, force=force)))
        stack.enter_context(unwatched(quiet))
        stack.enter_context(shown_here())
        stack.enter_context(display)
        write = stack.enter_context(scalars(tensorboard, folder.path.name))
        records = play(
            scenario,
            data=data,
            runs=runs,
            workers=workers,
            force=force,
            save_updates=save_updates or (),
            observer=display,
        )
        stack.callback(records.close)
        for record in records:
            if as_json:
                typer.echo(in_ascii(record.model_dump_json()))
            display.show(record)
            write(record)
    display.finish(folder)
    for layer in save_updates or ():
        lacking = folder.traces.lacking(layer, display.shown)
        if lacking:
            what = _which(lacking, display.shown)
            say(notes, f"{what} played without saving {layer}: --force runs it again")


def _which(rounds: list[int], played: int) -> str:
    if len(rounds) == played:
        return "all rounds were"
    first, last = rounds[0], rounds[-1]
    if first == last:
        return f"round {first} was"
    return f"{len(rounds)} rounds from {first} to {last} were"


def _kept(folder: RunFolder, shown: int, *, force: bool) -> str:
    again = "the same command without --force" if force and shown else "the same command"
    # If it was stopped while loading, nothing has been shown of a run that resumes.
    finished = shown if shown or force else len(folder.records())
    how = f"resumes after round {finished}" if finished else "starts over"
    return f"{again} {how} ({folder.path})"


def _scenario(
    file: Path | None, changes: dict[str, Any], protocol: str, *, trust_code: bool
) -> Scenario:
    from fedimmune.simulation.protocols import with_protocol
    from fedimmune.simulation.scenario import Scenario, changed

    if file is None:
        return Scenario(**with_protocol(protocol, changed({}, changes)))
    return Scenario.from_toml(file, changes, trust_code=trust_code, protocol=protocol)
