"""A server that plays rounds by several strategies in turn, and writes down where seconds go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedimmune.flower import RobustStrategy
from fedimmune.io import load_mapped, write_text_atomically

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play a first round that does not count, in which Ray starts; then all in turn."""
    config = context.run_config
    tensors = load_mapped(Path(str(config["model"])))
    model = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in tensors.items()})
    krum = {"attackers": int(config["attackers"])}
    strategies: dict[str, Any] = {
        "FedAvg": TimedFedAvg(fraction_evaluate=0.0),
        "mean": _timed(rule="mean"),
        "krum": _timed(rule="krum", rule_parameters=krum),
        "median": _timed(rule="median"),
        "adaptive": _timed(rule="adaptive"),
    }
    strategies["mean"].start(grid, model, num_rounds=1)
    rows = []
    for _ in range(int(config["rounds"])):
        for name, strategy in strategies.items():
            strategy.start(grid, model, num_rounds=1)
            rows.append({"strategy": name, **strategy.seconds})
    write_text_atomically(json.dumps(rows), Path(str(config["found"])))


class Timed(FedAvg):
    """Notes how long preparing, waiting for replies and aggregating took in the last round."""

    seconds: dict[str, float]
    _sent = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        began = time.perf_counter()
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._sent = time.perf_counter()
        self.seconds = {"preparing": self._sent - began}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        began = time.perf_counter()
        received = list(replies)
        arrays, metrics = super().aggregate_train(server_round, received)
        ended = time.perf_counter()
        own = [reply.content.metric_records["metrics"]["seconds"] for reply in received]
        self.seconds |= {
            "waiting": began - self._sent,
            "aggregating": ended - began,
            "clients": sum(float(str(spent)) for spent in own),
        }
        return arrays, metrics


class TimedFedAvg(Timed, FedAvg):
    """Flower's own."""


class TimedRobust(Timed, RobustStrategy):
    """Ours."""


def _timed(**options: Any) -> TimedRobust:
    return TimedRobust(fraction_evaluate=0.0, **options)
