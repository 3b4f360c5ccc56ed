"""``fedimmune reproduce``: the paper's tables and figures, each by one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedimmune.cli.app import command
from fedimmune.cli.completion import ARTEFACTS, SCALES, one_of
from fedimmune.cli.options import AsJson, DataFolder, Quiet
from fedimmune.cli.stopping import on_stop
from fedimmune.cli.terminal import console, remarks, say
from fedimmune.errors import FedimmuneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fedimmune.experiments.artefact import Artefact
    from fedimmune.experiments.asking import Ask
    from fedimmune.experiments.doing import Outcome
    from fedimmune.experiments.store import Store

__all__ = ["reproduce"]


@command(
    "fedimmune reproduce",
    "fedimmune reproduce synthetic",
    "fedimmune reproduce mnist-backdoor --scale paper --data DIR --only attackers=4",
    "fedimmune reproduce mnist-attackers cifar10-attackers --scale cpu --seeds 3",
    "fedimmune reproduce cifar10-backdoor --scale paper --device cuda",
)
def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Which; without any, all are listed.",
            autocompletion=one_of(ARTEFACTS),
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="`paper`: to the letter. `cpu`: reduced to what a few cores can do. `smoke`: in "
            "minutes, on bundled digits; figures mean nothing.",
            autocompletion=one_of(SCALES),
        ),
    ] = "cpu",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many, from 1 on. [default: 3 for paper, else 1]"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Only some runs, such as attackers=4,rule=adaptive; a field named twice may have "
            "either value. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where clients train, as PyTorch names it, such as cuda.")
    ] = "cpu",
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Where recordings, defences, runs and results are.")
    ] = Path("reproduced"),
    data: DataFolder = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of one thread. [default: one a core]")
    ] = None,
    publish: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Put tables (.md, .csv) and pictures (.png) there, too. Runs that its table has "
            "from before, and that are not in the folder, stay in it.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is missing, and do nothing.")
    ] = False,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is", help="Make nothing: tables of what is there, also while others make more."
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make the paper's tables and figures anew: rehearse, train, play, compare with the paper's.

    Only what is missing is done, so a command that was stopped goes on where it was. Recordings,
    defences and runs are shared by all artefacts in the same folder. What fails is said at the end
    and stops nothing else.
    """
    import torch

    from fedimmune.experiments.artefacts import ARTEFACTS as EVERY
    from fedimmune.experiments.artefacts import artefact
    from fedimmune.experiments.asking import Ask, read_only
    from fedimmune.experiments.store import Store

    torch.set_num_threads(1)  # others compute
    ask = Ask(scale, seeds, read_only(only or []), device)
    store = Store(folder, data)
    chosen = [artefact(each) for each in ids or []]
    if not chosen:
        _list(list(EVERY.values()), ask, store, as_json=as_json, notes=remarks(quiet=quiet))
        return
    _reproduce(
        chosen,
        ask,
        store,
        workers=workers,
        publish=publish,
        dry_run=dry_run,
        as_is=as_is,
        as_json=as_json,
        notes=remarks(quiet=quiet),
    )


# -------------------------------------------------------------------- the list


def _list(
    every: Sequence[Artefact], ask: Ask, store: Store, *, as_json: bool, notes: Console
) -> None:
    """Say of every artefact what it is, how much there is to do at each scale, and what is done."""
    from dataclasses import replace

    from fedimmune.experiments.doing import Work
    from fedimmune.experiments.estimates import machine_factor
    from fedimmune.experiments.parts import closure
    from fedimmune.experiments.scales import SCALES
    from fedimmune.federation.pool import usable_cores

    factor = machine_factor() / usable_cores()
    facts: list[dict[str, Any]] = []
    for each in every:
        scales = {}
        for scale in SCALES:
            at = replace(ask, scale=scale)
            wanted = each.parts(at)
            work = Work.of(wanted, store)
            scales[scale] = {
                "tasks": list(each.tasks[scale]),
                "runs": len({part.key for part in wanted}),
                "parts": work.there + len(work.parts),
                "made": work.there,
                "seconds": round(factor * sum(part.seconds for part in closure(wanted))),
                "seconds_left": round(factor * work.seconds),
            }
        facts.append({"id": each.id, "shows": each.shows, "source": each.source, "scales": scales})
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "what it shows", "in the paper", "tasks"):
        table.add_column(name)
    for scale in SCALES:
        table.add_column(f"{scale}: runs, time, done", justify="right")
    for fact in facts:
        table.add_row(
            fact["id"],
            fact["shows"],
            fact["source"],
            ", ".join(dict.fromkeys(t for scale in SCALES for t in fact["scales"][scale]["tasks"])),
            *(_amount(fact["scales"][scale]) for scale in SCALES),
        )
    console().print(table)
    from fedimmune.cli.durations import in_words

    total = sum(fact["scales"][ask.scale]["seconds_left"] for fact in facts)
    say(
        notes,
        f"Times are estimates for {usable_cores()} cores of this machine, each artefact by itself; "
        f"at scale {ask.scale} at most {in_words(total)} are left, less where parts are shared.",
    )


