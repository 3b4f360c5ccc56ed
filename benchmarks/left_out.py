"""Honest clients left out, by their data; run as ``python -m benchmarks.left_out RUN``.

Reads a finished run and prints of its honest clients how often they were suspected, set against
how many of their samples are of one class, by default the class that a backdoor aims at; and how
often the final model names that class.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from fedimmune import Scenario
from fedimmune.errors import InputError
from fedimmune.runs.folder import RunFolder
from fedimmune.tasks import data_folder, load_data
from fedimmune.tasks.data import build_model

_BATCH = 500


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
        client.client
        for record in records
        for client in record.clients
        if not client.is_attacker and client.verdict == "suspected"
    )
    honest = [client for client in partition if not client.is_attacker]
    shares = [client.samples[label] / sum(client.samples) for client in honest]
    often = [suspected[client.client] / len(records) for client in honest]
    most = [share for share, much in zip(shares, often, strict=True) if much > 0.5]
    others = [share for share, much in zip(shares, often, strict=True) if much <= 0.5]
    print(f"{len(honest)} honest clients, suspected in {statistics.fmean(often):.1%} of rounds")
    print(f"share of class {label} among a client's samples:")
    if len(set(often)) > 1 and len(set(shares)) > 1:
        print(f"  correlation with being suspected   {statistics.correlation(shares, often):.2f}")
    if most and others:
        print(f"  of the {len(most)} suspected in most rounds   {statistics.fmean(most):.1%}")
        print(f"  of the other {len(others)}                  {statistics.fmean(others):.1%}")
    named, right = _named(folder, label)
    print(f"the final model names it for {named:.1%} of the server's samples; right is {right:.1%}")


def _named(folder: RunFolder, label: int) -> tuple[float, float]:
    """Return the share of samples that the model calls a class, and of those that are of it."""
    torch.set_num_threads(1)
    task = Scenario.from_toml(folder.path).make_task()
    data = load_data(task, data_folder())
    model = build_model(task, data)
    model.load_state_dict(folder.model())
    with torch.no_grad():
        parts = data.server.inputs.split(_BATCH)
        named = torch.cat([model.eval()(part).argmax(1) for part in parts])
    return float((named == label).double().mean()), float(
        (data.server.labels == label).double().mean()
    )


if __name__ == "__main__":
    main()
