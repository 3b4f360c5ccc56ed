"""A round from files that is larger than what the process may take of memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save_file

from benchmarks.clients import Clients
from benchmarks.memory import can_measure
from benchmarks.probe import probe_files
from benchmarks.report import progress
from benchmarks.resnet18 import resnet18, size
from benchmarks.rows import Row

__all__ = ["RULES", "measure_files"]

RULES = ("krum", "median")
_N = 100
_SPARE = 1.1
"""How much more room than the files need there has to be."""


def measure_files(rules: Iterable[str], folder: Path) -> list[Row]:
    """Aggregate a round from files, in a process of its own for each rule.

    Parameters
    ----------
    rules
        Names of rules.
    folder
        Where the files are put; they are removed afterwards.
    """
    if not can_measure():
        progress("files: skipped, this system does not tell RssAnon")
        return []
    rules = list(rules)
    if not rules:
        return []
    columns = size(resnet18())
    needed = int(_SPARE * 4 * columns * _N)
    with _made(folder):
        free = shutil.disk_usage(folder).free
        if free < needed:
            progress(f"files: skipped, {needed / 1e9:.1f} GB needed and {free / 1e9:.1f} GB free")
            return []
        with TemporaryDirectory(dir=folder) as temporary:
            _write_files(Path(temporary))
            rows = [_measure(rule, columns, Path(temporary)) for rule in rules]
            return [row for row in rows if row is not None]


def _measure(rule: str, columns: int, folder: Path) -> Row | None:
    progress(f"files: {rule}, {_N} clients")
    measured = probe_files(rule, folder)
    if measured is None:
        return None
    seconds, peak = measured
    return Row(rule, _N, "files", columns, seconds, peak_rss_anon_bytes=peak)


def _write_files(folder: Path) -> None:
    clients = Clients(_N, resnet18())
    for index in range(_N):
        if index % 20 == 0:
            progress(f"files: writing {index} of {_N}")
        save_file(clients.state(index), folder / f"client-{index:03}.safetensors")


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder, and remove it again if it was not there before."""
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if not was_there:
            folder.rmdir()
