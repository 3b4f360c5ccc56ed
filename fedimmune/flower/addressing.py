"""Messages to nodes: what is in them, and by what they are known again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

__all__ = ["Letter"]


@dataclass(frozen=True)
class Letter:
    """What all nodes of a round are sent.

    Parameters
    ----------
    kind
        Flower's type of message: to train, or to evaluate.
    number
        Of the round.
    arrays
        The global model.
    config
        For the clients.
    keys
        Names of the last two in a message.
    """

    kind: str
    number: int
    arrays: ArrayRecord
    config: Mapping[str, Any]
    keys: tuple[str, str]

    def to(self, node: int, told: Mapping[str, Any] | None = None) -> Message:
        """Address one node, which alone is told something of its own."""
        config = ConfigRecord({**self.config, **(told or {}), "server-round": self.number})
        content = RecordDict({self.keys[0]: self.arrays, self.keys[1]: config})
        # The group tells replies to this round from those to another.
        group = str(self.number)
        return Message(content=content, dst_node_id=node, message_type=self.kind, group_id=group)
