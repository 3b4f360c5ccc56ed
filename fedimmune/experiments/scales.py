"""What a task is at each scale: data, model, rounds, rehearsals.

``paper`` is the protocol of Wan and Chen, *Robust Federated Learning with Attack-Adaptive
Aggregation*, 2021, to the letter. ``cpu`` is a reduction that a few cores can carry out in hours;
what is reduced is said in every caption. ``smoke`` plays everything on the bundled digits, in
minutes: it shows that all works, and nothing else. ``authors`` is as large as ``paper`` and plays
as the authors' program does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedimmune.errors import ParameterError

__all__ = ["SCALES", "Rehearsing", "Setting", "setting_of"]

SCALES = ("smoke", "cpu", "paper", "authors")


@dataclass(frozen=True)
class Rehearsing:
    """How the server rehearses attacks for a defence; see `fedimmune.federation.plan.plan`.

    Parameters
    ----------
    attackers
        How many attack.
    runs
        How often each is repeated.
    follow
        Rules whose global model is followed.
    local_epochs
        How long clients train in a round.
    rounds
        How many; None for as many as the task has.
    """

    attackers: tuple[int, ...] = (0, 1, 2, 3, 4)
    runs: int = 3
    follow: tuple[str, ...] = ("oracle",)
    local_epochs: tuple[int, ...] = (1,)
    rounds: int | None = None


@dataclass(frozen=True)
class Setting:
    """A task at a scale.

    Parameters
    ----------
    task
        Its name in the paper's experiments.
    fields
        Of all scenarios: the task as it is played, its partition, rounds.
    attacks
        Kinds that the paper plays on it, the first being the one that its tables are about.
    shipped
        How our own defence rehearses.
    to_the_letter
        How the paper's form does.
    on_clients
        How it does with the clients' own data.
    protocol
        What scenarios have where nothing else is said: `fedimmune.federation.protocols`.
    epochs
        Of a defence's training.
    samples, tested
        How many the clients have, and how many models are tested on.
    rounds
        How many are played.
    sample_seconds, epoch_seconds
        About how long one core of a machine of 2024 trains on a sample, and on a recorded round in
        one epoch of a defence's training: to say beforehand how long things take.
    traits
        The layer whose updates show what attackers send.
    reduced
        What is not as in the paper, for captions; empty where all is.
    """

    task: str
    fields: Mapping[str, Any]
    samples: int
    tested: int
    rounds: int
    sample_seconds: float
    attacks: tuple[str, ...] = ("backdoor", "omniscient")
    shipped: Rehearsing = Rehearsing()
    to_the_letter: Rehearsing = Rehearsing()
    on_clients: Rehearsing = Rehearsing()
    protocol: str = "paper"
    epochs: int = 500
    epoch_seconds: float = 3.5e-4
    traits: str = ""
    reduced: str = ""


_FOUR_TRAJECTORIES = Rehearsing(follow=("mean", "geometric-median", "median", "multi-krum"))
"""As the authors' program does."""
_ONE_TRAJECTORY = Rehearsing(attackers=(0, 2, 4))
_TWO_TRAJECTORIES = Rehearsing(attackers=(0, 2, 4), follow=("mean", "oracle"), rounds=15)
"""One that takes the attack in, and one that does not."""
_TRAITS = "layer3.0.downsample.0.weight"
_NO_WEIGHTS = "ResNet-18 begins with random weights, not with ImageNet's"

_PAPER = {
    "mnist": Setting(
        task="mnist",
        fields={"task": "mnist"},
        samples=60_000,
        tested=9_500,
        rounds=30,
        sample_seconds=1.2e-4,
        shipped=Rehearsing(local_epochs=(1, 6)),
        to_the_letter=_FOUR_TRAJECTORIES,
        on_clients=_FOUR_TRAJECTORIES,
        traits="fc3.weight",
    ),
    "cifar10": Setting(
        task="cifar10",
        fields={"task": "cifar10"},
        samples=50_000,
        tested=9_500,
        rounds=30,
        sample_seconds=7e-3,
        shipped=Rehearsing(local_epochs=(1, 5)),
        to_the_letter=_FOUR_TRAJECTORIES,
        on_clients=_FOUR_TRAJECTORIES,
        epoch_seconds=1.2e-3,
        traits=_TRAITS,
        reduced=_NO_WEIGHTS,
    ),
    "tiny-imagenet": Setting(
        task="tiny-imagenet",
        fields={"task": "tiny-imagenet"},
        samples=100_000,
        tested=9_500,
        rounds=45,
        sample_seconds=2.5e-2,
        shipped=Rehearsing(local_epochs=(1, 6)),
        to_the_letter=_FOUR_TRAJECTORIES,
        on_clients=_FOUR_TRAJECTORIES,
        epoch_seconds=1.2e-3,
        traits=_TRAITS,
        reduced=_NO_WEIGHTS,
    ),
    "imdb": Setting(
        task="imdb",
        fields={"task": "imdb"},
        samples=25_000,
        tested=24_500,
        rounds=10,
        sample_seconds=8e-3,
        attacks=("label-flip", "omniscient"),
        to_the_letter=_FOUR_TRAJECTORIES,
        on_clients=_FOUR_TRAJECTORIES,
    ),
}
_PAPER["cifar100"] = replace(_PAPER["cifar10"], task="cifar100", fields={"task": "cifar100"})


