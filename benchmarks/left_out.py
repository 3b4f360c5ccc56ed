"""Honest clients left out, by their data; run as ``python -m benchmarks.left_out RUN``.

Reads a finished run and prints of its honest clients how often they were suspected, set against
how many of their samples are of one class, by default the class that a backdoor aims at.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedimmune.errors import InputError
from fedimmune.runs import RunFolder


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.left_out", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--label", type=int, help="the class; by default the attack's target")
    given = parser.parse_args(arguments)
    folder = RunFolder(given.run)
    label = given.label
    if label is None:
        label = folder.scenario()["attack"].get("target")
    records, partition = folder.records(), folder.partition()
    if label is None or not records or partition is None:
        raise InputError(f"{given.run}: give --label, and a run with records and a partition")
    suspected = Counter(
        client.id
        for record in records
        for client in record.clients
        if not client.attacks and client.verdict == "suspected"
    )
    honest = [client for client in partition if not client.attacks]
    shares = [client.samples[label] / sum(client.samples) for client in honest]
    often = [suspected[client.id] / len(records) for client in honest]
    most = [share for share, much in zip(shares, often, strict=True) if much > 0.5]
    others = [share for share, much in zip(shares, often, strict=True) if much <= 0.5]
    print(f"{len(honest)} honest clients, suspected in {statistics.fmean(often):.1%} of rounds")
    print(f"share of class {label} among a client's samples:")
    print(f"  correlation with being suspected   {statistics.correlation(shares, often):.2f}")
    if most and others:
        print(f"  of the {len(most)} suspected in most rounds   {statistics.fmean(most):.1%}")
        print(f"  of the other {len(others)}                  {statistics.fmean(others):.1%}")


if __name__ == "__main__":
    main()
