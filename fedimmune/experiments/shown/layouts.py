"""What the tables and pictures of each artefact look like."""

from __future__ import annotations

from collections.abc import Mapping

from fedimmune.experiments.contenders import ABLATIONS, LEARNED, RULES
from fedimmune.experiments.shown.laid_out import Layout

__all__ = ["LAYOUTS"]

_TRAININGS = ("backdoor", "omniscient", "backdoor+omniscient")


def _attackers(name: str, title: str, attack: str) -> Layout:
    return Layout(
        name=name,
        title=f"{title} against the number of attackers",
        rules=RULES,
        attacks=("omniscient", attack),
        with_none=("omniscient",),  # as in the paper's plots
    )


def _backdoor(name: str, title: str) -> Layout:
    return Layout(
        name=name, title=f"{title} under a backdoor", rules=RULES, average=True, figure="bars"
    )


_ALL = (
    _attackers("mnist-attackers", "MNIST", "backdoor"),
    _attackers("cifar10-attackers", "CIFAR-10", "backdoor"),
    _attackers("tiny-imagenet-attackers", "Tiny-ImageNet", "backdoor"),
    _attackers("imdb-attackers", "IMDb", "label-flip"),
    _backdoor("mnist-backdoor", "MNIST"),
    _backdoor("cifar10-backdoor", "CIFAR-10"),
    _backdoor("tiny-imagenet-backdoor", "Tiny-ImageNet"),
    Layout(
        name="ablation",
        title="What attention, c and ε are good for",
        rules=ABLATIONS,
        measures=("asr", "accuracy"),
        average=True,
        figure="bars",
    ),
    Layout(
        name="transfer-cifar100",
        title="A defence trained on CIFAR-10, used on CIFAR-100",
        rules=RULES,
    ),
    Layout(
        name="transfer-100-clients",
        title="A defence trained with 10 clients, used with 100",
        rules=tuple(rule for rule in RULES if rule != "residual"),  # too slow with so many
        columns=(10, 20, 30, 40),
    ),
    Layout(
        name="transfer-patterns",
        title="A defence trained on one backdoor pattern, used against others",
        rules=LEARNED,
        varied=("shift_y", "shift_x", "gap"),
    ),
    Layout(
        name="training-attacks",
        title="What a defence was trained on, and what it meets",
        rules=("adaptive-paper", "adaptive", "oracle"),
        attacks=("backdoor", "omniscient"),
        lines="trained",
        trained=_TRAININGS,
        average=True,
        figure="bars",
    ),
)

LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in _ALL}
"""By artefact. ``partition``, ``sweep``, ``synthetic`` and ``traits`` are not tables of runs."""
