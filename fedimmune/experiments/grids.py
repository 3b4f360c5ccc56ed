"""Artefacts that are tables of runs: rules by numbers of attackers, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedimmune.errors import InputError
from fedimmune.experiments.artefact import Artefact, Results
from fedimmune.experiments.asking import Ask
from fedimmune.experiments.contenders import contender
from fedimmune.experiments.learned_parts import trained
from fedimmune.experiments.parts import Part
from fedimmune.experiments.played_parts import Played, run_seconds
from fedimmune.experiments.rows import MEASURED, Row
from fedimmune.experiments.scales import setting_of
from fedimmune.experiments.shown.captions import counted
from fedimmune.experiments.shown.figures import draw
from fedimmune.experiments.shown.layouts import LAYOUTS
from fedimmune.experiments.shown.published import published
from fedimmune.experiments.shown.row_files import csv_of, read_rows
from fedimmune.experiments.shown.tables import latex_of, markdown_of
from fedimmune.experiments.store import Store
from fedimmune.federation.protocols import with_protocol

__all__ = ["Cell", "Grid"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is played once for every seed.

    Parameters
    ----------
    task
        Of the paper's experiments.
    attack, attackers, clients
        What happens.
    rule
        Who defends, by the contender's key.
    learned_on
        The task whose defence is used, where it is another one.
    rehearsed
        What a learned rule has rehearsed; None for what it usually has: ours all attacks of the
        task, the paper's form the one that is played.
    varied, value
        The attack's parameter that is varied, and what it is.
    """

    task: str
    attack: str
    attackers: int
    rule: str
    clients: int = 10
    learned_on: str | None = None
    rehearsed: tuple[str, ...] | None = None
    varied: str = ""
    value: int = 0


@dataclass(frozen=True)
class Grid(Artefact):
    """A table of runs.

    Parameters
    ----------
    cells
        What is played, at a scale.
    remarks
        What is to be said of that, by scale.
    """

    cells: Callable[[str], Sequence[Cell]]
    remarks: Mapping[str, str] = field(default_factory=dict)

    def reduced(self, scale: str) -> str:
        said = (super().reduced(scale), self.remarks.get(scale, ""))
        return "; ".join(filter(None, said))

    def parts(self, ask: Ask) -> list[Part]:
        return [part for _, _, part in self._played(ask)]

    def offers(self, ask: Ask) -> Mapping[str, Sequence[str]]:
        cells = self.cells(ask.scale)
        every = [_chosen_by(cell, ask.scale) for cell in cells]
        found = {name: [str(each[name]) for each in every] for name in every[0]}
        found["seed"] = [str(seed) for each in every for seed in ask.seeds_of(**each)]
        return {name: tuple(dict.fromkeys(values)) for name, values in found.items()}

    def check_earlier(self, ask: Ask, earlier: Path) -> None:
        _published(earlier, {part.key for part in self.parts(ask)})

    def results(self, ask: Ask, store: Store, earlier: Path | None = None) -> Results:
        wanted, played, rows = self._played(ask), [], []
        before = {} if earlier is None else _published(earlier, {part.key for _, _, part in wanted})
        for cell, seed, part in wanted:
            about = _about(cell, seed, part, ask.scale)
            if part.is_made(store):
                rows.append(_measured(about, part, store))
                played.append(part)
            elif part.key in before:
                known = before[part.key]
                rows.append(replace(about, **{name: getattr(known, name) for name in MEASURED}))
        layout, printed = LAYOUTS[self.id], published(self.id)
        reduced = self.reduced(ask.scale)
        note = f"Not as in the paper: {reduced}." if reduced else ""
        return Results(
            csv=csv_of(rows),
            markdown=markdown_of(layout, rows, printed),
            latex=latex_of(layout, rows, printed, note=note),
            draw=lambda stem: draw(layout, rows, printed, stem),
            shown=len(rows),
            wanted=len(wanted),
            scenarios=tuple(part.scenario(store).model_dump() for part in played),
        )

    def _played(self, ask: Ask) -> list[tuple[Cell, int, Played]]:
        wanted = []
        for cell in self.cells(ask.scale):
            chosen_by = _chosen_by(cell, ask.scale)
            if ask.admits(**chosen_by):
                wanted += [
                    (cell, seed, _part(cell, seed, ask))
                    for seed in ask.seeds_of(**chosen_by)
                    if ask.admits(seed=seed)
                ]
        return wanted


