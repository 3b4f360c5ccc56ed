"""`RobustStrategy` beside Flower's own strategies; run as ``python -m benchmarks.flower``.

A round of ResNet-18 by ten clients, as Flower hands it to a strategy: the bytes of 62 layers each.
Both strategies prepare a round and aggregate the same replies, in turn, in one process. Memory is
that of a process of its own, in copies of the ten updates. Prints a table and writes
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
from benchmarks.memory import AnonymousPeak, settle, trim
from benchmarks.others import Others
from benchmarks.resnet18 import resnet18, size
from fedimmune.files import write_text_atomically
from fedimmune.flower import RobustStrategy

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


PAIRS: dict[str, tuple[Callable[[], FedAvg], Callable[[], FedAvg]]] = {
    "krum": (
        lambda: Krum(num_malicious_nodes=_ATTACKERS),
        lambda: RobustStrategy(rule="krum", rule_parameters={"attackers": _ATTACKERS}),
    ),
    "median": (FedMedian, lambda: RobustStrategy(rule="median")),
    "mean": (FedAvg, lambda: RobustStrategy(rule="mean")),
}
"""By rule: Flower's own strategy, and ours."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flower", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less often")
    parser.add_argument("--memory", metavar="RULE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Threads that wait for each other on busy cores would be measured, and not the strategies.
    torch.set_num_threads(1)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    if options.memory:
        print(json.dumps(_memory(options.memory)))
        return
    often = 2 if options.quick else 5
    found: dict[str, Any] = {"clients": _CLIENTS, "values": size(resnet18()), "rules": {}}
    played = Round()
    for rule, (flowers, ours) in PAIRS.items():
        found["rules"][rule] = _times(played, flowers(), ours(), often)
    del played  # memory comes second: by then this process has given its own round back
    settle()
    for rule in PAIRS:
        found["rules"][rule] |= _in_own_process(rule)
    _show(found)
    _BUILD.mkdir(exist_ok=True)
    path = _BUILD / "bench-flower.json"
    write_text_atomically(json.dumps(found, indent=2) + "\n", path)
    print(f"Written to {path.relative_to(_BUILD.parent)}")


def _times(played: Round, flowers: FedAvg, ours: FedAvg, often: int) -> dict[str, Any]:
    """Time both in turn: neighbours in time share what else the machine is doing."""
    others = Others()
    played.play(ours)
    pairs = [(_seconds(played, flowers), _seconds(played, ours)) for _ in range(often)]
    return {
        "flower": type(flowers).__name__,
        "flower_seconds": median(pair[0] for pair in pairs),
        "seconds": median(pair[1] for pair in pairs),
        "times_flower": median(own / flower for flower, own in pairs),
        "others": others.share(),
    }


def _seconds(played: Round, strategy: FedAvg) -> float:
    trim()
    begun = perf_counter()
    played.play(strategy)
    return perf_counter() - begun


def _memory(rule: str) -> dict[str, float]:
    """Measure how much more a round takes at its peak than the replies do, in copies of those."""
    played, strategy = Round(), PAIRS[rule][1]()
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
            f"ratio {row['times_flower']:.2f}   extra copies {row['extra_copies']:.2f}"
        )


if __name__ == "__main__":
    main()
