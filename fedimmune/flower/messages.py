"""A grid whose messages one client cannot spoil for all."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.app.message.message import make_message
from flwr.serverapp import Grid

__all__ = ["UNREADABLE", "WatchfulGrid"]

_log = logging.getLogger("flwr")

UNREADABLE = 20_001
"""The code of our own error for a reply that Flower cannot read; Flower's own codes are small."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
"""Seconds between two requests: a tenth of the wait so far, so that a round takes at most a tenth
longer, within the limits that Flower has for simulations and deployments."""
_REMEMBERED = 10_000
"""At most this many unanswered messages are asked about."""


class WatchfulGrid(Grid):
    """Another grid, whose replies are fetched one by one.

    Flower fetches the replies of all clients in one call, and an object that it cannot read makes
    that call raise: the run ends and everybody's work is lost. Fetched one by one, it is an error
    of the one client that sent it.

    Replies to messages of earlier rounds are fetched too, so that late clients can be told from
    those that are gone; nothing waits for them.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._unanswered: dict[str, Message] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, for `timeout` seconds at most."""
        sent = list(messages)
        if not sent:
            return []
        ids = list(self._grid.push_messages(sent))
        waiting = {key: message for key, message in zip(ids, sent, strict=False) if key}
        replies = self._wait(waiting, timeout)
        if any(message.metadata.message_type == MessageType.TRAIN for message in sent):
            replies += self._fetch(self._unanswered)
            # Without content: a model is not kept for clients that never answer.
            for key, message in waiting.items():
                self._unanswered[key] = make_message(message.metadata, RecordDict())
            for key in list(self._unanswered)[:-_REMEMBERED]:
                del self._unanswered[key]
        return replies

    def _wait(self, waiting: dict[str, Message], timeout: float | None) -> list[Message]:
        """Fetch until all have answered or time is up; the unanswered stay in `waiting`."""
        began, replies = time.monotonic(), list[Message]()
        while True:
            replies += self._fetch(waiting)
            waited = time.monotonic() - began
            if not waiting or (timeout is not None and waited >= timeout):
                return replies
            pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, waited / 10))
            time.sleep(pause if timeout is None else min(pause, timeout - waited))

    def _fetch(self, waiting: dict[str, Message]) -> list[Message]:
        """Fetch what there is, and cross it off."""
        replies: list[Message] = []
        for key, message in list(waiting.items()):
            try:
                found = list(self._grid.pull_messages([key]))
            except Exception as error:
                if _is_of_the_link(error):
                    raise  # the SuperLink is gone, which is not a client's fault
                _log.warning("a reply of node %d cannot be read", message.metadata.dst_node_id)
                problem = Error(UNREADABLE, f"{type(error).__name__}: {error}")
                found = [Message(problem, reply_to=message)]
            if found:
                del waiting[key]
                replies += found
        return replies


def _is_of_the_link(error: Exception) -> bool:
    """Whether an error is about the connection to the SuperLink, not about what a client sent."""
    module = type(error).__module__.partition(".")[0]
    of_network = isinstance(error, ConnectionError | TimeoutError)
    return of_network or module in {"httpx", "httpcore", "grpc"}
