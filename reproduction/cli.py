"""The command line: each of the paper's tables and figures by one command."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedimmune.cli.help import Command, examples
from fedimmune.errors import FedimmuneError, ParameterError
from fedimmune.simulation.federation import check_device
from fedimmune.simulation.workers import usable_cores
from fedimmune.tasks import data_folder, load_data
from fedimmune.untrusted import printable
from reproduction.experiments import Experiment
from reproduction.jobs import Job, Store
from reproduction.presets import SCALES
from reproduction.progress import Monitor, duration, machine_factor
from reproduction.results import check_writable, publish, published_table, write
from reproduction.schedule import Outcome, Plan, closure, execute, plan_jobs
from reproduction.selection import Request, parse_filter, parse_seeds
from reproduction.studies import EXPERIMENTS, find_experiment

__all__ = ["app", "main"]

_EXAMPLES = examples(
    "python -m reproduction",
    "python -m reproduction synthetic",
    "python -m reproduction mnist-backdoor --scale paper --data DIR --filter attackers=4",
    "python -m reproduction mnist-attackers cifar10-attackers --scale cpu --seeds 3",
    "python -m reproduction cifar10-backdoor --scale paper --device cuda",
)
_LIST = "list"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class _Stop(BaseException):
    """A signal asks the program to end. Not KeyboardInterrupt, which Typer swallows."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def main(
    program: typer.Typer = app,
    name: str = "python -m reproduction",
    arguments: Sequence[str] | None = None,
) -> None:
    """Run the command; an error is one line on standard error and exit code 1 or 2.

    Parameters
    ----------
    program, name
        Another command that is to end like this one, and how it is called.
    arguments
        By default those of the process.
    """
    before = {
        number: signal.signal(number, _stop)
        for number in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        program(arguments, prog_name=name)
    except FedimmuneError as error:
        _fail(str(error), 2 if isinstance(error, ParameterError) else 1)
    except OSError as error:
        _fail(error.strerror or str(error), 1)
    except _Stop as stop:
        _fail("; ".join(["stopped", *getattr(stop, "__notes__", [])]), 128 + stop.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    # A second one would cut off tidying up; `timeout` and some shells send two.
    signal.signal(number, signal.SIG_IGN)
    raise _Stop(number)


def _fail(words: str, code: int) -> None:
    typer.echo(f"reproduction: {printable(' '.join(words.split()))}", err=True)
    sys.exit(code)


@app.command(cls=Command, epilog=_EXAMPLES)
def _reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[list | EXPERIMENT...]",
            help="Experiments to reproduce; without any, list them.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="`paper`: as in the paper. `authors`: as in the authors' program. `cpu`: reduced "
            "to what a few cores can do. `smoke`: bundled digits, minutes, meaningless figures.",
        ),
    ] = "cpu",
    seeds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N[:FIELD=VALUE]",
            help="Number of seeds, from 1 on; 3:attackers=4 is the number for some runs. "
            "Repeatable. [default: 3 for paper and authors, otherwise 1]",
        ),
    ] = None,
    filter: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Select runs, such as attackers=4,rule=adaptive; a field named twice may have "
            "either value. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="PyTorch device on which clients train, such as cuda.")
    ] = "cpu",
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for recordings, defenses, runs and results.")
    ] = Path("reproduced"),
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of data sets. [default: FEDIMMUNE_DATA, else a cache]"
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, one thread each. [default: one per core]")
    ] = None,
    publish: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write tables (.md, .csv) and figures (.png) here. Rows already in a "
            "table stay until the same cell is run again.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what is missing, and do nothing.")
    ] = False,
    no_run: Annotated[
        bool,
        typer.Option("--no-run", help="Run nothing: write tables of what is done."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the result: no progress, no remarks.")
    ] = False,
) -> None:
    """Reproduce the paper's tables and figures: rehearse, train, run, compare.

    Only what is missing is done, so an interrupted command resumes. Experiments in the same folder
    share recordings, defenses and runs. Failures are reported at the end and stop nothing else.
    """
    torch.set_num_threads(1)  # other processes compute
    repeats, repeats_of = parse_seeds(seeds or [])
    request = Request(scale, repeats, parse_filter(filter or []), device, repeats_of)
    store, out = Store(folder, data), _Output(as_json=as_json, quiet=quiet)
    if not ids or ids == [_LIST]:
        _list(request, store, out)
        return
    chosen = [find_experiment(each) for each in ids]
    plan = plan_jobs(_wanted(chosen, request), store)
    count = workers or usable_cores()
    if dry_run:
        _tell_missing(plan, count, out)
        return
    begins = bool(plan.jobs) and not no_run
    # Everything that can be refused is refused before hours of work.
    if begins:
        check_device(device)
        _check_data(plan.jobs, store)
    if publish is not None:
        check_writable(publish)
        for each in chosen:
            each.check_published(request, published_table(each, publish))
    check_writable(folder)
    outcome = _run(plan, store, count, out) if begins else None
    answers, unwritten = [], {}
    for each in chosen:
        try:
            answers.append(_write(each, request, store, publish, out))
        except FedimmuneError as error:  # the others are written anyway
            unwritten[each.id] = str(error)
    _tell(outcome, answers, unwritten, out)
    if unwritten or (outcome is not None and (outcome.failed or outcome.left_out)):
        raise typer.Exit(1)


