"""Time one thing as a multiple of another, on a machine that does other work as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time

from benchmarks.memory import trim
from benchmarks.others import Others, wait_for_quiet

__all__ = ["BUSY", "Effort", "Timing", "compare"]

BUSY = 0.1
"""A measurement during which others took more than this share of the machine is repeated."""
_TRIES = 3
_PATIENCE = 10.0
_LONG = 10.0
"""A call of more seconds is its own warm-up; after as many, nothing is repeated any more."""
_MUCH_LONGER = 20
"""What takes this many times the baseline is set against several calls of it."""


@dataclass(frozen=True)
class Effort:
    """How often to repeat.

    Parameters
    ----------
    least, most
        How many repetitions at least (fewer of what takes long) and at most.
    seconds
        Between the two: none is begun after this many seconds.
    warm_up
        Whether the first call goes uncounted.
    cpu
        Count this process' own time on the processors, which others do not lengthen. Threads that
        wait for each other count too, so this is for one thread.
    """

    least: int = 3
    most: int = 15
    seconds: float = 2.0
    warm_up: bool = True
    cpu: bool = False


@dataclass(frozen=True)
class Timing:
    """Medians over all repetitions.

    Parameters
    ----------
    times
        The subject's time as a multiple of the baseline's.
    seconds, baseline_seconds
        What each took.
    others
        The share of the machine that other programs took meanwhile; None where it is unknown, or
        does not matter.
    """

    times: float
    seconds: float
    baseline_seconds: float
    others: float | None


@dataclass(frozen=True)
class _Pair:
    baseline: float
    subject: float


def compare(
    baseline: Callable[[], object], subject: Callable[[], object], effort: Effort
) -> Timing:
    """Time the two in turn: neighbors in time share what else the machine is doing.

    For the same reason the multiple is the median of the ratios of neighbors. Where others take
    much of the machine, all is done again a little later, and the quietest time counts.
    """
    timings: list[Timing] = []
    for _ in range(_TRIES):
        timings.append(_measure(baseline, subject, effort))
        if (timings[-1].others or 0) <= BUSY:
            break
        wait_for_quiet(BUSY, _PATIENCE)
    return min(timings, key=lambda timing: timing.others or 0)


def _measure(
    baseline: Callable[[], object], subject: Callable[[], object], effort: Effort
) -> Timing:
    others = Others()
    baseline()
    begun = perf_counter()
    first = _pair(baseline, subject, effort, often=False)
    often = first.subject > _MUCH_LONGER * first.baseline
    pairs = [] if effort.warm_up and first.subject <= _LONG else [first]
    while _wants_more(len(pairs), perf_counter() - begun, effort):
        pairs.append(_pair(baseline, subject, effort, often=often))
    return Timing(
        median(pair.subject / pair.baseline for pair in pairs),
        median(pair.subject for pair in pairs),
        median(pair.baseline for pair in pairs),
        None if effort.cpu else others.share(),
    )


def _wants_more(count: int, elapsed: float, effort: Effort) -> bool:
    if count == 0:
        return True
    if count < effort.least:
        return elapsed < _LONG
    return count < effort.most and elapsed < effort.seconds


def _pair(
    baseline: Callable[[], object], subject: Callable[[], object], effort: Effort, *, often: bool
) -> _Pair:
    """Time the baseline, the subject, and after a long subject the baseline again."""
    clock = process_time if effort.cpu else perf_counter
    before = [_seconds(baseline, clock) for _ in range(3 if often else 1)]
    own = _seconds(subject, clock)
    again = 5 if own > _MUCH_LONGER * before[0] else 0
    after = [_seconds(baseline, clock) for _ in range(again)]
    return _Pair(median([*before, *after]), own)


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    # New pages from the system cost a mean a third of its time. Whether there are any left over
    # from the call before is chance, so there never are.
    trim()
    begun = clock()
    call()
    return clock() - begun
