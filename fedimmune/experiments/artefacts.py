"""The paper's tables and figures, one by one.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021. Where the paper
leaves values open (which shifts and gaps of the pattern, which c and ε), those are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fedimmune.errors import ParameterError
from fedimmune.experiments.artefact import Artefact
from fedimmune.experiments.contenders import ABLATIONS, LEARNED, RULES
from fedimmune.experiments.grids import Cell, Grid
from fedimmune.experiments.scales import SCALES, setting_of
from fedimmune.experiments.studies import Partition, Sweep, Synthetic, Traits

__all__ = ["ARTEFACTS", "artefact"]


_Value = TypeVar("_Value")


def _by_scale(smoke: _Value, cpu: _Value, paper: _Value) -> dict[str, _Value]:
    """Give what ``paper`` has to ``authors`` as well: they differ in the protocol alone."""
    return {"smoke": smoke, "cpu": cpu, "paper": paper, "authors": paper}


_ATTACKERS = _by_scale((4,), (1, 2, 3, 4), (1, 2, 3, 4))
_SHIFTS = _by_scale((6,), (0, 12, 24), (0, 4, 8, 12, 16, 20, 24))
_GAPS = _by_scale((1,), (0, 2, 4), (0, 1, 2, 3, 4))
_MANY = 100
_FEW_RULES = _by_scale(LEARNED, RULES, RULES)
_FOR_MANY = tuple(rule for rule in RULES if rule != "residual")
"""Residual-based reweighing compares all pairs of clients value by value: at 100 it takes hours."""


_Tasks = Mapping[str, tuple[str, ...]]


def _always(task: str) -> _Tasks:
    return dict.fromkeys(SCALES, (task,))


_CHEAPEST: _Tasks = _by_scale(("cifar10",), ("mnist",), ("cifar10",))
"""For what the paper shows on CIFAR-10 and a CPU can show on MNIST."""
_CHEAPEST_AND_OWN: _Tasks = {**_CHEAPEST, "cpu": ("mnist", "cifar10")}


def _by_attackers(task: str) -> Callable[[str], list[Cell]]:
    def cells(scale: str) -> list[Cell]:
        rules = _FEW_RULES[scale]
        quiet = [Cell(task=task, attack="none", attackers=0, rule=rule) for rule in rules]
        return quiet + [
            Cell(task=task, attack=attack, attackers=count, rule=rule)
            for attack in setting_of(task, scale).attacks
            for count in _ATTACKERS[scale]
            for rule in rules
        ]

    return cells


def _backdoored(tasks: _Tasks, rules: Mapping[str, Sequence[str]]) -> Callable[[str], list[Cell]]:
    return lambda scale: [
        Cell(task=task, attack="backdoor", attackers=count, rule=rule)
        for task in tasks[scale]
        for count in _ATTACKERS[scale]
        for rule in rules[scale]
    ]


def _trained_on(scale: str) -> list[Cell]:
    both = ("backdoor", "omniscient")
    learned = ("adaptive-paper", "adaptive")
    (task,) = _CHEAPEST[scale]
    limits = [
        Cell(task=task, attack=attack, attackers=count, rule="oracle")
        for attack in both
        for count in _ATTACKERS[scale]
    ]
    return limits + [
        Cell(task=task, attack=attack, attackers=count, rule=rule, rehearsed=rehearsed)
        for attack in both
        for rehearsed in (("backdoor",), ("omniscient",), both)
        for count in _ATTACKERS[scale]
        for rule in learned
    ]


def _other_head(scale: str) -> list[Cell]:
    return [
        Cell(
            task="cifar100",
            attack="backdoor",
            attackers=count,
            rule=rule,
            learned_on="cifar10",
        )
        for count in _ATTACKERS[scale]
        for rule in _FEW_RULES[scale]
    ]


def _many_clients(scale: str) -> list[Cell]:
    return [
        Cell(
            task="cifar10",
            attack="backdoor",
            attackers=count * _MANY // 10,
            rule=rule,
            clients=_MANY,
        )
        for count in _ATTACKERS[scale]
        for rule in _FEW_RULES[scale]
        if rule in _FOR_MANY
    ]


def _patterns(scale: str) -> list[Cell]:
    return [
        Cell(
            task=task,
            attack="backdoor",
            attackers=count,
            rule=rule,
            varied=name,
            value=value,
        )
        for task in _CHEAPEST_AND_OWN[scale]
        for name, values in (("shift_y", _SHIFTS), ("shift_x", _SHIFTS), ("gap", _GAPS))
        for value in values[scale]
        for count in _ATTACKERS[scale]
        for rule in LEARNED
    ]


def _lines(id: str, task: str, name: str, figure: str) -> Grid:  # noqa: A002
    return Grid(
        id,
        f"{name}: accuracy against the number of attackers",
        f"How rules hold on {name} with 0 to 4 attackers of 10, under every attack.",
        figure,
        _always(task),
        _by_attackers(task),
    )


def _table(id: str, task: str, name: str, table: str) -> Grid:  # noqa: A002
    return Grid(
        id,
        f"{name} under the backdoor attack",
        f"Accuracy and attack success on {name} with 1 to 4 attackers of 10.",
        table,
        _always(task),
        _backdoored(_always(task), _FEW_RULES),
    )


ARTEFACTS: Mapping[str, Artefact] = {
    each.id: each
    for each in (
        _lines("mnist-attackers", "mnist", "MNIST", "figure 2, top"),
        _lines("cifar10-attackers", "cifar10", "CIFAR-10", "figure 2, middle"),
        _lines("tiny-imagenet-attackers", "tiny-imagenet", "Tiny-ImageNet", "figure 2, bottom"),
        _lines("imdb-attackers", "imdb", "IMDb", "figure 3"),
        _table("mnist-backdoor", "mnist", "MNIST", "table 2"),
        _table("cifar10-backdoor", "cifar10", "CIFAR-10", "table 3"),
        _table("tiny-imagenet-backdoor", "tiny-imagenet", "Tiny-ImageNet", "table 4"),
        Grid(
            "ablation",
            "What each part of the network is good for",
            "Attack success without attention (MLP), without the scale c, without truncation by ε.",
            "table 1",
            _CHEAPEST,
            _backdoored(_CHEAPEST, dict.fromkeys(SCALES, ABLATIONS)),
        ),
        Grid(
            "transfer-cifar100",
            "A defence of CIFAR-10 on CIFAR-100",
            "Whether a defence carries over to another task with the same layers.",
            "figure 4, left",
            _always("cifar100"),
            _other_head,
        ),
        Grid(
            "transfer-100-clients",
            "A defence of 10 clients among 100",
            "Whether a defence carries over to another number of clients.",
            "figure 4, right",
            _always("cifar10"),
            _many_clients,
            dict.fromkeys(SCALES, "without residual-based weights, too slow for so many clients"),
        ),
        Grid(
            "transfer-patterns",
            "A defence against patterns that it has not rehearsed",
            "Attack success against the pattern's place (shift_y, shift_x) and gap: averages, and "
            "by number of attackers. A gap of 0 is the pattern that was rehearsed.",
            "figures 5 and 11",
            _CHEAPEST_AND_OWN,
            _patterns,
            {"cpu": "shifts of 0, 12 and 24 pixels, gaps of 0, 2 and 4"},
        ),
        Grid(
            "training-attacks",
            "Trained on the backdoor (B), the omniscient attack (O), or both",
            "What rehearsing several attacks at once costs, and what is seen of attacks that were "
            "not rehearsed.",
            "tables 5 and 6",
            _CHEAPEST,
            _trained_on,
        ),
        Sweep(
            "sweep",
            "The search for c and ε",
            "How well defences tell attackers on rehearsals kept apart, by c and ε.",
            "section 4.3",
            _CHEAPEST,
        ),
        Partition(
            "partition",
            "Who has how many samples of which class",
            "Data dealt out to 10 and to 100 clients by a Dirichlet distribution.",
            "figure 6",
            _always("cifar10"),
        ),
        Synthetic(
            "synthetic",
            "Outliers that attention finds and PCA does not show",
            "The paper's demonstration on drawn sets.",
            "figures 7 and 8",
            _always("synthetic"),
        ),
        Traits(
            "traits",
            "The traits of an attack",
            "Which layers a defence looks at, and one layer's updates over rounds under FedAvg and "
            "under the learned rule.",
            "figure 9",
            _always("cifar10"),
        ),
    )
}
"""By id, in the order of the list."""


def artefact(id: str) -> Artefact:  # noqa: A002
    """Give an artefact.

    Raises
    ------
    ParameterError
        There is none of that id.
    """
    try:
        return ARTEFACTS[id]
    except KeyError:
        raise ParameterError(
            f"there is no artefact {id!r}; there are {', '.join(ARTEFACTS)}"
        ) from None