class _Output:
    """Results go to standard output, remarks to standard error."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.notes = Console(stderr=True, quiet=quiet)

    def print(self, text: str) -> None:
        typer.echo(text)

    def remark(self, line: str) -> None:
        self.notes.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def _wanted(chosen: Sequence[Experiment], request: Request) -> list[Job]:
    """List the jobs asked for; every experiment has to have one."""
    request.check({each.id: each.offers(request) for each in chosen})
    wanted: list[Job] = []
    for each in chosen:
        jobs = each.jobs(request)
        if not jobs:
            raise FedimmuneError(
                f"no run of {each.id} has everything that --filter asks for at once; --dry-run "
                "lists those that there are"
            )
        wanted += jobs
    return wanted


def _check_data(jobs: Sequence[Job], store: Store) -> None:
    """Load the data of all tasks once: what is missing is reported, downloaded or prepared now."""
    scenarios = [job.scenario for job in jobs if job.scenario is not None]
    tasks = {each.task.model_dump_json(): each for each in scenarios}
    for _, one in sorted(tasks.items()):
        load_data(one.make_task(), data_folder(store.data))


def _run(plan: Plan, store: Store, workers: int, out: _Output) -> Outcome:
    monitor = Monitor(plan, store, workers, out.notes)
    try:
        with monitor:
            return execute(
                plan, store, workers=workers, on_start=monitor.started, on_end=monitor.ended
            )
    except _Stop as stop:
        stop.add_note(monitor.kept())
        raise


def _write(
    experiment: Experiment, request: Request, store: Store, place: Path | None, out: _Output
) -> dict[str, Any]:
    """Write an experiment's tables and figures, show them, and return what there is."""
    wanted = experiment.jobs(request)
    files = write(experiment, request, store)
    published = None if place is None else publish(experiment, request, store, place)
    if not out.as_json:
        out.print(files[0].read_text(encoding="utf-8"))
        endings = ", ".join(file.suffix for file in files if file.stem == experiment.id)
        out.remark(f"written: {files[0].with_suffix('')} ({endings})")
    if published is not None:
        out.remark(f"published: {', '.join(map(str, published.files))}")
        if published.carried:
            out.remark(
                f"{published.carried} rows of the earlier table of {experiment.id} are carried "
                "over: no job asked for has their key; running the same cell replaces a row"
            )
        files += published.files
    every = closure(wanted)
    done = len(every) - len(plan_jobs(wanted, store).jobs)
    return {
        "id": experiment.id,
        "done": done,
        "of": len(every),
        "carried": 0 if published is None else published.carried,
        "files": [str(file) for file in files],
    }