def _amount(found: dict[str, Any]) -> str:
    from fedimmune.cli.durations import in_words

    done = f"{found['made']}/{found['parts']}" if found["made"] else "–"
    return f"{found['runs']}, {in_words(found['seconds'])}, {done}"


# -------------------------------------------------------------------- doing it


def _reproduce(
    chosen: Sequence[Artefact],
    ask: Ask,
    store: Store,
    *,
    workers: int | None,
    publish: Path | None,
    dry_run: bool,
    as_is: bool,
    as_json: bool,
    notes: Console,
) -> None:
    from fedimmune.cli.durations import in_words
    from fedimmune.cli.reproducing import Watched
    from fedimmune.experiments.doing import Work, carry_out
    from fedimmune.experiments.estimates import machine_factor
    from fedimmune.experiments.needing import check_data
    from fedimmune.experiments.parts import closure
    from fedimmune.experiments.writing import publish as put
    from fedimmune.experiments.writing import write
    from fedimmune.federation.federation import check_device
    from fedimmune.federation.pool import usable_cores
    from fedimmune.report.drawing import require_matplotlib

    require_matplotlib()
    ask.check({each.id: each.offers(ask) for each in chosen})
    wanted = [part for each in chosen for part in each.parts(ask)]
    if not wanted:
        raise FedimmuneError(
            f"no run of {', '.join(each.id for each in chosen)} has all that --only asks for at "
            "once; --dry-run lists those that there are"
        )
    work = Work.of(wanted, store)
    count = workers or usable_cores()
    if dry_run:
        for part in work.parts:
            say(console(), part.title)
        left = in_words(machine_factor() * work.seconds / count)
        say(notes, f"{len(work.parts)} parts are missing, {work.there} are there; about {left}")
        return
    outcome: Outcome | None = None
    if work.parts and not as_is:
        check_device(ask.device)
        check_data(work.parts, store)
        watched = Watched(work, store, count, notes)
        with on_stop(watched.kept), watched:
            outcome = carry_out(
                work, store, workers=count, on_begun=watched.begun, on_done=watched.done
            )
    answers = []
    for each in chosen:
        parts = closure(each.parts(ask))
        made = len(parts) - len(Work.of(each.parts(ask), store).parts)
        files = write(each, ask, store)
        copied = [] if publish is None else put(each, ask, store, publish)
        answers.append(
            {
                "id": each.id,
                "made": made,
                "of": len(parts),
                "files": [str(file) for file in (*files, *copied)],
            }
        )
        if not as_json:
            console().print(files[0].read_text(encoding="utf-8"), markup=False, highlight=False)
            endings = ", ".join(file.suffix for file in files if file.stem == each.id)
            say(notes, f"written: {files[0].with_suffix('')} ({endings})")
            if copied:
                say(notes, f"published: {', '.join(map(str, copied))}")
    _tell(outcome, answers, as_json=as_json, notes=notes)
    if outcome is not None and (outcome.failed or outcome.left_out):
        raise typer.Exit(1)


def _tell(
    outcome: Outcome | None, answers: list[dict[str, Any]], *, as_json: bool, notes: Console
) -> None:
    from fedimmune.cli.durations import in_words

    if as_json:
        facts: dict[str, Any] = {"artefacts": answers}
        if outcome is not None:
            facts |= {
                "made": len(outcome.made),
                "failed": {each.part.title: each.problem for each in outcome.failed},
                "left_out": [part.title for part in outcome.left_out],
                "seconds": round(outcome.seconds, 1),
                "busy": round(outcome.busy, 3),
            }
        typer.echo(json.dumps(facts, indent=1))
    if outcome is None:
        return
    say(
        notes,
        f"{len(outcome.made)} parts in {in_words(outcome.seconds)}; the processes computed "
        f"{outcome.busy:.0%} of that time",
    )
    for each in outcome.failed:
        say(notes, f"failed: {each.part.title}: {each.problem}")
    if outcome.left_out:
        say(notes, f"{len(outcome.left_out)} parts were left out, for they need what failed")
