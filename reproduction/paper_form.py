"""The paper's form, factor by factor; run as ``python -m reproduction.paper_form``.

``runs RUNS`` reads run folders of the backdoor, finished or not, and prints in Markdown how each
ended; ``--csv FILE`` writes them round by round, ``--figure FILE`` draws their ASR over rounds.
``rounds RECORDINGS DEFENSE...`` lets defenses weigh recorded rounds, such as those that `fedimmune
rehearse --on clients` leaves, and prints how much weight attackers get and how well scores tell
them apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import typer

from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.evaluation import validate
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.io import write_text_atomically
from fedimmune.runs.folder import RunFolder
from fedimmune.simulation.scenario import read_toml
from reproduction.figures import save, success_chart
from reproduction.rows import as_csv
from reproduction.tables import markdown_table

__all__ = ["main"]

_RUN = ["protocol", "rule", "defense", "attackers", "seed"]
_MEASURED = ("round", "accuracy", "asr", "attacker_weight")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.paper_form", description=__doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    runs = ways.add_parser("runs")
    runs.add_argument("runs", type=Path, nargs="+")
    runs.add_argument("--csv", type=Path)
    runs.add_argument("--figure", type=Path)
    rounds = ways.add_parser("rounds")
    rounds.add_argument("recordings", type=Path)
    rounds.add_argument("defenses", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    if given.way == "rounds":
        typer.echo(_weighed(given.recordings, given.defenses), nl=False)
        return
    frame = _read(given.runs)
    typer.echo(_ends(frame), nl=False)
    if given.csv is not None:
        write_text_atomically(as_csv(frame), given.csv)
    if given.figure is not None:
        save(success_chart(frame), given.figure.with_suffix(""))


def _read(folders: Sequence[Path]) -> pd.DataFrame:
    """Return one row per run and round."""
    found = []
    for path in (path for folder in folders for path in folder.iterdir() if path.is_dir()):
        scenario, records = read_toml(path), RunFolder(path).records()
        attack, rule = scenario["attack"], scenario["rule"]
        if attack["name"] != "backdoor":
            continue
        defense = Path(rule["defense"]).stem if "defense" in rule else ""
        about = {
            # The authors' program writes a value of its own into the pattern.
            "protocol": "authors" if "value" in attack else "paper",
            "rule": rule["name"],
            "defense": f"{defense}, not clipped" if rule.get("clip") is False else defense,
            "attackers": scenario["attackers"],
            "seed": scenario["seed"],
        }
        found += [about | {name: getattr(each, name) for name in _MEASURED} for each in records]
    frame = pd.DataFrame(found, columns=[*_RUN, *_MEASURED])
    return frame.sort_values(_RUN, kind="stable", ignore_index=True)


def _ends(frame: pd.DataFrame) -> str:
    lines = []
    for about, own in frame.groupby(_RUN, sort=False):
        last = own.iloc[-1]
        shares = [f"{100 * last[name]:.2f}" for name in ("accuracy", "asr")]
        weight = f"{100 * own['attacker_weight'].fillna(0).mean():.1f} %"
        lines.append([*map(str, about), str(len(own)), *shares, weight])
    head = [*_RUN, "rounds", "ACC", "ASR", "weight on attackers"]
    return markdown_table(head, lines, "-" * len(head))


def _weighed(recordings: Path, defenses: Sequence[Path]) -> str:
    read = read_recordings([recordings])
    lines = []
    for file in defenses:
        for row in validate(Defense.load(file), read):
            share, auroc = row["attacker_weight"], row["auroc"]
            lines.append(
                [
                    file.stem,
                    f"{row['attack']}, {row['attackers']} of {row['clients']}",
                    "–" if share is None else f"{100 * share:.1f} %",
                    "–" if auroc is None else f"{auroc:.2f}",
                    f"{100 * row['benign_kept']:.1f} %",
                ]
            )
    head = ["defense", "attack", "weight on attackers", "AUROC", "honest kept"]
    return markdown_table(head, lines, "-" * len(head))


if __name__ == "__main__":
    main()
