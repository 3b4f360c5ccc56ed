"""The list of artefacts that ``fedimmune reproduce`` shows: what there is, and what is done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fedimmune.cli.terminal import console, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fedimmune.experiments.artefact import Artefact
    from fedimmune.experiments.asking import Ask
    from fedimmune.experiments.store import Store

__all__ = ["list_artefacts"]


def list_artefacts(
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
