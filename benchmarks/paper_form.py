"""The paper's form factor by factor; run as ``python -m benchmarks.paper_form``.

``runs RUNS`` reads run folders of the backdoor, finished or not, and prints in Markdown how each
ended; ``--csv FILE`` writes them round by round, ``--figure FILE`` draws their ASR over rounds.
``rounds RECORDINGS DEFENCE...`` lets defences weigh recorded rounds, such as those that `fedimmune
record --on clients` leaves, and prints how much weight attackers get and how well scores tell them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedimmune.adaptive.defence import Defence
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.adaptive.validation import validate
from fedimmune.federation.scenario import read_toml
from fedimmune.records import RoundRecord
from fedimmune.runs import RunFolder

_FIELDS = ("protocol", "rule", "attackers", "seed", "round", "accuracy", "asr", "attacker_weight")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_form", description=__doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    runs = ways.add_parser("runs")
    runs.add_argument("runs", type=Path, nargs="+")
    runs.add_argument("--csv", type=Path)
    runs.add_argument("--figure", type=Path)
    rounds = ways.add_parser("rounds")
    rounds.add_argument("recordings", type=Path)
    rounds.add_argument("defences", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    if given.way == "rounds":
        _weigh(given.recordings, given.defences)
        return
    found = sorted(_read(given.runs), key=lambda run: list(run[0].values()))
    _print(found)
    if given.csv is not None:
        _write(found, given.csv)
    if given.figure is not None:
        _draw(found, given.figure)


Run = tuple[dict[str, Any], list[RoundRecord]]
"""What was played, and how it went."""


def _read(folders: Sequence[Path]) -> list[Run]:
    found = []
    for path in (path for folder in folders for path in folder.iterdir() if path.is_dir()):
        scenario, records = read_toml(path), RunFolder(path).records()
        attack, rule = scenario["attack"], scenario["rule"]
        if attack["name"] != "backdoor" or not records:
            continue
        about = {
            # The authors' program writes a value of its own into the pattern.
            "protocol": "authors" if "value" in attack else "paper",
            "rule": Path(rule["defence"]).stem if "defence" in rule else rule["name"],
            "attackers": scenario["attackers"],
            "seed": scenario["seed"],
        }
        if rule.get("clip") is False:
            about["rule"] += ", not clipped"
        found.append((about, records))
    return found


def _print(runs: Sequence[Run]) -> None:
    print("| protocol | rule | attackers | seed | rounds | ACC | ASR | weight on attackers |")
    print("|---" * 8 + "|")
    for about, records in runs:
        weights = [100 * (record.attacker_weight or 0) for record in records]
        last = records[-1]
        figures = (last.accuracy or 0, last.asr or 0)
        cells = [*about.values(), len(records), *(f"{100 * each:.2f}" for each in figures)]
        print(f"| {' | '.join(map(str, cells))} | {sum(weights) / len(weights):.1f} % |")


def _write(runs: Sequence[Run], file: Path) -> None:
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, _FIELDS, lineterminator="\n")
        writer.writeheader()
        for about, records in runs:
            for each in records:
                writer.writerow(about | {name: getattr(each, name) for name in _FIELDS[4:]})


def _draw(runs: Sequence[Run], file: Path) -> None:
    from matplotlib import pyplot  # noqa: PLC0415 (an extra)

    kinds = sorted({(about["protocol"], about["attackers"]) for about, _ in runs}, reverse=True)
    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(5 * columns, 3 * lines), sharey=True, squeeze=False
    )
    names = sorted({about["rule"] for about, _ in runs})
    for place, (protocol, attackers) in zip(axes.flat, kinds, strict=False):
        for about, records in runs:
            if (about["protocol"], about["attackers"]) == (protocol, attackers):
                number = names.index(about["rule"])
                place.plot(
                    [record.round for record in records],
                    [100 * (record.asr or 0) for record in records],
                    color=f"C{number % 10}",
                    label=f"{about['rule']}, seed {about['seed']}",
                )
        place.set(title=f"{attackers} of 10, protocol {protocol}", xlabel="round", ylabel="ASR %")
        place.legend(fontsize=7)
    for place in axes.flat[len(kinds) :]:
        place.remove()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _weigh(recordings: Path, defences: Sequence[Path]) -> None:
    read = read_recordings([recordings])
    print("| defence | attack | weight on attackers | AUROC | honest kept |")
    print("|---" * 5 + "|")
    for file in defences:
        for row in validate(Defence.load(file), read):
            share, auroc = row["attacker_weight"], row["auroc"]
            cells = (
                file.stem,
                f"{row['attack']}, {row['attackers']} of {row['clients']}",
                "–" if share is None else f"{100 * share:.1f} %",
                "–" if auroc is None else f"{auroc:.2f}",
                f"{100 * row['benign_kept']:.1f} %",
            )
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
