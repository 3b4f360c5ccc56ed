"""What `fedimmune inspect` shows: a defense, a run, a round, a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.explanation import Explanation, LayerBlame, Standing, importance_of
from fedimmune.cli._ui import (
    Shown,
    bar,
    bars,
    decimals,
    make_table,
    promises_table,
    share,
    validation_table,
)
from fedimmune.cli.sweep import searched_table
from fedimmune.errors import InputError, ParameterError
from fedimmune.results import ClientResult, Suspicion
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.inspect import (
    ClientHistory,
    client_in,
    explain_client,
    histories_of,
    read_run_folder,
    record_of,
)

__all__ = ["look_at_defense", "look_at_run"]

_LIKELY = "P(attack)"
_STYLES = {
    "trusted": "green",
    "reduced": "cyan",
    "suspected": "yellow",
    "rejected": "bold red",
    "failed": "bold red",
}


def look_at_run(place: Path, wanted: int | None, client: str | None, defense: Path | None) -> Shown:
    """Look at a run, at a round or a client of it, or at both."""
    folder = read_run_folder(place)
    if wanted is not None and client is not None:
        return _explanation(folder, wanted, client, defense)
    if wanted is not None:
        return _round(folder, wanted)
    return _overview(folder) if client is None else _client(folder, client)


# -------------------------------------------------------------------- verdicts


def _overview(folder: RunFolder) -> Shown:
    records = folder.records()
    if not records:
        raise InputError(f"no round of {folder.path} is finished yet: there is nothing to see")
    found = histories_of(records)
    knows = any(one.is_attacker is not None for one in found)
    has_kinds = any(one.looks is not None for one in found)
    is_likely = any(one.probability is not None for one in found)
    table = make_table(
        f"{folder.path.name}: {len(records)} rounds",
        ("client", *(["attacks"] if knows else [])),
        ("rounds", "accused in", "weight", "score", *([_LIKELY] if is_likely else [])),
    )
    for heading in ("last", *(["looks most like"] if has_kinds else [])):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(
            Text(one.client),
            *([_attacks(one.is_attacker)] if knows else []),
            str(one.rounds),
            str(len(one.accused)),
            share(one.weight),
            decimals(one.score),
            *([share(one.probability)] if is_likely else []),
            Text(one.last.verdict, _STYLES.get(one.last.verdict, "")),
            *([_looks(one.looks)] if has_kinds else []),
        )
    facts = {
        "run": str(folder.path),
        "rounds": len(records),
        "is_finished": folder.is_finished,
        "traces": folder.traces.rounds(),
        "kept": folder.traces.kept_layers(),
        "clients": [_history_facts(one) for one in found],
    }
    parts: list[RenderableType] = [table]
    if folder.traces.rounds():
        parts.append(Text("--round N --client ID shows which layers made a client suspect.", "dim"))
    return Shown(facts, parts)


def _round(folder: RunFolder, wanted: int) -> Shown:
    record = record_of(folder, wanted)
    table = _verdicts(f"Round {wanted} of {folder.path.name}", "client", record.clients)
    for one in record.clients:
        table.add_row(Text(one.client), *_cells(one, record.clients))
    parts: list[RenderableType] = [table]
    if record.defense:
        parts.append(Text(f"Judged by the defense {record.defense}.", "dim"))
    parts += [Text(f"warning: {warning}", "yellow") for warning in record.warnings]
    if record.error:
        parts.append(Text(f"The model stayed as it was: {record.error}", "yellow"))
    return Shown({"run": str(folder.path), **record.model_dump(mode="json")}, parts)


def _client(folder: RunFolder, client: str) -> Shown:
    took_part = [
        (record.round, one)
        for record in folder.records()
        for one in record.clients
        if one.client == client
    ]
    if not took_part:
        raise ParameterError(f"no finished round of {folder.path} has a client {client}")
    all_of_it = [one for _, one in took_part]
    table = _verdicts(f"Client {client} in {folder.path.name}", "round", all_of_it)
    for played, one in took_part:
        table.add_row(str(played), *_cells(one, all_of_it))
    rounds = [{"round": played, **one.to_json()} for played, one in took_part]
    return Shown({"run": str(folder.path), "client": client, "rounds": rounds}, [table])


def _verdicts(title: str, first: str, clients: Sequence[ClientResult]) -> Table:
    knows = any(one.is_attacker is not None for one in clients)
    likely = [_LIKELY] if _is_likely(clients) else []
    figures = ("weight", "score", *likely)
    table = make_table(title, (first, *(["attacks"] if knows else [])), figures)
    kinds = ["looks most like", "since"] if _has_kinds(clients) else []
    for heading in ("verdict", *kinds, "reason"):
        table.add_column(heading, overflow="fold")
    return table


def _cells(one: ClientResult, clients: Sequence[ClientResult]) -> list[Text | str]:
    knows = any(other.is_attacker is not None for other in clients)
    return [
        *([_attacks(one.is_attacker)] if knows else []),
        share(one.weight),
        decimals(one.score),
        *([share(one.probability)] if _is_likely(clients) else []),
        Text(one.verdict, _STYLES.get(one.verdict, "")),
        *([_looks(one.suspicion), _since(one.suspicion)] if _has_kinds(clients) else []),
        Text(one.reason),
    ]


def _is_likely(clients: Sequence[ClientResult]) -> bool:
    return any(one.probability is not None for one in clients)


def _has_kinds(clients: Sequence[ClientResult]) -> bool:
    return any(one.suspicion is not None for one in clients)


def _looks(suspicion: Suspicion | None) -> Text:
    """Show the likeliest kind and the next, each with its probability."""
    if suspicion is None:
        return Text("–")
    found = [(suspicion.kind, suspicion.confidence)]
    if suspicion.runner_up is not None:
        found.append((suspicion.runner_up, suspicion.runner_up_confidence or 0.0))
    return Text(", ".join(f"{kind} {probability:.0%}" for kind, probability in found))


def _since(suspicion: Suspicion | None) -> Text:
    since = None if suspicion is None else suspicion.since
    return Text("–" if since is None else str(since))


def _history_facts(one: ClientHistory) -> dict[str, Any]:
    last = one.last.to_json()
    return {**asdict(one), "rounds": one.rounds, "counts": dict(one.counts), "last": last}


# -------------------------------------------------------------------- why


def _explanation(folder: RunFolder, wanted: int, client: str, defense: Path | None) -> Shown:
    found = explain_client(folder, wanted, client, defense=defense)
    one = client_in(record_of(folder, wanted), client)
    notice = one.notice("adaptive")
    facts = {
        "run": str(folder.path),
        "round": wanted,
        "client": one.to_json(),
        "notice": notice,
        "explanation": found and {**asdict(found), "is_memory_alone": found.is_memory_alone},
    }
    knows = {True: " It does attack.", False: " It is honest.", None: ""}[one.is_attacker]
    said = f"Client {one.client} in round {wanted}: {one.verdict}"
    if found is None:
        return Shown(facts, [f"{said}, and was not weighed: {one.reason or 'no reason'}.{knows}"])
    said += f", {share(one.weight)} of the weight, score {decimals(one.score)}."
    if one.probability is not None:
        said += f" By this round it attacks with a probability of {one.probability:.1%}."
    also = ""
    if one.suspicion is not None:
        began = one.suspicion.since
        since = "" if began is None else f"; suspected since round {began}"
        also = f" It {one.suspicion}{since}."
    told = f"Its notice: {notice}"
    parts: list[RenderableType] = [f"{said}{also}{knows}"]
    parts += [*_memory(found), _compared(found), told, _blames(found)]
    return Shown(facts, parts)


def _memory(found: Explanation) -> list[str]:
    """Describe what earlier rounds contributed; the layers of this one cannot show it."""
    if not found.held:
        return []
    own = f"this round by itself would give it {share(found.found.weight)} of the weight"
    if found.is_memory_alone:
        return [f"Memory alone accuses it: {own}. What follows is about this round."]
    return [f"Earlier rounds are held against it too; {own}. What follows is about this round."]


def _compared(found: Explanation) -> str:
    worst = max(found.layers, key=lambda one: one.blame)
    whole = found.ordinary.score - found.found.score
    said = (
        f"An ordinary client, a twin of {found.stand_in} (the most central of the trusted), would "
        f"score {decimals(found.ordinary.score)} and have {share(found.ordinary.weight)} of the "
        "weight."
    )
    if found.found.weight > 0:
        return f"{said} This round does not accuse it."
    made = f"Of the difference of {whole:.3f}, {worst.layer} makes {worst.blame:.3f}"
    return f"{said} {made}: {_verdict_on(worst)}"


def _verdict_on(worst: LayerBlame) -> str:
    if worst.put_right.weight > 0:
        return "had it been ordinary there, it would have been trusted."
    if worst.alone.weight == 0:
        return "that layer alone would have made it suspect."
    return "no layer made it suspect alone."


def _blames(found: Explanation) -> Table:
    table = make_table("By layer", ("layer",), ("blame",))
    table.add_column("", no_wrap=True)
    for heading in ("ordinary there:\nscore, weight", "odd there alone:\nscore, weight"):
        table.add_column(heading, justify="right", no_wrap=True)
    largest = max(abs(one.blame) for one in found.layers) or 1.0
    for one in sorted(found.layers, key=lambda each: -each.blame):
        table.add_row(
            Text(one.layer),
            f"{one.blame:+.3f}",
            Text(bar(one.blame / largest, cells=12), "yellow"),
            _standing(one.put_right),
            _standing(one.alone),
        )
    return table


def _standing(found: Standing) -> str:
    return f"{found.score:.3f}  {share(found.weight):>6}"


def _attacks(attacks: bool | None) -> Text:
    return Text("▲ yes", "red") if attacks else Text("no")


def look_at_defense(file: Path) -> Shown:
    """Look at a defense's file."""
    defense = Defense.load(file)
    importance = importance_of(defense)
    size, numbers = file.stat().st_size, sum(p.numel() for p in defense.form.parameters())
    facts = [
        ("file", f"{file} ({size / 1e3:.0f} kB, {numbers:,} numbers)"),
        ("digest", defense.digest),
        *defense.describe(),
    ]
    parts = [_facts(facts)]
    if defense.about.searched.keys() >= {"grid", "points", "best"}:
        parts.append(searched_table(defense.about.searched))
    if defense.about.validation:
        parts.append(validation_table(defense.about.validation))
        parts.append(promises_table(defense.about.validation))
    if importance.by_layer:
        parts.append(bars("Which layers it looks at", "layer", importance.by_layer))
    parts.append(bars("What it looks at there", "feature", importance.by_kind))
    by = {"by_layer": dict(importance.by_layer), "by_kind": dict(importance.by_kind)}
    about = defense.about.model_dump(mode="json")
    known = {"file": str(file), "digest": defense.digest, "bytes": size, "parameters": numbers}
    return Shown({**known, "about": about, "importance": by}, parts)


def _facts(facts: list[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value))
    return table
