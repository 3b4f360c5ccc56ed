"""What a shell completes. Plain names, for a shell cannot wait until PyTorch is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = [
    "ATTACKS",
    "FORMS",
    "RULES",
    "TASKS",
    "listed",
    "one_of",
]

# A test holds them against the registries.
RULES = (
    *("mean", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "foolsgold"),
    *("residual", "adaptive", "oracle"),
)
ATTACKS = ("none", "omniscient", "label-flip", "backdoor")
TASKS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", "imdb")
FORMS = ("relational", "paper")


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Complete a name."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def listed(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Complete the last of several names with commas between."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        left = [name for name in names if name.startswith(last) and name not in given]
        return [f"{before}{comma}{name}" for name in left]

    return complete
