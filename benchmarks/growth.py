"""How time and memory grow with clients and columns; run as ``python -m benchmarks.growth``.

Rounds come from files. Prints seconds of rules on rounds of more and more clients, and of more and
more columns, beside a plain read of the same files: what no rule can do without. Writes
``build/bench-growth.json``, which ``python -m benchmarks.plots`` draws. With ``--memory``: the peak
of memory with ten thousand clients, into ``build/bench-memory.json``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.clients import Clients
from benchmarks.memory import can_measure
from benchmarks.probe import probe_files
from benchmarks.report import progress
from benchmarks.subjects import THREADS, make_rule
from fedimmune import Updates, kernels

__all__ = ["PLAIN_READ", "main"]

PLAIN_READ = "plain read"
"""Stands among the rules for adding up every file's values, which are mapped before."""

_BUILD = Path(__file__).resolve().parents[1] / "build"
_COUNTS = (10, 100, 300, 1000)
_COLUMNS = (10_000, 100_000, 1_000_000, 10_000_000)
_FEW, _USUAL = 10, 100_000
"""Clients while columns grow, and columns while clients grow."""
_LAYERS = 8
_RULES = ("mean", "median", "trimmed-mean", "geometric-median", "krum", "foolsgold", "adaptive")
_BARS = dict.fromkeys(("mean", "median", "trimmed-mean", "adaptive"), 2.0)
"""Seconds per client at the most clients, as a multiple of those at the fewest."""
_LONG = 1.0
"""What takes longer is timed once."""
_MANY, _MANY_COLUMNS = 10_000, 10_000
_MANY_RULES = (*_RULES, "multi-krum", "cosine-clustering", "clipped-clustering")
_MEMORY_BAR = 2**31


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show and write."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    if options.memory:
        rows = _measure_memory(options)
        path = _BUILD / "bench-memory.json"
    else:
        rows = _measure_time(options)
        path = _BUILD / "bench-growth.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"Written to {path.relative_to(_BUILD.parent)}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--memory", action="store_true", help="peak memory with 10,000 clients instead"
    )
    parser.add_argument("--rules", type=_names, help="only these", metavar="A,B")
    parser.add_argument(
        "--clients", type=_numbers, help="numbers of clients, ascending", metavar="N,N"
    )
    parser.add_argument(
        "--columns", type=_numbers, help="numbers of columns, ascending", metavar="D,D"
    )
    parser.add_argument(
        "--threads", type=int, default=THREADS, help=f"of PyTorch (default: {THREADS})", metavar="N"
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="count time on the processor: for a busy machine, and one thread",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=_BUILD / "bench-files",
        help="where to put 400 MB of files for a while (default: build/bench-files)",
    )
    options = parser.parse_args(arguments)
    if options.cpu and options.threads != 1:
        parser.error("--cpu needs --threads 1: threads that wait for each other take time too")
    if options.memory and not can_measure():
        parser.error("--memory: this system does not tell RssAnon")
    return options


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each.replace("_", "")) for each in text.split(","))


@contextmanager
def _files(n: int, columns: int, folder: Path) -> Iterator[list[Path]]:
    """Write a round of clients, and remove it again."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        clients = Clients(n, {f"layer{place}": (columns // _LAYERS,) for place in range(_LAYERS)})
        files = [Path(temporary) / f"client-{place:05}.safetensors" for place in range(n)]
        for place, file in enumerate(files):
            if place % 2500 == 0:
                progress(f"writing files of {columns:,} columns: {place} of {n}")
            save_file(clients.state(place), file)
        yield files


# -------------------------------------------------------------------- time


def _measure_time(options: argparse.Namespace) -> list[dict[str, object]]:
    """Time rules on rounds of more and more clients, then of more and more columns."""
    counts, sizes = options.clients or _COUNTS, options.columns or _COLUMNS
    names = (PLAIN_READ, *(options.rules or _RULES))
    clock = process_time if options.cpu else perf_counter
    rows: list[dict[str, object]] = []
    first: dict[str, float] = {}
    with _files(counts[-1], _USUAL, options.folder) as files:
        for n in counts:
            for name in names:
                row = _timed(name, files[:n], _USUAL, clock)
                each = float(str(row["seconds_per_client"]))
                row |= {"times_first": each / first.setdefault(name, each), "bar": _BARS.get(name)}
                rows.append(row)
                print(
                    f"{name:20} {n:6} clients {row['seconds']:9.4f} s, per client × "
                    f"{row['times_first']:.2f}"
                )
    for columns in sizes:
        if columns == _USUAL and _FEW in counts:
            continue  # measured above
        with _files(_FEW, columns, options.folder) as files:
            for name in names:
                rows.append(_timed(name, files, columns, clock))
                print(f"{name:20} {columns:10,} columns {rows[-1]['seconds']:9.4f} s")
    return rows


def _timed(
    name: str, files: Sequence[Path], columns: int, clock: Callable[[], float]
) -> dict[str, object]:
    progress(f"growth: {name}, {len(files)} clients, {columns:,} columns")
    call, seconds = _call(name, files), list[float]()
    while len(seconds) < (2 if seconds and seconds[0] > _LONG else 4):
        begun = clock()
        call()
        seconds.append(clock() - begun)
    best = min(seconds[1:])
    return {
        "rule": name,
        "n": len(files),
        "columns": columns,
        "threads": torch.get_num_threads(),
        "kernels": kernels.kernels_used(),
        "seconds": best,
        "seconds_per_client": best / len(files),
    }


def _call(name: str, files: Sequence[Path]) -> Callable[[], object]:
    if name == PLAIN_READ:
        mapped = [_mapped(file) for file in files]
        return lambda: [values.sum() for values in mapped]
    rule = make_rule(name)
    return lambda: rule.aggregate(Updates.from_files(files, are_updates=True))


def _mapped(file: Path) -> Tensor:
    """Return all values of a file, where they lie."""
    with file.open("rb") as opened:
        begin = 8 + int.from_bytes(opened.read(8), "little")  # its header, and how long that is
    return torch.from_numpy(np.memmap(file, np.float32, "c", begin))


# -------------------------------------------------------------------- memory


def _measure_memory(options: argparse.Namespace) -> list[dict[str, object]]:
    """Measure rules on one round of many clients, in a process of its own for each."""
    (n,), (columns,) = options.clients or (_MANY,), options.columns or (_MANY_COLUMNS,)
    rows: list[dict[str, object]] = []
    with _files(n, columns, options.folder) as files:
        for name in options.rules or _MANY_RULES:
            progress(f"memory: {name}, {n:,} clients")
            measured = probe_files(name, files[0].parent)
            if measured is None:
                continue
            seconds, peak = measured
            rows.append(
                {
                    "rule": name,
                    "n": n,
                    "columns": columns,
                    "kernels": kernels.kernels_used(),
                    "seconds": seconds,
                    "peak_rss_anon_bytes": peak,
                    "bar": _MEMORY_BAR,
                }
            )
            verdict = "ok" if peak < _MEMORY_BAR else "missed"
            print(f"{name:20} {seconds:8.1f} s  {peak / 2**30:6.2f} GiB, < 2 GiB: {verdict}")
    return rows


if __name__ == "__main__":
    main()
