"""What learned rules play a benchmark with: rehearsed on its task, unless that was done before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import typer

from fedimmune import adaptive
from fedimmune.adaptive.detector import Detector

__all__ = ["BYZFL", "BYZFL_TASK", "learned"]

BYZFL_TASK = "reproduction.tasks:ByzflMnist"
BYZFL: dict[str, Any] = {
    "batch": 25,
    "local_steps": 1,
    "attacker_data": "copied",
    # Its rate of 0.1 is for averages of gradients with weight 1 − 0.9; ours are sums.
    "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "carried": True},
}
"""Fields of ByzFL's scenarios: distributed SGD with client momentum."""

_SAMPLED = 1000
"""Values of each update's last layer that the detector of ``spectral`` sees."""


def learned(
    task: str, names: Collection[str], folder: Path, data: Path | None, workers: int
) -> dict[str, Path]:
    """Return the files of those rules that learn, made from nothing where they are not there.

    ``adaptive`` rehearses sign-flip and the backdoor, by up to four of ten; for ByzFL's task
    single steps under its three attacks, and then goes on from the universal defense. ``spectral``
    learns from rounds without attack.
    """
    how = {"data": data, "workers": workers}
    made: dict[str, Path] = {}
    for name in ("adaptive", "spectral"):
        if name not in names:
            continue
        made[name] = folder / f"{task.rpartition(':')[2]}.{_SUFFIXES[name]}"
        if not made[name].exists():
            typer.echo(f"rehearsing on {task} for {made[name]}", err=True)
            teach = _TEACHERS.get((name, task), _TEACHERS[name, ""])
            trained = teach(task, folder / f"{made[name].name}-recordings", how)
            made[name].parent.mkdir(parents=True, exist_ok=True)
            trained.save(made[name])
    return made


def _own(task: str, output: Path, how: Mapping[str, Any]) -> adaptive.Defense:
    return adaptive.train(adaptive.rehearse(task, output=output, **how))


def _detector(task: str, output: Path, how: Mapping[str, Any]) -> Detector:
    recordings = adaptive.rehearse(task, attackers=[0], output=output, save_updates=_SAMPLED, **how)
    return adaptive.train(recordings, form="spectral")


def _of_single_steps(task: str, output: Path, how: Mapping[str, Any]) -> adaptive.Defense:
    """Rehearse ByzFL's three attacks, with factors drawn, and searched against what ships.

    A single attacker, who has nobody to be recognized by, is also rehearsed for as long as the
    benchmark lasts: late steps are small, and look unlike early ones.
    """
    partition = {"name": "gamma-similarity", "gamma": 0.0}
    recordings = []
    for length, f, runs, rounds in (
        *(("", f, 2, 200) for f in range(1, 5)),
        ("long-", 1, 1, 800),
    ):
        fields = {**BYZFL, "partition": partition, "clients": 10 + f}
        steps = {"runs": runs, "local_epochs": [1], "seed": f, **how}
        recordings += adaptive.rehearse(
            task,
            ["sign-flip", "ipm", "alie"],
            attackers=[0, f],
            rounds=rounds,
            randomize={},
            settings=fields,
            output=output / f"{length}drawn-{f}",
            **steps,
        )
        for attack, factor in (("ipm", "scale"), ("alie", "z")):
            recordings += adaptive.rehearse(
                task,
                [attack],
                attackers=[f],
                rounds=800 if length else 100,
                trajectory=["adaptive"],
                settings={**fields, "attack": {factor: "search"}},
                output=output / f"{length}searched-{f}-{attack}",
                **steps,
            )
    return adaptive.train(recordings, start=adaptive.universal(), epochs=20)


_SUFFIXES = {"adaptive": "defense", "spectral": "detector"}
_TEACHERS: dict[tuple[str, str], Callable[[str, Path, Mapping[str, Any]], Any]] = {
    ("adaptive", ""): _own,
    ("adaptive", BYZFL_TASK): _of_single_steps,
    ("spectral", ""): _detector,
}
