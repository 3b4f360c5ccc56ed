"""What suspects are called; run as ``python -m benchmarks.kinds RUNS DEFENSE``.

Reads the traces of finished runs by the learned rule in RUNS, lets DEFENSE judge their rounds
again, and prints, in Markdown, what suspected attackers are called, over all seeds. A kind has no
part in weights: only runs whose weights DEFENSE gives again, to rounding, are counted.
"""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.defended import scenario_title
from fedimmune import rules
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import RoundRecord


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("defense", type=Path)
    given = parser.parse_args(arguments)
    called: dict[str, Counter[str]] = {}
    honest: dict[str, Counter[bool]] = {}
    seeds: dict[str, set[int]] = {}
    for path in sorted(given.runs.iterdir()):
        folder = RunFolder(path)
        if not folder.is_finished or not folder.traces.rounds():
            continue
        scenario = tomllib.loads((path / "scenario.toml").read_text())
        found = judged_again(folder, given.defense, memory=scenario["rule"]["memory"])
        if found is not None:
            title = scenario_title(scenario["attack"])
            called.setdefault(title, Counter()).update(found[0])
            honest.setdefault(title, Counter()).update(found[1])
            seeds.setdefault(title, set()).add(scenario["seed"])
    names = sorted({kind for each in called.values() for kind in each})
    print("| | seeds | suspected attackers | " + " | ".join(names) + " | honest accused |")
    print("|---" * (4 + len(names)) + "|")
    for title, kinds in called.items():
        total = kinds.total() or 1
        shares = " | ".join(f"{100 * kinds[name] / total:.1f}" for name in names)
        accused = 100 * honest[title][True] / honest[title].total()
        listed = " ".join(str(seed) for seed in sorted(seeds[title]))
        print(f"| {title} | {listed} | {kinds.total()} | {shares} | {accused:.1f} |")


def judged_again(
    folder: RunFolder, defense: Path, *, memory: bool
) -> tuple[Counter[str], Counter[bool]] | None:
    """Count what suspected attackers of a run are called, and which honest clients are accused.

    None where the defense gives other weights than the run has: it is another one.
    """
    rule: Any = rules.get("adaptive", defense=defense, memory=memory)
    called: Counter[str] = Counter()
    honest: Counter[bool] = Counter()
    for record in folder.records():
        trace = folder.traces.read(record.round)
        if trace.grams is None:
            return None
        weighing = rule.weights_from_gram(trace.grams, trace.clients, references=trace.references)
        rule.finish()
        if not _as_recorded(weighing.weight, trace.clients, record):
            return None
        for client in record.clients:
            suspicion = weighing.suspicions.get(client.client)
            if not client.is_attacker:
                honest[suspicion is not None] += 1
            elif suspicion is not None:
                called[suspicion.kind] += 1
    return called, honest


def _as_recorded(weights: torch.Tensor, clients: Sequence[Any], record: RoundRecord) -> bool:
    recorded = {client.client: client.weight for client in record.clients}
    wanted = torch.tensor([recorded.get(client) or 0.0 for client in clients])
    return bool(torch.allclose(weights, wanted.double(), atol=1e-6))


if __name__ == "__main__":
    main()
