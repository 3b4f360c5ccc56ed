"""The replies of a round, each checked by itself: no client can spoil another's.

A client that raised or did not answer has *failed*; one whose answer is to an earlier round is
*late*; one whose answer cannot be used is *rejected*. None of these is an accusation: that is for
rules, which see only what is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Error, Message, Metadata, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedimmune._layers import shown
from fedimmune.errors import InputError
from fedimmune.flower.arrays import values_of
from fedimmune.flower.messages import UNREADABLE
from fedimmune.flower.metrics import check_metrics, odd_metrics
from fedimmune.updates import Updates

__all__ = ["OpenRound", "Replies", "one_line"]

_ERRORS = {
    1: "its client app could not be loaded",
    2: "its client app raised an error",
    3: "its message or its reply was lost",
    4: "its reply came after its time was over",
    5: "the node is gone",
    6: "a mod of its client app refused",
    7: "it could not install the app",
    8: "its client app crashed",
}
"""Flower's error codes in words."""
_MOST_TEXT = 200


@dataclass(frozen=True)
class OpenRound:
    """What a round began with.

    Parameters
    ----------
    number
        The round, from 1; a resumed run continues to count.
    arrays, model
        The global model that was sent, as Flower has it and as tensors.
    sent
        What was sent, by node id: the message's metadata, whose id Flower fills in.
    began
        When, by `time.perf_counter`.
    anchor
        The server's own update of the model, if the rule wants it.
    """

    number: int
    arrays: ArrayRecord
    model: Mapping[str, Tensor]
    sent: Mapping[int, Metadata]
    began: float
    anchor: Mapping[str, Tensor] | None = None


@dataclass
class Replies:
    """The replies of a round, sorted; nothing that a client sends makes this raise.

    Parameters
    ----------
    opened
        What the round began with.
    count_key
        Name of the metric with a client's sample count; None if counts are not used.
    most_samples
        The most samples that a client may count for.

    Attributes
    ----------
    states
        What can be used, by node id: values by layer name, views of what came.
    contents, samples
        The whole replies of the same nodes, and their sample counts if they are believed.
    rejected, failed, late
        Why all others cannot be used, by node id.
    extra
        Number of further replies of a node, which do not count.
    """

    opened: OpenRound
    count_key: str | None
    most_samples: int
    states: dict[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    contents: dict[int, RecordDict] = field(default_factory=dict)
    samples: dict[int, float] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)
    extra: Counter[int] = field(default_factory=Counter)
    _stray: dict[int, str] = field(default_factory=dict)
    """What came under a node's id and is not an answer; it matters if nothing else came."""

    def sort(self, replies: Iterable[Message], waited: float) -> None:
        """Sort what came back.

        Parameters
        ----------
        replies
            As Flower hands them over, in any order.
        waited
            Seconds that clients had.
        """
        given, sent = list(replies), self.opened.sent
        asked = {about.message_id: node for node, about in sent.items() if about.message_id}
        if not any(_answered(reply) in asked for reply in given):
            asked = {}  # a grid that gives messages other ids: senders are taken at their word
        for reply in given:
            try:
                self._sort(reply, asked)
            except Exception as error:  # what a client sent cannot even be inspected
                node = _node_of(reply)
                if node is not None:
                    self._stray.setdefault(node, f"cannot be read: {one_line(repr(error))}")
        for node, reason in odd_metrics(self.contents).items():
            for taken in (self.states, self.contents, self.samples):
                taken.pop(node, None)
            self.rejected[node] = reason
        for node, reason in self._stray.items():
            if not self._heard(node):
                self.rejected[node] = reason
        for node in sent:
            if self._heard(node):
                self.late.pop(node, None)
            elif node not in self.late:
                self.failed[node] = f"no reply within {waited:.0f} s"

    def updates(self) -> Updates:
        """Return them as updates of the global model that was sent; nothing is copied.

        Clients are in the order of their ids: that in which replies arrive must not change a bit.
        """
        states, anchor = dict(sorted(self.states.items())), self.opened.anchor
        updates = Updates.from_models(states, self.opened.model, samples=self.samples or None)
        updates = updates.reject(self.rejected)
        return updates if anchor is None else updates.with_anchor(anchor)

    def notes(self) -> dict[int, str]:
        """Return what else there is to say of clients."""
        return {node: f"sent {more + 1} replies; one counts" for node, more in self.extra.items()}

    def _heard(self, node: int) -> bool:
        """Whether a reply to this round came, of whatever kind."""
        return node in self.states or node in self.rejected or node in self.failed

    def _sort(self, reply: Message, asked: Mapping[str, int]) -> None:
        about, number, is_error = reply.metadata, self.opened.number, reply.has_error()
        node, addressee = about.src_node_id, asked.get(about.reply_to_message_id)
        if is_error and node not in self.opened.sent and addressee is not None:
            # If a node is gone, the SuperLink answers for it, under its own id.
            self._take_error(addressee, reply.error)
        elif not is_error and _is_earlier(about.group_id, number):
            early = f"its reply to round {about.group_id} came in round {number}"
            self.late.setdefault(node, early)
        elif node not in self.opened.sent:
            if not is_error:
                self._stray.setdefault(node, "was not asked in this round")
        elif (asked and addressee != node) or about.group_id not in {"", str(number)}:
            # Nobody may spoil another's answer by its id: what is not an answer does not count.
            self._stray.setdefault(node, "answered something that it was not asked")
        elif is_error:
            self._take_error(node, reply.error)
        elif self._heard(node):
            self.extra[node] += 1
        else:
            self._take(node, reply.content)

    def _take(self, node: int, content: RecordDict) -> None:
        try:
            state = _state_in(content, self.opened.model)
            samples = None if self.count_key is None else _samples_in(content, self.count_key)
            check_metrics(content)
        except InputError as error:
            self.rejected[node] = str(error)
            return
        self.states[node], self.contents[node] = state, content
        if samples is not None:
            self.samples[node] = float(min(samples, self.most_samples))

    def _take_error(self, node: int, error: Error) -> None:
        said, known = one_line(error.reason or ""), _ERRORS.get(error.code, f"error {error.code}")
        if self._heard(node):
            self.extra[node] += 1
        elif error.code == UNREADABLE:
            self.rejected[node] = f"cannot be read: {said}"
        else:
            self.failed[node] = f"{known}: {said}" if said else known


