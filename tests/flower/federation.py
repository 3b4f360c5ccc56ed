"""A federation of hand-made clients: a model, a grid without a network, honest and odd replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from torch import Tensor

from fedimmune.flower import RobustStrategy

Client = Callable[[Message], Iterable[Message]]
"""Answers a message: with one reply, with none, or with several."""


def first_model() -> dict[str, Tensor]:
    """Parameters of two widths, a buffer, a variance and a counter, in no special order."""
    random = torch.Generator().manual_seed(3)
    return {
        "z.weight": torch.randn(4, 3, generator=random),
        "a.bias": torch.randn(4, generator=random),
        "norm.running_mean": torch.randn(4, generator=random),
        "norm.running_var": torch.rand(4, generator=random) + 0.5,
        "norm.num_batches_tracked": torch.tensor(7),
        "half.weight": torch.randn(5, generator=random).half(),
        "scale": torch.tensor(0.5, dtype=torch.float64),
    }


def trained(start: Mapping[str, Tensor], seed: int, step: float = 0.1) -> dict[str, Tensor]:
    """Give what a client makes of a model: a common direction, and some of its own."""
    common = torch.Generator().manual_seed(1)
    own = torch.Generator().manual_seed(1000 + seed)
    changed = {}
    for name, tensor in start.items():
        if not tensor.is_floating_point():
            changed[name] = tensor + 5
            continue
        noise = torch.randn(tensor.shape, generator=common) + 0.3 * torch.randn(
            tensor.shape, generator=own
        )
        moved = tensor + step * noise.to(tensor.dtype)
        changed[name] = moved.abs() if name.endswith("var") else moved
    return changed


def state_of(message: Message) -> dict[str, Tensor]:
    """The model in a message."""
    record = next(iter(message.content.array_records.values()))
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def config_of(message: Message) -> ConfigRecord:
    return next(iter(message.content.config_records.values()))


def content_of(state: Mapping[str, Tensor], metrics: Mapping[str, Any] | None = None) -> RecordDict:
    """What an honest client answers with."""
    figures: dict[str, Any] = {"num-examples": 10, "loss": 0.5} if metrics is None else {**metrics}
    arrays = {name: Array(tensor.numpy()) for name, tensor in state.items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(figures)})


def reply(message: Message, content: RecordDict) -> Message:
    return Message(content, reply_to=message)


def honest(seed: int, step: float = 0.1) -> Client:
    def answer(message: Message) -> list[Message]:
        return [reply(message, content_of(trained(state_of(message), seed, step)))]

    return answer


def altering(change: Callable[[dict[str, Tensor]], Any], seed: int = 77) -> Client:
    """A client whose model is changed, in place or into another one."""

    def answer(message: Message) -> list[Message]:
        state = trained(state_of(message), seed)
        given = change(state)
        return [reply(message, content_of(state if given is None else given))]

    return answer


def answering(make: Callable[[dict[str, Tensor]], RecordDict], seed: int = 77) -> Client:
    """A client whose whole reply is made from its trained model."""

    def answer(message: Message) -> list[Message]:
        return [reply(message, make(trained(state_of(message), seed)))]

    return answer


def failing(code: int = 2, reason: str = "it broke") -> Client:
    return lambda message: [Message(Error(code, reason), reply_to=message)]


def silent(_: Message) -> list[Message]:
    return []


def robust(**options: Any) -> RobustStrategy:
    """A strategy that has no client test the model, by default of the rule ``median``."""
    return RobustStrategy(**{"rule": "median", "fraction_evaluate": 0.0, **options})


class FakeGrid(Grid):
    """A grid whose nodes are functions.

    Parameters
    ----------
    clients
        By node id.
    """

    def __init__(self, clients: Mapping[int, Client]) -> None:
        self.clients = dict(clients)
        self.sent: list[Message] = []
        self.replies: dict[str, list[Message]] = {}
        self.unreadable: set[int] = set()
        self._ids: Iterator[int] = itertools.count(1)

    def set_run(self, run: Any) -> None:
        raise AssertionError

    @property
    def run(self) -> Any:
        raise AssertionError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise AssertionError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            key = f"message {next(self._ids)}"
            message.metadata.__dict__["_message_id"] = key
            self.sent.append(message)
            node = message.metadata.dst_node_id
            self.replies[key] = list(self.clients[node](message))
            ids.append(key)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for key in message_ids:
            for message in self.sent:
                about = message.metadata
                if about.message_id == key and about.dst_node_id in self.unreadable:
                    raise ValueError("malformed object")
            found += self.replies.pop(key, [])
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        ids = list(self.push_messages(messages))
        return [one for key in ids for one in self.pull_messages([key])]

    def told(self, node: int) -> list[ConfigRecord]:
        """The configs that were sent to a node."""
        return [config_of(m) for m in self.sent if m.metadata.dst_node_id == node]


def group(count: int, **odd: Client) -> dict[int, Client]:
    """Honest clients 100, 101, …, and others after them."""
    nodes: Sequence[Client] = [*(honest(seed) for seed in range(count)), *odd.values()]
    return {100 + number: client for number, client in enumerate(nodes)}


def arrays_of(model: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in model.items()})


def is_same(one: ArrayRecord, other: ArrayRecord) -> bool:
    """Names, order, dtypes, shapes and every bit."""
    return list(one) == list(other) and all(
        (one[n].dtype, one[n].shape) == (other[n].dtype, other[n].shape)
        and one[n].numpy().tobytes() == other[n].numpy().tobytes()
        for n in one
    )


def is_finite(record: ArrayRecord) -> bool:
    return all(bool(np.isfinite(array.numpy()).all()) for array in record.values())
