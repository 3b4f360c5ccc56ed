"""What each step from the paper's form to ours brings; run as ``python -m benchmarks.steps``.

Trains one defence a step on the same rehearsals and measures all on rehearsals that none of them
has seen, among them attacks that were never rehearsed. Prints a table in Markdown and writes
``build/bench-steps.json``. The recordings are made with ``make recordings-mnist``.
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

from fedimmune.adaptive.defence import Defence
from fedimmune.adaptive.making import make_defence
from fedimmune.adaptive.memory import Memory
from fedimmune.adaptive.recordings import Recording, read_recordings

_BUILD = Path(__file__).resolve().parents[1] / "build"
_MEMORY = 10.0


@dataclass(frozen=True)
class Step:
    """One way to make and to use a defence."""

    title: str
    recordings: str = "fixed"
    options: dict[str, Any] = field(default_factory=dict)
    memory: bool = False


_PAPER: dict[str, Any] = {"form": "paper"}
_BARE: dict[str, Any] = {"anchor": False, "settings": {"labels": 0.0}}
STEPS = (
    Step("paper's form, to the letter", options=_PAPER),
    Step("… as the authors' program has it", options={**_PAPER, "preset": "authors"}),
    Step("… with the signs of axes settled", options={**_PAPER, "settings": {"orient": True}}),
    Step("relational form", options=_BARE),
    Step("… and scores asked for labels", options={"anchor": False}),
    Step("… and memory", options={"anchor": False}, memory=True),
    Step("… and an anchor, no memory (shipped)"),
    Step("… and an anchor and memory", memory=True),
    Step("anchor, scores not asked for labels", options={"settings": {"labels": 0.0}}),
    Step("shipped, families rehearsed", recordings="family"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, show and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixed", type=Path, default=_BUILD / "recordings-mnist")
    parser.add_argument("--family", type=Path, default=_BUILD / "recordings-mnist-family")
    parser.add_argument("--unseen", type=Path, default=_BUILD / "recordings-mnist-unseen")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    folders = {"fixed": given.fixed, "family": given.family}
    jobs = [
        (step, folders[step.recordings], given.fixed, given.unseen, given.epochs, seed)
        for step in STEPS
        for seed in range(1, given.seeds + 1)
    ]
    by_step: dict[str, list[dict[str, list[float]]]] = {step.title: [] for step in STEPS}
    with ProcessPoolExecutor(2) as processes:
        for job, found in zip(jobs, processes.map(_measure, jobs), strict=True):
            by_step[job[0].title].append(found)
            print(f"{job[0].title}, seed {job[-1]}: {found}", flush=True)
    _BUILD.mkdir(exist_ok=True)
    (_BUILD / "bench-steps.json").write_text(json.dumps(by_step, indent=1))
    print(table(by_step))


def table(by_step: dict[str, list[dict[str, list[float]]]]) -> str:
    """Show means over seeds, in Markdown."""
    attacks = list(next(iter(by_step.values()))[0])
    lines = ["| | " + " | ".join(attacks) + " |", "|---" * (len(attacks) + 1) + "|"]
    for title, seeds in by_step.items():
        cells = []
        for attack in attacks:
            values = torch.tensor([seed[attack] for seed in seeds]).mean(0).tolist()
            cells.append(f"{values[0]:.1f} · {values[1]:.1f} · {values[2]:.1f}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _measure(job: tuple[Step, Path, Path, Path, int, int]) -> dict[str, list[float]]:
    """Train one defence; by attack: share on attackers, rounds over half, honest kept, all in %."""
    step, folder, fixed, unseen, epochs, seed = job
    torch.set_num_threads(1)
    defence, _ = make_defence(read_recordings([folder]), epochs=epochs, seed=seed, **step.options)
    apart = [r for r in read_recordings([fixed]) if r.about.run == 2]
    found = {
        recording.about.attack: _play(defence, recording, memory=step.memory)
        for recording in apart
        if recording.about.attackers in {0, 4}
    }
    for recording in read_recordings([unseen]):
        title = f"unseen {recording.about.attack}"
        found[title] = _play(defence, recording, memory=step.memory)
    return found


def _play(defence: Defence, recording: Recording, *, memory: bool) -> list[float]:
    """Weigh one round after the other, as a server would."""
    known, n = Memory(), recording.attackers.shape[1]
    rows = n + defence.needs_anchor
    shares, kept = [], []
    for grams, attackers in zip(recording.grams, recording.attackers, strict=True):
        evidence = known.evidence(range(n), _MEMORY) if memory else None
        weights, scores = defence.weigh(grams[:, :rows, :rows], evidence)
        known = known.after(range(n), scores)
        shares.append(weights[attackers].sum())
        kept.append((weights[~attackers] > 0).double().mean())
    share = torch.stack(shares)
    return [
        100 * float(share.mean()),
        100 * float((share > 0.5).double().mean()),
        100 * float(torch.stack(kept).mean()),
    ]


if __name__ == "__main__":
    main()