def _state_in(content: RecordDict, model: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Read a reply's arrays; what `Updates` compares anyway (layers, shapes) is left to it."""
    records = list(content.array_records.values())
    if not records:
        raise InputError("sent no arrays")
    if len(records) > 1:
        raise InputError(f"sent {len(records)} sets of arrays, expected one")
    state: dict[str, NDArray[Any]] = {}
    for name, array in records[0].items():
        try:
            values = values_of(array)
        except InputError as error:
            raise InputError(f"layer {shown(name)} {error}") from error
        if name in model:
            expected = str(model[name].dtype).removeprefix("torch.")
            if values.dtype != np.dtype(expected):
                raise InputError(f"layer {shown(name)} holds {values.dtype}, expected {expected}")
        state[name] = values
    return state


def _samples_in(content: RecordDict, key: str) -> float:
    """Read how many samples a client claims."""
    claims = [record[key] for record in content.metric_records.values() if key in record]
    if not claims:
        raise InputError(f"sent no {key}, by which clients are weighed")
    claim = claims[0]
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        raise InputError(f"its {key} is not a number")
    if not math.isfinite(claim) or claim < 1:
        raise InputError(f"its {key} is not a number from 1 on: {one_line(claim, 40)}")
    return claim


def _is_earlier(said: str, number: int) -> bool:
    return said.isascii() and said.isdecimal() and len(said) < 10 and int(said) < number


def _answered(reply: Any) -> Any:
    """Return the id of the message that a reply is to."""
    return getattr(getattr(reply, "metadata", None), "reply_to_message_id", None)


def _node_of(reply: Any) -> int | None:
    try:
        node = reply.metadata.src_node_id
    except Exception:
        return None
    return node if isinstance(node, int) else None


def one_line(text: object, length: int = _MOST_TEXT) -> str:
    """Show any text on one line: printable, and not too long."""
    words = " ".join(str(text)[: 4 * length].split())
    clean = "".join(letter if letter.isprintable() else "?" for letter in words)
    return clean if len(clean) <= length else clean[: length - 1] + "…"
