"""What a task is at each scale: data, model, rounds, rehearsals.

``paper`` is the protocol of Wan and Chen, *Robust Federated Learning with Attack-Adaptive
Aggregation*, 2021, to the letter. ``cpu`` is reduced to what a few cores can do in hours; every
caption says what is reduced. ``smoke`` runs everything on the bundled digits, in minutes: it shows
that everything works, and nothing else. ``authors`` is as large as ``paper`` and follows the
authors' program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedimmune.errors import ParameterError

__all__ = ["SCALES", "Preset", "Rehearsals", "find_preset"]

SCALES = ("smoke", "cpu", "paper", "authors")


@dataclass(frozen=True)
class Rehearsals:
    """How attacks are rehearsed for a defense; see `fedimmune.simulation.rehearsal.plan`."""

    attackers: tuple[int, ...] = (0, 1, 2, 3, 4)
    runs: int = 3
    trajectories: tuple[str, ...] = ("oracle",)
    local_epochs: tuple[int, ...] = (1,)
    rounds: int | None = None


_FOUR_TRAJECTORIES = Rehearsals(trajectories=("mean", "geometric-median", "median", "multi-krum"))
"""As the authors' program does."""


@dataclass(frozen=True)
class Preset:
    """A task at a scale.

    Parameters
    ----------
    fields
        Of all scenarios: the task as it is run, its partition, rounds.
    samples, tested
        How many the clients have, and how many models are tested on.
    rounds
        Of a run.
    sample_seconds, epoch_seconds
        About how long one core of a machine of 2024 trains on a sample, and on a recorded round in
        one epoch of a defense's training: to estimate how long things take.
    attacks
        Kinds that the paper runs on it; its tables are about the first.
    rehearsals, paper_rehearsals, client_rehearsals
        Of the shipped rule, of the paper's form, and of that on the clients' own data.
    protocol
        What scenarios have unless a field says otherwise: `fedimmune.simulation.protocols`.
    epochs
        Of a defense's training.
    traits
        The layer whose updates show what attackers send.
    differences
        What is not as in the paper, for captions; empty if everything is.
    """

    fields: Mapping[str, Any]
    samples: int
    tested: int
    rounds: int
    sample_seconds: float
    attacks: tuple[str, ...] = ("backdoor", "omniscient")
    rehearsals: Rehearsals = Rehearsals()
    paper_rehearsals: Rehearsals = _FOUR_TRAJECTORIES
    client_rehearsals: Rehearsals = _FOUR_TRAJECTORIES
    protocol: str = "paper"
    epochs: int = 500
    epoch_seconds: float = 3.5e-4
    traits: str = ""
    differences: str = ""

    def run_seconds(self) -> float:
        """Estimate how long one core takes for a run."""
        # A test costs a third of a training; models are tested with the pattern and without.
        return self.rounds * (self.samples + 2 / 3 * self.tested) * self.sample_seconds


_ONE_TRAJECTORY = Rehearsals(attackers=(0, 2, 4))
_TWO_TRAJECTORIES = Rehearsals(attackers=(0, 2, 4), trajectories=("mean", "oracle"), rounds=15)
"""One that absorbs the attack, and one that does not."""
_CIFAR10 = Preset(
    fields={"task": "cifar10"},
    samples=50_000,
    tested=9_500,
    rounds=30,
    sample_seconds=7e-3,
    rehearsals=Rehearsals(local_epochs=(1, 5)),
    epoch_seconds=1.2e-3,
    traits="layer3.0.downsample.0.weight",
    differences="ResNet-18 begins with random weights, not with ImageNet's",
)
_PAPER = {
    "mnist": Preset(
        fields={"task": "mnist"},
        samples=60_000,
        tested=9_500,
        rounds=30,
        sample_seconds=1.2e-4,
        rehearsals=Rehearsals(local_epochs=(1, 6)),
        traits="fc3.weight",
    ),
    "cifar10": _CIFAR10,
    "tiny-imagenet": replace(
        _CIFAR10,
        fields={"task": "tiny-imagenet"},
        samples=100_000,
        rounds=45,
        sample_seconds=2.5e-2,
        rehearsals=Rehearsals(local_epochs=(1, 6)),
    ),
    "imdb": Preset(
        fields={"task": "imdb"},
        samples=25_000,
        tested=24_500,
        rounds=10,
        sample_seconds=8e-3,
        attacks=("label-flip", "omniscient"),
    ),
    "cifar100": replace(_CIFAR10, fields={"task": "cifar100"}),
}


