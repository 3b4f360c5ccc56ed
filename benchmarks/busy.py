"""How much longer rules take beside two other programs that keep both cores busy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import torch
from torch import Tensor

from benchmarks.clients import Clients
from benchmarks.memory import trim
from benchmarks.report import progress
from benchmarks.resnet18 import resnet18
from benchmarks.subjects import SOURCES, make_rule, reader, supplying
from fedimmune import FedimmuneError, Rule, Updates, kernels

__all__ = ["measure_busy"]

_N, _TURNS, _OTHERS = 10, 5, 2
_BAR = 4.0


def measure_busy(rules: Sequence[str], threads: Sequence[int], path: Path) -> None:
    """Time rules alone and beside others, print both and write them as JSON.

    Parameters
    ----------
    rules
        Names of rules.
    threads
        Numbers of threads to compute with, one after the other.
    path
        Where JSON goes.
    """
    clients = Clients(_N, resnet18())
    data: tuple[Tensor | Sequence[dict[str, Tensor]], ...] = clients.matrix(), clients.states()
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for source, given in zip(SOURCES, data, strict=True):
        for name in rules:
            rule = make_rule(name)
            make = supplying(reader(clients, given), rule, clients)
            calls[name, source] = partial(_aggregate, rule, make)
    rows = [row for count in threads for row in _measured(calls, count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['rule']:20} {row['source']:12} threads {row['threads']}: "
            f"{row['seconds']:8.3f} s alone, "
            f"{row['busy_seconds']:8.3f} s beside others: × {row['times_alone']:.2f}"
        )
    print(f"Written to {path}")


def _measured(
    calls: dict[tuple[str, str], Callable[[], object]], threads: int
) -> list[dict[str, object]]:
    torch.set_num_threads(threads)
    alone = _time(calls)
    with _others():
        busy = _time(calls)
    return [
        {
            "rule": name,
            "n": _N,
            "source": source,
            "threads": threads,
            "kernels": kernels.kernels_used(),
            "seconds": alone[name, source],
            "busy_seconds": busy[name, source],
            "times_alone": busy[name, source] / alone[name, source],
            "bar": _BAR,
        }
        for name, source in calls
        if (name, source) in alone and (name, source) in busy
    ]


def _aggregate(rule: Rule, make_updates: Callable[[], Updates]) -> object:
    return rule.aggregate(make_updates())


def _time(calls: dict[tuple[str, str], Callable[[], object]]) -> dict[tuple[str, str], float]:
    found = {}
    for key, call in calls.items():
        progress(f"time: {key[0]}, {key[1]}")
        try:
            call()
        except FedimmuneError as error:
            print(f"{key[0]} is skipped ({error}).")
            continue
        seconds = []
        for _ in range(_TURNS):
            trim()
            begun = perf_counter()
            call()
            seconds.append(perf_counter() - begun)
        found[key] = median(seconds)
    return found


@contextmanager
def _others() -> Iterator[None]:
    """Keep both cores busy, at the usual priority, for as long as this lasts."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(_OTHERS)]
    try:
        sleep(1)
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()
