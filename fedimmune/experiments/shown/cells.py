"""What stands in one place of a table: runs of several seeds as a mean and a spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["EMPTY", "Cell", "Seeds", "cell_of", "scores_of"]

Seeds = Mapping[int, float]
"""What runs came to, by their seeds."""


@dataclass(frozen=True)
class Cell:
    """A figure over several seeds, in per cent.

    Parameters
    ----------
    mean
        None where runs are missing.
    spread
        Their standard deviation (that of a sample, n − 1); None with fewer than two seeds.
    seeds
        How many there are; where several settings are averaged, of the one that has fewest.
    """

    mean: float | None = None
    spread: float | None = None
    seeds: int = 0


EMPTY = Cell()


def cell_of(settings: Sequence[Seeds]) -> Cell:
    """Sum up one setting, or average several that count equally.

    Parameters
    ----------
    settings
        Shares by seed. Several are averaged setting by setting, so that one with more seeds does
        not count more; the spread is that of the averages by seed, and is left out unless all
        settings have the same seeds.
    """
    if not settings or not all(settings):
        return EMPTY
    mean = statistics.fmean(statistics.fmean(each.values()) for each in settings)
    seeds = settings[0].keys()
    spread = None
    if len(seeds) > 1 and all(each.keys() == seeds for each in settings):
        spread = 100 * statistics.stdev(
            statistics.fmean(each[seed] for each in settings) for seed in seeds
        )
    return Cell(100 * mean, spread, min(len(each) for each in settings))


def scores_of(accuracy: Sequence[Seeds], asr: Sequence[Seeds]) -> list[Seeds]:
    """Score runs by ACC · (1 − ASR), as the paper does, or by ACC where there is no ASR.

    Parameters
    ----------
    accuracy, asr
        The same settings, in the same order; `asr` may be empty.
    """
    if not any(asr):
        return list(accuracy)
    return [
        {seed: value * (1 - success[seed]) for seed, value in right.items() if seed in success}
        for right, success in zip(accuracy, asr, strict=True)
    ]