# -------------------------------------------------------------------- output


def _list(request: Request, store: Store, out: _Output) -> None:
    """List the experiments: what each shows, and how much is to do and done at each scale."""
    every = list(EXPERIMENTS.values())
    if request.filter or request.repeats_of:  # what is made as a whole has nothing to select by
        every = [each for each in every if each.offers(request) is not None]
        request.check({each.id: each.offers(request) for each in every})
    factor = machine_factor() / usable_cores()
    facts: list[dict[str, Any]] = []
    for each in every:
        scales = {}
        for scale in SCALES:
            wanted = each.jobs(replace(request, scale=scale))
            plan, whole = plan_jobs(wanted, store), closure(wanted)
            scales[scale] = {
                "tasks": list(each.tasks[scale]),
                "runs": len({job.key for job in wanted}),
                "jobs": len(whole),
                "done": plan.done,
                "seconds": round(factor * sum(job.seconds for job in whole)),
                "seconds_left": round(factor * plan.seconds),
            }
        facts.append({"id": each.id, "shows": each.shows, "source": each.source, "scales": scales})
    if out.as_json:
        out.print(json.dumps(facts, indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "what it shows", "in the paper", "tasks"):
        table.add_column(name)
    for scale in SCALES:
        table.add_column(f"{scale}: runs, time, done", justify="right")
    for fact in facts:
        found = [fact["scales"][scale] for scale in SCALES]
        amounts = [
            f"{each['runs']}, {duration(each['seconds'])}, "
            + (f"{each['done']}/{each['jobs']}" if each["done"] else "–")
            for each in found
        ]
        tasks = ", ".join(dict.fromkeys(task for each in found for task in each["tasks"]))
        table.add_row(fact["id"], fact["shows"], fact["source"], tasks, *amounts)
    console = Console()
    (console if console.is_terminal else Console(width=10_000)).print(table)
    total = sum(fact["scales"][request.scale]["seconds_left"] for fact in facts)
    out.remark(
        f"Times are estimates for {usable_cores()} cores of this machine, each experiment by "
        f"itself; at scale {request.scale} at most {duration(total)} are left, less if jobs are "
        "shared."
    )


def _tell_missing(plan: Plan, workers: int, out: _Output) -> None:
    """Print what is missing, and about how long it takes."""
    at_once = max(1, min(workers, usable_cores(), len(plan.jobs)))
    seconds = machine_factor() * plan.seconds / at_once
    titles = [job.title for job in plan.jobs]
    if out.as_json:
        facts = {"missing": titles, "done": plan.done, "seconds": round(seconds)}
        out.print(json.dumps(facts, indent=1))
        return
    for title in titles:
        out.print(title)
    out.remark(f"{len(titles)} jobs are missing, {plan.done} are done; about {duration(seconds)}")


def _tell(
    outcome: Outcome | None,
    answers: list[dict[str, Any]],
    unwritten: dict[str, str],
    out: _Output,
) -> None:
    if out.as_json:
        facts: dict[str, Any] = {"experiments": answers}
        if unwritten:
            facts["unwritten"] = unwritten
        if outcome is not None:
            facts |= {
                "done": len(outcome.done),
                "failed": {each.job.title: each.problem for each in outcome.failed},
                "left_out": [job.title for job in outcome.left_out],
                "seconds": round(outcome.seconds, 1),
                "busy": round(outcome.busy, 3),
            }
        out.print(json.dumps(facts, indent=1))
    if outcome is not None:
        out.remark(
            f"{len(outcome.done)} jobs in {duration(outcome.seconds)}; the processes computed "
            f"{outcome.busy:.0%} of that time"
        )
        for each in outcome.failed:
            out.remark(f"failed: {each.job.title}: {each.problem}")
        if outcome.left_out:
            out.remark(f"{len(outcome.left_out)} jobs were left out because they need what failed")
    for name, problem in unwritten.items():
        out.remark(f"not written: {name}: {problem}")
