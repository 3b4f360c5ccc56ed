"""How time grows with the number of clients: rounds from files, few columns, many clients."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
from safetensors.torch import save_file

from benchmarks.clients import Clients
from benchmarks.report import progress
from benchmarks.subjects import make_rule
from fedimmune import Updates, kernels

__all__ = ["measure_growth"]

_COUNTS = (10, 100, 300, 1000)
_SHAPES = {f"layer{place}": (12_500,) for place in range(8)}
_RULES = ("mean", "median", "trimmed-mean", "geometric-median", "krum", "foolsgold", "adaptive")
_BARS = dict.fromkeys(("mean", "median", "trimmed-mean", "adaptive"), 2.0)
"""Seconds per client at the most clients, as a multiple of those at the fewest."""
_LONG = 1.0
"""What takes longer is timed once."""


def measure_growth(path: Path, folder: Path, *, cpu: bool) -> None:
    """Time rules on rounds of more and more clients, print and write seconds per client.

    Parameters
    ----------
    path
        Where JSON goes.
    folder
        Where files are put for a while.
    cpu
        Whether to count time on the processor.
    """
    clock = process_time if cpu else perf_counter
    rows: list[dict[str, object]] = []
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        clients = Clients(_COUNTS[-1], _SHAPES)
        files = [Path(temporary) / f"client-{place:04}.safetensors" for place in range(clients.n)]
        for place, file in enumerate(files):
            save_file(clients.state(place), file)
        first: dict[str, float] = {}
        for n in _COUNTS:
            for name in _RULES:
                progress(f"growth: {name}, {n} clients")
                rule, seconds = make_rule(name), list[float]()
                while len(seconds) < (2 if seconds and seconds[0] > _LONG else 4):
                    begun = clock()
                    rule.aggregate(Updates.from_files(files[:n], are_updates=True))
                    seconds.append(clock() - begun)
                best = min(seconds[1:])
                each = best / n
                row = {
                    "rule": name,
                    "n": n,
                    "columns": sum(size for (size,) in _SHAPES.values()),
                    "threads": torch.get_num_threads(),
                    "kernels": kernels.kernels_used(),
                    "seconds": best,
                    "seconds_per_client": each,
                    "times_first": each / first.setdefault(name, each),
                    "bar": _BARS.get(name),
                }
                rows.append(row)
                print(f"{name:20} {n:5} {best:9.4f} s, per client × {row['times_first']:.2f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"Written to {path}")