def _narrow(task: str, samples: int, seconds: float) -> Preset:
    """Reduce a task with ResNet-18 to what a CPU can do."""
    rounds = 15
    return replace(
        _PAPER[task],
        fields={
            "task": {"name": task, "width": 16},
            "partition": {"name": "dirichlet", "samples": samples},
            "rounds": rounds,
        },
        samples=samples,
        rounds=rounds,
        sample_seconds=seconds,
        rehearsals=replace(_ONE_TRAJECTORY, local_epochs=(1, 2)),
        paper_rehearsals=replace(_FOUR_TRAJECTORIES, attackers=(0, 2, 4)),
        client_rehearsals=_TWO_TRAJECTORIES,
        differences=f"ResNet-18 at width 16 instead of 64, {samples:,} training images, {rounds} "
        "rounds; rehearsals of 0, 2 and 4 attackers instead of 0 to 4, on clients' data along two "
        f"trajectories instead of four; {_CIFAR10.differences}",
    )


_CPU = {
    "mnist": replace(
        _PAPER["mnist"],
        client_rehearsals=_TWO_TRAJECTORIES,
        differences="rehearsals on clients' data are of 0, 2 and 4 attackers, 15 rounds long and "
        "along two trajectories instead of four",
    ),
    "cifar10": _narrow("cifar10", 20_000, 6.5e-4),
    "cifar100": _narrow("cifar100", 10_000, 6.5e-4),
    "tiny-imagenet": _narrow("tiny-imagenet", 8_000, 2e-3),
    "imdb": replace(
        _PAPER["imdb"],
        # All reviews and a small net: with a fifth of them it hardly learns in ten rounds.
        fields={"task": {"name": "imdb", "hidden": 64, "length": 100}},
        sample_seconds=7e-4,
        rehearsals=_ONE_TRAJECTORY,
        paper_rehearsals=_ONE_TRAJECTORY,
        client_rehearsals=_ONE_TRAJECTORY,
        differences="a GRU of 64 instead of 256 over 100 words of a review instead of 200; "
        "rehearsals of 0, 2 and 4 attackers along one trajectory instead of 0 to 4 along four",
    ),
}

_FEW = Rehearsals(attackers=(0, 4), runs=2, rounds=2)
_DIGITS = Preset(
    fields={"task": "digits", "rounds": 2},
    samples=898,
    tested=799,
    rounds=2,
    sample_seconds=6e-5,
    rehearsals=_FEW,
    paper_rehearsals=_FEW,
    client_rehearsals=_FEW,
    epochs=3,
    traits="fc2.weight",
    differences="bundled digits, two rounds, hardly any training: it shows that the machinery "
    "works, and its figures mean nothing",
)
_SMOKE = dict.fromkeys(_PAPER, _DIGITS)
_SMOKE["imdb"] = replace(_SMOKE["imdb"], attacks=("label-flip", "omniscient"))
_SMOKE["cifar100"] = replace(
    _SMOKE["cifar100"],
    fields={"task": "reproduction.tasks:TwentyDigits", "rounds": 2},
)

_AUTHORS = {
    task: replace(
        setting,
        protocol="authors",
        # The newer branch of their program begins with random weights, too.
        differences="as in the authors' program",
    )
    for task, setting in _PAPER.items()
}
_PRESETS: Mapping[str, Mapping[str, Preset]] = {
    "smoke": _SMOKE,
    "cpu": _CPU,
    "paper": _PAPER,
    "authors": _AUTHORS,
}


def find_preset(task: str, scale: str) -> Preset:
    """Return a task's preset at a scale.

    Raises
    ------
    ParameterError
        There is no such scale, or no such task.
    """
    for what, name, known in (("scale", scale, _PRESETS), ("task", task, _PAPER)):
        if name not in known:
            raise ParameterError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return _PRESETS[scale][task]
