"""``fedimmune reproduce``: the paper's tables and figures, each by one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    from fedimmune.experiments.doing import Outcome, Work
    from fedimmune.experiments.parts import Part
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
            help="`paper`: as in the paper. `authors`: as in its program. `cpu`: reduced to what a "
            "few cores can do. `smoke`: in minutes, on bundled digits; figures mean nothing.",
            autocompletion=one_of(SCALES),
        ),
    ] = "cpu",
    seeds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N[:FIELD=VALUE]",
            help="How many, from 1 on; 3:attackers=4 is how many for some runs. Repeatable. "
            "[default: 3 for paper, else 1]",
        ),
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
            "from before, and that are not in the folder, stay in it; all have to be asked for.",
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

    from fedimmune.cli.artefact_list import list_artefacts
    from fedimmune.experiments.artefacts import ARTEFACTS as EVERY
    from fedimmune.experiments.artefacts import artefact
    from fedimmune.experiments.asking import Ask, read_only, read_seeds
    from fedimmune.experiments.store import Store

    torch.set_num_threads(1)  # others compute
    repeats, repeats_of = read_seeds(seeds or [])
    ask = Ask(scale, repeats, read_only(only or []), device, repeats_of)
    store = Store(folder, data)
    chosen = [artefact(each) for each in ids or []]
    if not chosen:
        every = list(EVERY.values())
        if ask.only or ask.repeats_of:  # what is made as a whole has nothing to be chosen by
            every = [each for each in every if each.offers(ask) is not None]
            ask.check({each.id: each.offers(ask) for each in every})
        list_artefacts(every, ask, store, as_json=as_json, notes=remarks(quiet=quiet))
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
    from fedimmune.experiments.doing import Work
    from fedimmune.experiments.needing import check_data, check_writable
    from fedimmune.experiments.writing import published_table
    from fedimmune.federation.federation import check_device
    from fedimmune.federation.pool import usable_cores
    from fedimmune.report.drawing import require_matplotlib

    require_matplotlib()
    work = Work.of(_wanted(chosen, ask), store)
    count = workers or usable_cores()
    if dry_run:
        _tell_missing(work, count, as_json=as_json, notes=notes)
        return
    begins = bool(work.parts) and not as_is
    # All that can be refused is refused before hours of work.
    if begins:
        check_device(ask.device)
        check_data(work.parts, store)
    if publish is not None:
        check_writable(publish)
        for each in chosen:
            each.check_earlier(ask, published_table(each, publish))
    check_writable(store.folder)
    outcome = _make(work, store, count, notes) if begins else None
    answers, unwritten = [], {}
    for each in chosen:
        try:
            answers.append(_write(each, ask, store, publish, as_json=as_json, notes=notes))
        except FedimmuneError as error:  # the others are written all the same
            unwritten[each.id] = str(error)
    _tell(outcome, answers, unwritten, as_json=as_json, notes=notes)
    if unwritten or (outcome is not None and (outcome.failed or outcome.left_out)):
        raise typer.Exit(1)


def _wanted(chosen: Sequence[Artefact], ask: Ask) -> list[Part]:
    """List the parts that are asked for; of every artefact there has to be one."""
    ask.check({each.id: each.offers(ask) for each in chosen})
    wanted = []
    for each in chosen:
        parts = each.parts(ask)
        if not parts:
            raise FedimmuneError(
                f"no run of {each.id} has all that --only asks for at once; --dry-run lists those "
                "that there are"
            )
        wanted += parts
    return wanted


def _make(work: Work, store: Store, count: int, notes: Console) -> Outcome:
    from fedimmune.cli.reproducing import Watched
    from fedimmune.experiments.doing import carry_out

    watched = Watched(work, store, count, notes)
    with on_stop(watched.kept), watched:
        return carry_out(work, store, workers=count, on_begun=watched.begun, on_done=watched.done)


def _write(
    artefact: Artefact,
    ask: Ask,
    store: Store,
    publish: Path | None,
    *,
    as_json: bool,
    notes: Console,
) -> dict[str, Any]:
    """Write an artefact's tables and figures, show them, and say what there is."""
    from fedimmune.experiments.doing import Work
    from fedimmune.experiments.parts import closure
    from fedimmune.experiments.writing import publish as put
    from fedimmune.experiments.writing import write

    wanted = artefact.parts(ask)
    parts = closure(wanted)
    files = write(artefact, ask, store)
    copied = [] if publish is None else put(artefact, ask, store, publish)
    if not as_json:
        console().print(files[0].read_text(encoding="utf-8"), markup=False, highlight=False)
        endings = ", ".join(file.suffix for file in files if file.stem == artefact.id)
        say(notes, f"written: {files[0].with_suffix('')} ({endings})")
        if copied:
            say(notes, f"published: {', '.join(map(str, copied))}")
    return {
        "id": artefact.id,
        "made": len(parts) - len(Work.of(wanted, store).parts),
        "of": len(parts),
        "files": [str(file) for file in (*files, *copied)],
    }


def _tell_missing(work: Work, workers: int, *, as_json: bool, notes: Console) -> None:
    """Say what is to be made, and about how long that takes."""
    from fedimmune.cli.durations import in_words
    from fedimmune.experiments.estimates import machine_factor
    from fedimmune.federation.pool import usable_cores

    abreast = max(1, min(workers, usable_cores(), len(work.parts)))
    seconds = machine_factor() * work.seconds / abreast
    titles = [part.title for part in work.parts]
    if as_json:
        facts = {"missing": titles, "there": work.there, "seconds": round(seconds)}
        typer.echo(json.dumps(facts, indent=1))
        return
    for title in titles:
        say(console(), title)
    say(
        notes, f"{len(titles)} parts are missing, {work.there} are there; about {in_words(seconds)}"
    )


def _tell(
    outcome: Outcome | None,
    answers: list[dict[str, Any]],
    unwritten: dict[str, str],
    *,
    as_json: bool,
    notes: Console,
) -> None:
    from fedimmune.cli.durations import in_words

    if as_json:
        facts: dict[str, Any] = {"artefacts": answers}
        if unwritten:
            facts["unwritten"] = unwritten
        if outcome is not None:
            facts |= {
                "made": len(outcome.made),
                "failed": {each.part.title: each.problem for each in outcome.failed},
                "left_out": [part.title for part in outcome.left_out],
                "seconds": round(outcome.seconds, 1),
                "busy": round(outcome.busy, 3),
            }
        typer.echo(json.dumps(facts, indent=1))
    if outcome is not None:
        say(
            notes,
            f"{len(outcome.made)} parts in {in_words(outcome.seconds)}; the processes computed "
            f"{outcome.busy:.0%} of that time",
        )
        for each in outcome.failed:
            say(notes, f"failed: {each.part.title}: {each.problem}")
        if outcome.left_out:
            say(notes, f"{len(outcome.left_out)} parts were left out, for they need what failed")
    for name, problem in unwritten.items():
        say(notes, f"not written: {name}: {problem}")
