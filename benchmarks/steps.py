"""What each step from the paper's form to ours brings; run as ``python -m benchmarks.steps``.

Trains one defense a step on rehearsals (``--recordings``, made by ``fedimmune rehearse --task
mnist``), and lets all weigh the same rounds of a real federation on MNIST's training set, along the
oracle's trajectory: rehearsed attacks, a pattern and a label flip that were never rehearsed, and no
attack. Prints a table in Markdown and writes ``build/bench-steps.json``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedimmune.adaptive import train
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.recordings import Recording, read_recordings
from fedimmune.adaptive.reputation import Memory
from fedimmune.simulation import Scenario
from fedimmune.simulation.rehearsal import Rehearsal, carry_out
from fedimmune.tasks import data_folder, load_data

_BUILD = Path(__file__).resolve().parents[1] / "build"
_MEMORY = 10.0
_ATTACKS: dict[str, dict[str, Any]] = {
    "none": {"name": "none"},
    "backdoor": {"name": "backdoor"},
    "sign-flip": {"name": "sign-flip"},
    "unseen pattern": {"name": "backdoor", "shift_y": 20, "shift_x": 20, "gap": 3},
    "unseen label flip": {"name": "label-flip", "kind": "reverse"},
}


@dataclass(frozen=True)
class Step:
    """One way to make and to use a defense."""

    title: str
    options: dict[str, Any] = field(default_factory=dict)
    has_long: bool = True
    memory: bool = False


_PAPER: dict[str, Any] = {"form": "paper"}
_LITERAL: dict[str, Any] = {**_PAPER, "settings": {"orient": False}}
_AUTHORS: dict[str, Any] = {
    **_PAPER,
    "preset": "authors-2020",
    "settings": {"orient": False, "eps": 0.5, "chosen_by": "loss"},
}
STEPS = (
    Step("paper's form, to the letter", _LITERAL, has_long=False),
    Step(
        "the same, as the authors' program has it",
        {**_LITERAL, "preset": "authors"},
        has_long=False,
    ),
    Step("the same, with the signs of axes settled", _PAPER, has_long=False),
    Step("the same, longer training rehearsed too", _LITERAL),
    Step(
        "relational form",
        {"anchor": False, "settings": {"labels": 0.0, "relative": False}},
        has_long=False,
    ),
    Step(
        "+ scores asked for labels",
        {"anchor": False, "settings": {"relative": False}},
        has_long=False,
    ),
    Step("+ anchor", {"settings": {"relative": False}}, has_long=False),
    Step("+ longer training rehearsed", {"settings": {"relative": False}}),
    Step("+ differences to the median client"),
    Step("+ memory (shipped)", memory=True),
    Step("shipped, without anchor and memory", {"anchor": False}),
    Step("shipped, without anchor", {"anchor": False}, memory=True),
)

Found = dict[str, list[float]]
"""By attack: the share of weight on attackers, rounds over half, honest clients accused, in %."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, show and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=Path, default=_BUILD / "recordings-mnist")
    parser.add_argument("--observed", type=Path, default=_BUILD / "observed-mnist")
    parser.add_argument("--data", type=Path, help="where MNIST is [FEDIMMUNE_DATA]")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=200)
    given = parser.parse_args(arguments)
    _observe(given.observed, given.data, given.rounds)
    jobs = [(step, given.recordings, given.observed, given.epochs) for step in STEPS]
    by_step: dict[str, Found] = {}
    with ProcessPoolExecutor(2) as processes:
        for step, found in zip(STEPS, processes.map(_measure, jobs), strict=True):
            by_step[step.title] = found
            print(f"{step.title}: {found}", flush=True)
    _BUILD.mkdir(exist_ok=True)
    (_BUILD / "bench-steps.json").write_text(json.dumps(by_step, indent=1))
    print(table(by_step))


def table(by_step: dict[str, Found]) -> str:
    """Show weight on attackers and honest clients accused, in Markdown."""
    attacks = list(_ATTACKS)
    lines = ["| | " + " | ".join(attacks) + " |", "|---" * (len(attacks) + 1) + "|"]
    for title, found in by_step.items():
        cells = [
            (f"{found[attack][0]:.1f} · " if attack != "none" else "") + f"{found[attack][2]:.1f}"
            for attack in attacks
        ]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _observe(folder: Path, place: Path | None, rounds: int) -> None:
    """Play a real federation under each attack, once."""
    for title, attack in _ATTACKS.items():
        file = folder / f"{title.replace(' ', '-')}-{rounds}.recording"
        if file.is_file():
            continue
        attackers = 0 if title == "none" else 4
        scenario = Scenario(
            task="mnist", rule="oracle", attack=attack, attackers=attackers, rounds=rounds, seed=11
        ).resolve()
        task = scenario.make_task()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"playing {title}", flush=True)
        rehearsal = Rehearsal(scenario, 0, on="clients")
        carry_out(rehearsal, task, load_data(task, data_folder(place))).save(file)


def _measure(job: tuple[Step, Path, Path, int]) -> Found:
    """Train one defense and let it weigh what was observed."""
    step, rehearsed, observed, epochs = job
    torch.set_num_threads(1)
    recordings = [
        recording
        for recording in read_recordings([rehearsed])
        if step.has_long or recording.about.scenario["local_epochs"] == 1
    ]
    defense = train(recordings, epochs=epochs, **step.options)
    return {
        title: _play(defense, recording, memory=step.memory)
        for title in _ATTACKS
        for recording in read_recordings([observed])
        if _is(recording, title)
    }


def _is(recording: Recording, title: str) -> bool:
    played: Any = recording.about.scenario["attack"]
    wanted = _ATTACKS[title]
    return bool({**played, **wanted} == played) and (title != "backdoor" or not played["shift_y"])


def _play(defense: Defense, recording: Recording, *, memory: bool) -> list[float]:
    """Weigh one round after the other, as a server would."""
    known, n = Memory(), recording.attackers.shape[1]
    measured = recording.grams_with(*defense.references)
    shares, accused = [], []
    for grams, attackers in zip(measured, recording.attackers, strict=True):
        evidence = known.evidence(range(n), _MEMORY) if memory else None
        weights, scores = defense.weigh(grams, evidence)
        known = known.after(range(n), scores)
        shares.append(weights[attackers].sum())
        accused.append((weights[~attackers] == 0).double().mean())
    share = torch.stack(shares)
    return [
        100 * float(share.mean()),
        100 * float((share > 0.5).double().mean()),
        100 * float(torch.stack(accused).mean()),
    ]


if __name__ == "__main__":
    main()