_NAMED = ("task", "attack", "attackers", "rule", "clients", "varied", "value")


def _chosen_by(cell: Cell, scale: str) -> dict[str, Any]:
    """Give all of a cell that it can be chosen by."""
    named = {name: getattr(cell, name) for name in _NAMED}
    return {**named, "trained": "+".join(_rehearsed(cell, scale))}


def _rehearsed(cell: Cell, scale: str) -> tuple[str, ...]:
    """Say what a learned rule has rehearsed; nothing for others."""
    learned = contender(cell.rule).learned
    if learned is None:
        return ()
    if cell.rehearsed is not None:
        return cell.rehearsed
    usual = setting_of(cell.learned_on or cell.task, scale).attacks
    if not learned.to_the_letter:
        return usual
    # The paper puts its runs without attack beside those of the omniscient attack.
    return (cell.attack,) if cell.attack in usual else ("omniscient",)


def _part(cell: Cell, seed: int, ask: Ask) -> Played:
    setting, who = setting_of(cell.task, ask.scale), contender(cell.rule)
    attack: Any = cell.attack
    if cell.varied:
        # A wider gap, as the paper has it: a moved pattern is never the one that was rehearsed.
        gap = {} if cell.varied == "gap" else {"gap": 1}
        attack = {"name": cell.attack, **gap, cell.varied: cell.value}
    fields: dict[str, Any] = {
        **setting.fields,
        "attack": attack,
        "attackers": cell.attackers,
        "clients": cell.clients,
        "seed": seed,
    }
    if ask.device != "cpu":
        fields["device"] = ask.device
    defence = None
    if who.learned is not None:
        home, heard = cell.learned_on or cell.task, _rehearsed(cell, ask.scale)
        defence = trained(home, ask.scale, cell.rule, heard, ask.device)
    fields = with_protocol(setting.protocol, fields)
    return Played(fields, who, defence, run_seconds(setting, rounds=setting.rounds))


def _about(cell: Cell, seed: int, part: Played, scale: str) -> Row:
    """Say what a run is, before it is played."""
    return Row(
        task=part.played.task.label,
        attack=cell.attack,
        attackers=cell.attackers,
        rule=cell.rule,
        seed=seed,
        accuracy=math.nan,
        clients=cell.clients,
        trained="" if part.defence is None else "+".join(part.defence.attacks),
        varied=cell.varied,
        value=cell.value,
        rounds=part.played.rounds,
        scale=scale,
        key=part.key.removeprefix("runs/"),
    )


def _measured(about: Row, part: Played, store: Store) -> Row:
    """Sum up a run: its last round, and what attackers and honest clients got in all of them."""
    records = part.records(store)
    last = records[-1]
    weights = [each.attacker_weight for each in records if each.attacker_weight is not None]
    honest = [c.verdict for each in records for c in each.clients if not c.is_attacker]
    weighed = any(c.weight is not None for c in last.clients)
    return replace(
        about,
        accuracy=math.nan if last.accuracy is None else last.accuracy,
        asr=last.asr,
        asr_others=last.asr_others,
        attackers_weight=fmean(weights) if weights and weighed and about.attackers else None,
        honest_accused=fmean(v == "suspected" for v in honest) if honest and weighed else None,
        run=part.folder(store).path.name,
    )


def _published(file: Path, wanted: Set[str]) -> dict[str, Row]:
    """Read the rows of a table that is to be added to, by the key of their run.

    Raises
    ------
    InputError
        It has rows that would get lost, or is no such table.
    """
    rows = {f"runs/{row.key}": row for row in read_rows(file)}
    lost = [row for key, row in rows.items() if key not in wanted]
    if lost:
        one = lost[0]
        raise InputError(
            f"{file} has {counted(len(lost), 'run')} not asked for, such as {one.rule} with "
            f"{one.attackers} attackers ({one.attack}), seed {one.seed}, scale {one.scale}, which "
            "would get lost. Ask for all of it (--only, --seeds), or move that table away"
        )
    return rows
