"""Which rounds and which scores let attackers in; run as ``python -m benchmarks.rounds RUNS``.

Reads the finished runs of learned rules in RUNS, a folder of run folders such as `python -m
reproduction` leaves, and prints in Markdown: in which rounds attackers had weight, how many of them
were suspected, and the scores of both sides. That is where to look when a defense falls short of
the oracle.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.defended import scenario_title
from fedimmune.results import ClientResult
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import RoundRecord

_NOTICEABLE = 0.01
"""Share of the weight below which attackers count as shut out."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--task", default="mnist", help="whose runs are read")
    parser.add_argument("--defense", default="", help="a part of the defense's name")
    given = parser.parse_args(arguments)
    print(
        "| defense | attack | seed | rounds with weight on attackers | most of it | attackers "
        "suspected | honest suspected | attackers' scores | honest scores |"
    )
    print("|---" * 9 + "|")
    for path in sorted(given.runs.iterdir()):
        if not (path / "model.safetensors").is_file():
            continue
        scenario = tomllib.loads((path / "scenario.toml").read_text(encoding="utf-8"))
        defense = Path(scenario["rule"].get("defense", "")).stem
        is_wanted = scenario["task"]["name"] == given.task and scenario["attackers"]
        if is_wanted and defense and given.defense in defense:
            cells = (defense, scenario_title(scenario["attack"]), str(scenario["seed"]))
            print(_row(*cells, *_told(RunFolder(path).records())))


def _told(records: Sequence[RoundRecord]) -> list[str]:
    shares = {record.round: record.attacker_weight or 0.0 for record in records}
    attackers = [c for record in records for c in record.clients if c.is_attacker]
    honest = [c for record in records for c in record.clients if not c.is_attacker]
    return [
        _spans(number for number, share in shares.items() if share >= _NOTICEABLE) or "none",
        f"{max(shares.values()):.0%}",
        *(
            f"{sum(c.verdict == 'suspected' for c in side)} of {len(side)}"
            for side in (attackers, honest)
        ),
        *(_scores(side) for side in (attackers, honest)),
    ]


def _scores(clients: Sequence[ClientResult]) -> str:
    """Return the lowest, the median and the highest."""
    found = [client.score for client in clients if client.score is not None]
    if not found:
        return "–"
    return " · ".join(f"{v:.2f}" for v in (min(found), statistics.median(found), max(found)))


def _spans(numbers: Iterable[int]) -> str:
    """Write 1, 2, 3, 7 as 1–3, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]}–{s[-1]}" for s in spans)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
