"""A client: trains the model that it is sent on its own data; some of them attack."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedimmune import attacks
from fedimmune.errors import InputError
from fedimmune.flower import verdict_of
from fedimmune.kernels import num_threads
from fedimmune.simulation.client import train_client, write_update
from fedimmune.simulation.seeding import generator
from fedimmune_app.setting import Setting, setting_of

_log = logging.getLogger("flwr")

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for a round, and send the model back."""
    setting = setting_of(context.run_config)
    client = _number(context, setting)
    attack = setting.attack if client in setting.attackers else attacks.get("none")
    told = verdict_of(message)
    if told is not None and told["verdict"] == "suspected":
        _log.warning("client %d is told: %s", client, told)

    start = message.content.array_records["arrays"].to_torch_state_dict()
    round_number = int(str(message.content.config_records["config"]["server-round"]))
    with num_threads(1):  # many clients share one machine here
        trained = _train(setting, client, attack, start, round_number)

    reply = RecordDict(
        {
            "arrays": ArrayRecord(trained),
            "metrics": MetricRecord({"num-examples": len(setting.parts[client])}),
            # For the comparison with the truth; a real client would not say which it is.
            "client": ConfigRecord({"partition-id": client}),
        }
    )
    return Message(content=reply, reply_to=message)


def _number(context: Context, setting: Setting) -> int:
    """Which client this node is: Flower's simulation says so, in a deployment its operator."""
    held, parts = setting.scenario.clients, context.node_config.get("num-partitions")
    if parts is not None and parts != held:
        raise InputError(
            f"the run has clients={held}, but this node belongs to a federation of {parts}: start "
            f"the run with -c clients={parts}"
        )
    number = context.node_config.get("partition-id")
    if not isinstance(number, int) or not 0 <= number < held:
        raise InputError(
            f"this node does not know which of {held} clients it is: start it with --node-config "
            f'"partition-id=N num-partitions={held}", N from 0 to {held - 1}'
        )
    return number


def _train(
    setting: Setting,
    client: int,
    attack: attacks.Attack,
    start: Mapping[str, Tensor],
    round_number: int,
) -> dict[str, Tensor]:
    model: nn.Module = setting.task.model(setting.data)
    model.load_state_dict(start)
    told = attacks.Context(
        setting.data.spec,
        round_number,
        start,
        generator(setting.scenario.seed, "attack", round_number, client),
    )
    train_client(
        model,
        setting.task,
        setting.data.clients,
        setting.parts[client],
        setting.scenario,
        client=client,
        attack=attack,
        context=told,
    )
    if not attack.overrides("on_update"):
        return model.state_dict()
    update = {name: torch.empty_like(tensor) for name, tensor in start.items()}
    write_update(model, start, update)
    attack.on_update(update, told)
    return {name: tensor + update[name] for name, tensor in start.items()}
