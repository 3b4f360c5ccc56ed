"""Finished rounds inspected: who was accused, and which layers made a client suspect."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedimmune.adaptive.defense import Defense, universal
from fedimmune.adaptive.explanation import Explanation, explain
from fedimmune.adaptive.rule import UNIVERSAL
from fedimmune.errors import InputError, ParameterError
from fedimmune.results import ACCUSING, ClientResult, Suspicion
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import RoundRecord

__all__ = [
    "ClientHistory",
    "client_in",
    "explain_client",
    "histories_of",
    "read_run_folder",
    "record_of",
]

_LEARNED = "adaptive"
_MANY = 20


@dataclass(frozen=True)
class ClientHistory:
    """A client over a whole run.

    Parameters
    ----------
    client
        Its id.
    is_attacker
        Whether it attacks; None if nobody knows.
    counts
        Number of rounds by verdict.
    accused
        The rounds in which it was suspected or rejected.
    weight, score, probability
        Averages over the rounds that have one.
    last
        Its result in the last round that it took part in.
    suspected_since
        The first round in which it was suspected; None if there is none.
    looks
        The kind of attack that it looked like most often, with the mean of the probabilities; None
        if no kind was ever named.
    """

    client: str
    is_attacker: bool | None
    counts: Mapping[str, int]
    accused: tuple[int, ...]
    weight: float | None
    score: float | None
    probability: float | None
    last: ClientResult
    suspected_since: int | None
    looks: Suspicion | None

    @property
    def rounds(self) -> int:
        """Number of rounds that it took part in."""
        return sum(self.counts.values())


def read_run_folder(path: str | os.PathLike[str]) -> RunFolder:
    """Open the folder of a run; another one raises an `InputError`."""
    place = Path(path)
    if not (place / "scenario.toml").is_file():
        raise InputError(f"{place} is not the folder of a run: it has no scenario.toml")
    return RunFolder(place)


def histories_of(records: Sequence[RoundRecord]) -> list[ClientHistory]:
    """Sum up a run by client, the most accused first."""
    seen: dict[str, list[tuple[int, ClientResult]]] = {}
    for record in records:
        for client in record.clients:
            seen.setdefault(client.client, []).append((record.round, client))
    found = [
        ClientHistory(
            client=client,
            is_attacker=parts[-1][1].is_attacker,
            counts=Counter(part.verdict for _, part in parts),
            accused=tuple(number for number, part in parts if part.verdict in ACCUSING),
            weight=_mean(part.weight for _, part in parts),
            score=_mean(part.score for _, part in parts),
            probability=_mean(part.probability for _, part in parts),
            last=parts[-1][1],
            suspected_since=next((n for n, part in parts if part.verdict == "suspected"), None),
            looks=_looks([part.suspicion for _, part in parts if part.suspicion is not None]),
        )
        for client, parts in seen.items()
    ]
    return sorted(found, key=lambda one: -len(one.accused))


def _looks(found: Sequence[Suspicion]) -> Suspicion | None:
    if not found:
        return None
    kind = Counter(one.kind for one in found).most_common(1)[0][0]
    alike = [one for one in found if one.kind == kind]
    return Suspicion(kind, fmean(one.confidence for one in alike), advice=alike[0].advice)


def record_of(folder: RunFolder, number: int) -> RoundRecord:
    """Return the record of a round; one that is not finished raises an `InputError`."""
    records = folder.records()
    if not 1 <= number <= len(records):
        there = f"rounds 1 to {len(records)} are" if records else "none is"
        raise ParameterError(f"{folder.path} has no round {number}: {there} finished")
    return records[number - 1]


def client_in(record: RoundRecord, client: str) -> ClientResult:
    """Find a client by its id as text; an `InputError` names those who took part."""
    found = next((one for one in record.clients if one.client == client), None)
    if found is None:
        ids = [one.client for one in record.clients]
        more = f" and {len(ids) - _MANY} more" if len(ids) > _MANY else ""
        raise ParameterError(
            f"client {client} took no part in round {record.round}; there were "
            f"{', '.join(ids[:_MANY])}{more}"
        )
    return found


def explain_client(
    folder: RunFolder, number: int, client: str, *, defense: str | os.PathLike[str] | None = None
) -> Explanation | None:
    """Explain which layers of its update made a client trusted or suspect to the learned rule.

    Parameters
    ----------
    folder
        The run.
    number
        The round, from 1.
    client
        The client's id as text.
    defense
        Where the run's defense is now; by default where it was.

    Returns
    -------
    Explanation or None
        None if the client was not weighed: it was rejected or set aside, or sent nothing.

    Raises
    ------
    InputError
        The run's rule is not the learned one; there is no such round or client; the round left
        no trace; or the defense is gone, or another one.
    """
    record = record_of(folder, number)
    client_in(record, client)  # or refuse it
    rule = folder.scenario().get("rule")
    chosen: dict[str, Any] = rule if isinstance(rule, dict) else {"name": rule}
    if chosen.get("name") != _LEARNED:
        raise InputError(
            f"{folder.path} was aggregated by {chosen.get('name')}: only the rule {_LEARNED} can "
            "say which layers made a client suspect. --round or --client alone shows the verdicts"
        )
    if number not in folder.traces.rounds():
        why = record.error or "the run was made by an earlier version, or its traces were removed"
        raise InputError(f"round {number} of {folder.path} left no trace: {why}")
    trace = folder.traces.read(number)
    if trace.grams is None:
        why = record.error or "the inner products are not there"
        raise InputError(f"round {number} of {folder.path} cannot be explained: {why}")
    if client not in trace.clients:
        return None
    try:
        loaded = _defense(chosen, defense)
    except InputError as error:
        if defense is None:
            raise
        raise ParameterError(str(error)) from error
    layers: Mapping[str, Sequence[int]] = loaded.about.layers
    if loaded.is_universal:
        layers = dict(zip(trace.layers, trace.shapes, strict=False))
    if list(trace.layers) != list(layers):
        raise InputError(f"the trace of round {number} is of other layers than the defense's")
    return explain(
        loaded,
        trace.clients,
        client,
        trace.grams,
        trace.evidence,
        layers=layers,
        threshold=_threshold(chosen, loaded),
    )


def _threshold(rule: Mapping[str, Any], defense: Defense) -> float:
    """Return the logit below which the run's rule suspected clients."""
    rate, calibration = rule.get("max_false_alarms"), defense.about.calibration
    if calibration is None or not isinstance(rate, int | float):
        return 0.0
    return calibration.threshold(rate)


def _defense(rule: dict[str, Any], given: str | os.PathLike[str] | None) -> Defense:
    wanted = rule.get("digest")
    place = Path(str(rule.get("defense", ""))) if given is None else Path(given)
    if str(place) == UNIVERSAL:
        shipped = universal()
        if wanted and shipped.digest != wanted:
            raise InputError(
                f"the universal defense of fedimmune {shipped.about.version} ({shipped.digest}) is "
                f"another than the run's ({wanted}): give the run's own with --defense"
            )
        return shipped
    if not place.is_file():
        raise InputError(
            f"the run's defense is no longer there ({place}): name it with --defense"
            if given is None
            else f"there is no defense {place}"
        )
    loaded = Defense.load(place)
    if wanted and loaded.digest != wanted:
        raise InputError(
            f"{place} is another defense ({loaded.digest}) than the run's ({wanted}): give the "
            "run's own with --defense"
        )
    return loaded


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
