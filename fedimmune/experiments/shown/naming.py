"""What rules, tasks, attacks and measures are called in tables and pictures, and their order."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "LEARNED_RULES",
    "MEASURES",
    "ORACLE",
    "Line",
    "attack_name",
    "initials",
    "measure_name",
    "remark",
    "sorted_lines",
    "task_name",
]

ORACLE = "oracle"
"""The rule that is told who attacks: a limit, and no competitor."""

_REMARKS = {
    "mean": "FedAvg",
    "geometric-median": "RFA",
    "multi-krum": "Krum in the paper",
    "residual": "residual-based",
    "mlp": "no attention",
    "without-c": "w/o c",
    "without-eps": "w/o ε",
    "adaptive-paper-literal": "the paper's form, axes as they come",
    "adaptive-paper": "the paper's form",
    "adaptive-paper-clients": "the paper's form, rehearsed on clients' data",
    "adaptive": "as shipped",
    ORACLE: "told who attacks",
}
"""The paper's name of a rule where it is not ours, or what tells it from others."""

_ORDER = (
    *("mean", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum"),
    *("foolsgold", "residual"),
)
LEARNED_RULES = (
    *("mlp", "without-c", "without-eps"),
    *("adaptive-paper-literal", "adaptive-paper", "adaptive-paper-clients", "adaptive"),
)
"""Rules that have rehearsed attacks."""
_LAST = (*LEARNED_RULES, ORACLE)

MEASURES = {"accuracy": "ACC", "asr": "ASR"}
_TASKS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "imdb": "IMDb",
}
_ATTACKS = {
    "none": "no attack",
    "omniscient": "omniscient attack",
    "backdoor": "backdoor attack",
    "label-flip": "label flipping",
}


@dataclass(frozen=True)
class Line:
    """Who a line of a table, or of a plot, is about.

    Parameters
    ----------
    rule
        By its key.
    trained
        What it had rehearsed, where lines differ in that; empty otherwise.
    """

    rule: str
    trained: str = ""


def remark(rule: str) -> str:
    """Say what the paper calls a rule, or what tells it from others; may be empty."""
    return _REMARKS.get(rule, "")


def task_name(task: str) -> str:
    """Name a task as the paper does."""
    return _TASKS.get(task, task)


def attack_name(attack: str) -> str:
    """Name an attack as the paper does."""
    return _ATTACKS.get(attack, attack)


def measure_name(measure: str) -> str:
    """Name a measure as the paper does."""
    return MEASURES.get(measure, measure)


def initials(trained: str) -> str:
    """Shorten what a rule rehearsed as the paper does: B, O, B+O."""
    return "+".join(part[:1].upper() for part in trained.split("+"))


def sorted_lines(lines: set[Line]) -> list[Line]:
    """Put baselines first, then the learned rules, then the oracle."""
    return sorted(lines, key=lambda line: (_place(line.rule), line.rule, _breadth(line.trained)))


def _place(rule: str) -> int:
    if rule in _ORDER:
        return _ORDER.index(rule)
    # Rules of the user's own go between those of the paper and ours.
    return len(_ORDER) + (1 + _LAST.index(rule) if rule in _LAST else 0)


def _breadth(trained: str) -> tuple[int, str]:
    return trained.count("+"), trained