def _narrow(task: str, samples: int, seconds: float) -> Setting:
    """Reduce a task with ResNet-18 to what a CPU can carry."""
    known = _PAPER[task]
    rounds = 15
    return replace(
        known,
        fields={
            "task": {"name": task, "width": 16},
            "partition": {"name": "dirichlet", "samples": samples},
            "rounds": rounds,
        },
        samples=samples,
        rounds=rounds,
        sample_seconds=seconds,
        shipped=replace(_ONE_TRAJECTORY, local_epochs=(1, 2)),
        to_the_letter=replace(_FOUR_TRAJECTORIES, attackers=(0, 2, 4)),
        on_clients=_TWO_TRAJECTORIES,
        reduced=f"ResNet-18 at width 16 instead of 64, {samples:,} training images, {rounds} "
        "rounds; rehearsals of 0, 2 and 4 attackers instead of 0 to 4, on clients' data along two "
        f"trajectories instead of four; {_NO_WEIGHTS}",
    )


_CPU = {
    "mnist": replace(
        _PAPER["mnist"],
        on_clients=_TWO_TRAJECTORIES,
        reduced="rehearsals on clients' data are of 0, 2 and 4 attackers, 15 rounds long and along "
        "two trajectories instead of four",
    ),
    "cifar10": _narrow("cifar10", 20_000, 6.5e-4),
    "cifar100": _narrow("cifar100", 10_000, 6.5e-4),
    "tiny-imagenet": _narrow("tiny-imagenet", 8_000, 2e-3),
    "imdb": replace(
        _PAPER["imdb"],
        # All reviews and a small net: with a fifth of them it hardly learns in ten rounds.
        fields={"task": {"name": "imdb", "hidden": 64, "length": 100}},
        sample_seconds=7e-4,
        shipped=_ONE_TRAJECTORY,
        to_the_letter=_ONE_TRAJECTORY,
        on_clients=_ONE_TRAJECTORY,
        reduced="a GRU of 64 instead of 256 over 100 words of a review instead of 200; rehearsals "
        "of 0, 2 and 4 attackers along one trajectory instead of 0 to 4 along four",
    ),
}

_FEW = Rehearsing(attackers=(0, 4), runs=2, rounds=2)
_DIGITS = Setting(
    task="digits",
    fields={"task": "digits", "rounds": 2},
    samples=898,
    tested=799,
    rounds=2,
    sample_seconds=6e-5,
    shipped=_FEW,
    to_the_letter=_FEW,
    on_clients=_FEW,
    epochs=3,
    traits="fc2.weight",
    reduced="bundled digits, two rounds, hardly any training: it shows that the machinery works, "
    "and its figures mean nothing",
)
_SMOKE = {task: replace(_DIGITS, task=task) for task in _PAPER}
_SMOKE["imdb"] = replace(_SMOKE["imdb"], attacks=("label-flip", "omniscient"))
_SMOKE["cifar100"] = replace(
    _SMOKE["cifar100"],
    fields={"task": "fedimmune.experiments.other_head:TwentyDigits", "rounds": 2},
)

_AUTHORS = {
    task: replace(
        setting,
        protocol="authors",
        # The newer branch of their program begins with random weights, too.
        reduced="played as the authors' program does",
    )
    for task, setting in _PAPER.items()
}
_SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "smoke": _SMOKE,
    "cpu": _CPU,
    "paper": _PAPER,
    "authors": _AUTHORS,
}


def setting_of(task: str, scale: str) -> Setting:
    """Give a task at a scale.

    Raises
    ------
    ParameterError
        There is no such scale, or the task has none.
    """
    if scale not in _SETTINGS:
        raise ParameterError(f"there is no scale {scale!r}; there are {', '.join(SCALES)}")
    try:
        return _SETTINGS[scale][task]
    except KeyError:
        known = ", ".join(_SETTINGS[scale])
        raise ParameterError(f"no experiment is about {task!r}; there are {known}") from None
