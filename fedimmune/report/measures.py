"""The figures that matter: of one run, and of one rule over several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from fedimmune.records import RoundRecord
from fedimmune.report.grouping import Line, Setting
from fedimmune.report.reading import Run
from fedimmune.results import ACCUSING

__all__ = ["Figures", "Measured", "figures_of", "line_figures", "mean", "score_of"]


@dataclass(frozen=True)
class Figures:
    """One run in figures. Shares run from 0 to 1; None is unknown, or without sense.

    Parameters
    ----------
    rounds
        How many were played.
    accuracy, asr, asr_others, score
        After the last of them; the score is ACC · (1 − ASR).
    attacker_weight, precision, recall
        Means over the rounds that have them.
    over_half
        In how many rounds attackers had more than half of the weight.
    honest_kept
        Share of the honest clients that had a weight, over the rounds with weights.
    behind_oracle
        How much the oracle's score (ACC where there is no ASR) is above its own.
    distance
        To the robust mean, relative to its length; the mean over rounds.
    accused
        How many clients were suspected or rejected in a round, on average.
    failed_rounds
        In how many the model stayed as it was.
    """

    rounds: int
    accuracy: float | None = None
    asr: float | None = None
    asr_others: float | None = None
    score: float | None = None
    attacker_weight: float | None = None
    over_half: float | None = None
    honest_kept: float | None = None
    precision: float | None = None
    recall: float | None = None
    behind_oracle: float | None = None
    distance: float | None = None
    accused: float | None = None
    failed_rounds: int = 0


@dataclass(frozen=True)
class Measured:
    """A figure over several runs.

    Parameters
    ----------
    mean
        Over the runs that have it; None where none has.
    spread
        Their standard deviation; None where fewer than two have it.
    """

    mean: float | None
    spread: float | None = None


def figures_of(run: Run, oracle: Run | None = None) -> Figures:
    """Measure a run.

    Parameters
    ----------
    run
        Which.
    oracle
        The run of the oracle in the same setting, with the same seed, where there is one.
    """
    records = run.records
    if not records:
        return Figures(rounds=0)
    last = records[-1]
    shares = [r.attacker_weight for r in records if r.attacker_weight is not None]
    return Figures(
        rounds=len(records),
        accuracy=last.accuracy,
        asr=last.asr,
        asr_others=last.asr_others,
        score=last.accuracy_without_success,
        attacker_weight=mean(shares),
        over_half=sum(share > 0.5 for share in shares) if shares else None,
        honest_kept=_honest_kept(records),
        precision=mean(r.precision for r in records),
        recall=mean(r.recall for r in records),
        behind_oracle=None if oracle is None else _behind(run, oracle),
        distance=mean(_relative_distance(r) for r in records),
        accused=mean(_accused(r) for r in records),
        failed_rounds=sum(r.error is not None for r in records),
    )


def line_figures(setting: Setting, line: Line) -> dict[str, Measured]:
    """Measure a rule in a setting: the mean over its runs, and their spread."""
    found = [figures_of(run, setting.oracle_of(run)) for run in line.runs]
    return {
        field.name: _measured([getattr(figures, field.name) for figures in found])
        for field in fields(Figures)
    }


def score_of(record: RoundRecord) -> float | None:
    """What a round is compared by: ACC · (1 − ASR), or ACC where there is no ASR.

    None where the model was not tested.
    """
    score = record.accuracy_without_success
    return record.accuracy if score is None else score


def mean(values: Iterable[float | None]) -> float | None:
    """Average what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return _safely(statistics.fmean, known) if known else None


def _measured(values: Sequence[float | None]) -> Measured:
    known = [value for value in values if value is not None]
    spread = _safely(statistics.stdev, known) if len(known) > 1 else None
    return Measured(mean(known), spread)


def _safely(function: Callable[[list[float]], float], values: list[float]) -> float | None:
    try:
        return function(values)
    except (OverflowError, ValueError):  # numbers that no run of ours writes
        return None


def _behind(run: Run, oracle: Run) -> float | None:
    # Where one was interrupted, both are compared where it was.
    common = min(len(run.records), len(oracle.records))
    if not common:
        return None
    best, own = score_of(oracle.records[common - 1]), score_of(run.records[common - 1])
    return None if best is None or own is None else best - own


def _honest_kept(records: Sequence[RoundRecord]) -> float | None:
    kept = honest = 0
    for record in records:
        if all(client.weight is None for client in record.clients):
            continue  # the rule has no weights, or failed
        present = [client for client in record.clients if client.is_attacker is False]
        honest += len(present)
        kept += sum((client.weight or 0) > 0 for client in present)
    return kept / honest if honest else None


def _relative_distance(record: RoundRecord) -> float | None:
    if record.distance is None or not record.robust_mean_norm:
        return None
    return record.distance / record.robust_mean_norm


def _accused(record: RoundRecord) -> float | None:
    if record.error is not None:
        return None
    return float(sum(client.verdict in ACCUSING for client in record.clients))
