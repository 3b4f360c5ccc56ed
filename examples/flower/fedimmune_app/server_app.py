"""The server: any rule of fedimmune's, tested after every round on data of its own."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from torch.utils.data import DataLoader, TensorDataset

from fedimmune.errors import InputError
from fedimmune.flower import RobustStrategy, anchor_for
from fedimmune.flower.anchor import Anchor
from fedimmune.kernels import num_threads
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import ClientData
from fedimmune.simulation.client import PIECE, Counts, test_piece
from fedimmune.simulation.seeding import generator, seeded
from fedimmune.tasks import build_model
from fedimmune_app.setting import Setting, setting_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds."""
    config = context.run_config
    setting = setting_of(config)
    scenario = setting.scenario
    with seeded(scenario.seed, "model"):
        model = build_model(setting.task, setting.data)

    strategy = _Watched(
        rule=str(config["rule"]),
        defense=str(config["defense"]) or None,
        rule_parameters=_parameters(str(config["rule-parameters"])),
        anchor=_anchor(setting) if config["defense"] else None,
        runs=str(config["runs"]) or None,
        name=str(config["name"]) or None,
        about={key: config[key] for key in ("task", "attack", "attackers", "clients", "seed")},
        timeout=float(config["timeout"]),
        min_train_nodes=int(config["min-nodes"]),
        min_available_nodes=int(config["min-nodes"]),
        fraction_evaluate=0.0,  # the server tests the model itself
    )
    _wait_for_all(grid, scenario.clients, float(config["timeout"]))
    with num_threads(1):
        strategy.start(
            grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            num_rounds=scenario.rounds,
            evaluate_fn=lambda _, arrays: _test(setting, arrays),
        )
    if config["runs"] and config["name"]:
        _write_truth(setting, strategy.clients, Path(str(config["runs"])) / str(config["name"]))


class _Watched(RobustStrategy):
    """Also hears from the nodes which client each of them is, to hold verdicts against the truth.

    No rule is told. A server app of your own needs nothing of the kind: `RobustStrategy` will do.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.clients: dict[int, int] = {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        for reply in received:
            said = reply.content.config_records.get("client") if reply.has_content() else None
            if said is not None:
                self.clients[reply.metadata.src_node_id] = int(str(said["partition-id"]))
        return super().aggregate_train(server_round, received)


def _write_truth(setting: Setting, clients: Mapping[int, int], run: Path) -> None:
    """Write down which node had which data, and whether it attacked: the report shows it."""
    labels, classes = setting.data.clients.labels, setting.data.classes
    RunFolder(run).keep_partition(
        tuple(
            ClientData(
                client=str(node),
                is_attacker=client in setting.attackers,
                samples=tuple(labels[setting.parts[client]].bincount(minlength=classes).tolist()),
            )
            for node, client in sorted(clients.items())
        )
    )


def _parameters(text: str) -> dict[str, Any]:
    """Read ``attackers=3 keep=4``."""
    try:
        return tomllib.loads("\n".join(text.split()))
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f'rule-parameters are written like "attackers=3 keep=4", not {text!r}: {error}'
        ) from None


def _anchor(setting: Setting) -> Anchor | None:
    """Give what makes the server's own update, trained as clients train."""
    scenario, samples = setting.scenario, setting.anchor
    if not len(samples):
        return None
    loader = DataLoader(
        TensorDataset(samples.inputs, samples.labels),
        batch_size=min(scenario.batch, len(samples)),
        shuffle=True,
        drop_last=True,
        generator=generator(scenario.seed, "batches of the server"),
    )
    return anchor_for(
        setting.task.model(setting.data),
        loader,
        lr=scenario.optimizer.lr,
        momentum=scenario.optimizer.momentum,
        epochs=scenario.local_epochs,
    )


def _wait_for_all(grid: Grid, clients: int, patience: float) -> None:
    """Wait until every node is there: a first round without some of them would be unfair.

    Only at the start: later on the strategy goes on with those that are left.
    """
    until = time.monotonic() + patience
    while len(found := list(grid.get_node_ids())) < clients:
        if time.monotonic() > until:
            raise InputError(
                f"{len(found)} of {clients} nodes have come in {patience:g} seconds: start the "
                "others, or set clients to as many as there are"
            )
        time.sleep(1)


def _test(setting: Setting, arrays: ArrayRecord) -> MetricRecord:
    """Test a model, and how far the attack has come with it."""
    model = setting.task.model(setting.data)
    model.load_state_dict(arrays.to_torch_state_dict())
    counts = sum(
        (
            test_piece(
                model,
                setting.task,
                setting.tested,
                torch.arange(start, min(start + PIECE, len(setting.tested))),
                setting.attack,
                setting.data.spec,
                torch.device("cpu"),
            )
            for start in range(0, len(setting.tested), PIECE)
        ),
        Counts(),
    )
    found = {
        "accuracy": counts.accuracy,
        "loss": counts.mean_loss,
        "asr": counts.asr,
        "asr_others": counts.asr_others,
    }
    return MetricRecord({name: value for name, value in found.items() if value is not None})
