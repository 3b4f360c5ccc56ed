"""Memory of one call, measured in a process of its own that has done nothing else before.

Run by the other benchmarks as ``python -m benchmarks.probe <json>``; prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.clients import Clients
from benchmarks.memory import AnonymousPeak, settle
from benchmarks.resnet18 import first_columns, resnet18
from benchmarks.subjects import THREADS, make_rule, reader, supplying
from fedimmune import Updates

__all__ = ["probe_files", "probe_memory"]

_ROOT = Path(__file__).resolve().parents[1]


def probe_memory(rule: str, n: int, source: str, columns: int) -> int | None:
    """Return the bytes that one call takes at its peak, besides the updates; None if it failed."""
    task = {"what": "memory", "rule": rule, "n": n, "source": source, "columns": columns}
    # Nothing is timed, so threads may sleep while they wait: kinder to a busy machine.
    answer = _run(task, {"OMP_WAIT_POLICY": "passive"})
    return None if answer is None else int(answer["extra_bytes"])


def probe_files(rule: str, folder: Path) -> tuple[float, int] | None:
    """Return the seconds, and the process' highest RssAnon, of a round from files."""
    answer = _run({"what": "files", "rule": rule, "folder": str(folder.resolve())}, {})
    return None if answer is None else (answer["seconds"], int(answer["peak_rss_anon_bytes"]))


def _run(task: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, float] | None:
    command = [sys.executable, "-m", "benchmarks.probe", json.dumps(task)]
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:  # not enough memory, perhaps; the rest can still be measured
        print(f"This could not be measured (exit code {done.returncode}): {task}")
        return None
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _memory(rule: str, n: int, source: str, columns: int) -> dict[str, float]:
    clients = Clients(n, first_columns(resnet18(), columns))
    make_updates = reader(clients, clients.matrix() if source == "matrix" else clients.states())
    subject = make_rule(rule)
    make_updates = supplying(make_updates, subject, clients)
    del clients
    _start_threads()
    settle()  # what was freed by now is gone: the rule cannot be handed any of it unnoticed
    with AnonymousPeak() as memory:
        result = subject.aggregate(make_updates())
    del result  # until here: the result counts as extra
    return {"extra_bytes": memory.extra}


def _files(rule: str, folder: str) -> dict[str, float]:
    files = sorted(Path(folder).glob("*.safetensors"))
    _start_threads()
    with AnonymousPeak(unmaps_files=True) as memory:
        begun = perf_counter()
        result = make_rule(rule).aggregate(Updates.from_files(files, are_updates=True))
        seconds = perf_counter() - begun
    del result
    return {"seconds": seconds, "peak_rss_anon_bytes": memory.peak}


def _start_threads() -> None:
    """Have threads made and compiled loops loaded, which belong to no round."""
    torch.ones(2, 100_000).mean(0)
    for name in ("mean", "median", "krum", "residual"):
        make_rule(name).aggregate(torch.randn(5, 100))


def main() -> None:
    """Carry out one task."""
    torch.set_num_threads(THREADS)
    task = json.loads(sys.argv[1])
    measure = _files if task.pop("what") == "files" else _memory
    print(json.dumps(measure(**task)))


if __name__ == "__main__":
    main()
