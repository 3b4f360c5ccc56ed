"""`RobustStrategy` beside Flower's own strategies; run as ``python -m benchmarks.flower``.

A round of ResNet-18 by ten clients, as Flower hands it to a strategy: the bytes of 62 layers each.
Both strategies prepare a round and aggregate the same replies, in turn, in one process; ours also
with two of PyTorch's threads in place of one, which depends on what else the machine does. Memory
is that of a process of its own, in copies of the ten updates. Then whole rounds of the same size in
Flower's simulation, by clients that train nothing. Prints tables and writes
``build/bench-flower.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian, Krum
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.clients import Clients
from benchmarks.flower_rounds import in_simulation
from benchmarks.memory import AnonymousPeak, settle, trim
from benchmarks.others import Others
from benchmarks.resnet18 import resnet18, size
from fedimmune.flower import RobustStrategy
from fedimmune.io import write_text_atomically

_BUILD = Path(__file__).resolve().parents[1] / "build"
_CLIENTS = 10
_ATTACKERS = 3


class Nodes:
    """A grid that only knows its nodes: replies are made by hand."""

    def get_node_ids(self) -> Iterable[int]:
        return range(1, _CLIENTS + 1)


class Round:
    """The global model and what ten clients made of it, as Flower has them."""

    def __init__(self) -> None:
        clients = Clients(_CLIENTS, resnet18())
        self.start = ArrayRecord({n: Array(t.numpy()) for n, t in clients.state(0).items()})
        self._sent = [
            {name: Array(tensor.numpy()) for name, tensor in clients.state(index).items()}
            for index in range(_CLIENTS)
        ]

    def play(self, strategy: FedAvg) -> None:
        """Have a strategy prepare a round and aggregate the replies."""
        grid: Any = Nodes()
        messages = strategy.configure_train(1, self.start, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(1, [self._reply(message) for message in messages])
        assert arrays is not None

    def _reply(self, message: Message) -> Message:
        # The record is new (FedMedian takes arrays out of it), the bytes are the same.
        arrays = ArrayRecord(self._sent[message.metadata.dst_node_id - 1])
        metrics = MetricRecord({"num-examples": 100, "loss": 0.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


PARAMETERS: dict[str, dict[str, Any]] = {
    "krum": {"attackers": _ATTACKERS},
    "median": {},
    "mean": {},
}
"""Of the rules that are measured."""

FLOWERS: dict[str, Callable[[], FedAvg]] = {
    "krum": lambda: Krum(num_malicious_nodes=_ATTACKERS),
    "median": FedMedian,
    "mean": FedAvg,
}
"""Flower's own strategy, by rule."""


def ours(rule: str, threads: int = 1) -> RobustStrategy:
    return RobustStrategy(rule=rule, rule_parameters=PARAMETERS[rule], threads=threads)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flower", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less often")
    parser.add_argument("--memory", metavar="RULE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    if options.memory:
        print(json.dumps(_memory(options.memory)))
        return
    often = 2 if options.quick else 5
    found: dict[str, Any] = {"clients": _CLIENTS, "values": size(resnet18()), "rules": {}}
    played = Round()
    for rule in PARAMETERS:
        found["rules"][rule] = _times(played, rule, often)
    del played  # memory comes second: by then this process has given its own round back
    settle()
    for rule in PARAMETERS:
        found["rules"][rule] |= _in_own_process(rule)
    found["simulation"] = in_simulation(_BUILD / "bench-flower", _CLIENTS, _ATTACKERS, often)
    _show(found)
    _BUILD.mkdir(exist_ok=True)
    path = _BUILD / "bench-flower.json"
    write_text_atomically(json.dumps(found, indent=2) + "\n", path)
    print(f"Written to {path.relative_to(_BUILD.parent)}")


def _times(played: Round, rule: str, often: int) -> dict[str, Any]:
    """Time all in turn: neighbors in time share what else the machine is doing."""
    others, strategies = Others(), (FLOWERS[rule](), ours(rule), ours(rule, threads=2))
    played.play(strategies[1])
    timed = [[_seconds(played, each) for each in strategies] for _ in range(often)]
    return {
        "flower": type(strategies[0]).__name__,
        "flower_seconds": median(flower for flower, _, _ in timed),
        "seconds": median(own for _, own, _ in timed),
        "times_flower": median(own / flower for flower, own, _ in timed),
        "two_threads_times_one": median(two / own for _, own, two in timed),
        "others": others.share(),
    }


def _seconds(played: Round, strategy: FedAvg) -> float:
    trim()
    begun = perf_counter()
    played.play(strategy)
    return perf_counter() - begun


def _memory(rule: str) -> dict[str, float]:
    """Measure how much more a round takes at its peak than the replies do, in copies of those."""
    played, strategy = Round(), ours(rule)
    torch.ones(2, 100_000).mean(0)  # has PyTorch make its threads, which belong to no strategy
    settle()
    with AnonymousPeak() as memory:
        played.play(strategy)
    return {"extra_copies": memory.extra / (4 * size(resnet18()) * _CLIENTS)}


def _in_own_process(rule: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.flower", "--memory", rule]
    done = subprocess.run(command, cwd=_BUILD.parent, stdout=subprocess.PIPE, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _show(found: dict[str, Any]) -> None:
    print(f"{_CLIENTS} clients, {found['values']:,} values each")
    for rule, row in found["rules"].items():
        flowers = f"{row['flower']:<9} {row['flower_seconds']:6.2f} s"
        print(
            f"  {rule:<7} {row['seconds']:6.2f} s   {flowers}   "
            f"ratio {row['times_flower']:.2f}   extra copies {row['extra_copies']:.2f}   "
            f"two threads × {row['two_threads_times_one']:.2f}"
        )
    print("whole rounds in Flower's simulation: seconds of waiting, and the strategy's own")
    for name, row in found["simulation"].items():
        own = row["preparing"] + row["aggregating"]
        print(f"  {name:<9} {row['waiting']:6.2f} s {own:6.2f} s   share {row['share']:.0%}")


if __name__ == "__main__":
    main()
