"""What came back in a round, each reply checked by itself: no client can spoil another's.

A client that raised or did not answer has *failed*; one whose answer is to an earlier round is
*late*; one whose answer cannot be used is *rejected*. None of these is an accusation: that is for
rules, which see only what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, Error, Message, Metadata, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.flower.contents import Counting, check_metrics, odd_metrics, samples_in, state_in
from fedimmune.flower.grids import UNREADABLE
from fedimmune.flower.tables import one_line

__all__ = ["Asked", "Replies", "sort_replies"]

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


@dataclass(frozen=True)
class Asked:
    """What a round began with.

    Parameters
    ----------
    number
        Of the round, from 1; a run that was gone on with counts on.
    arrays, model
        The global model that was sent, as Flower has it and as tensors.
    messages
        What was sent to whom, by node id: the message's metadata, whose id Flower fills in.
    began
        When, by `time.perf_counter`.
    anchor
        The server's own update of the model, where the rule wants it.
    """

    number: int
    arrays: ArrayRecord
    model: Mapping[str, Tensor]
    messages: Mapping[int, Metadata]
    began: float
    anchor: Mapping[str, Tensor] | None = None


@dataclass
class Replies:
    """The replies of a round, sorted.

    Parameters
    ----------
    states
        What can be used, by node id: values by layer name, views of what came.
    contents
        The whole replies of the same nodes.
    samples
        The claims of the same nodes, where they are believed.
    rejected, failed, late
        Why all others cannot be used, by node id.
    doubled
        How many further replies a node sent, which do not count.
    stray
        What came under a node's id and is no answer; it matters where nothing else came.
    """

    states: dict[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    contents: dict[int, RecordDict] = field(default_factory=dict)
    samples: dict[int, float] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)
    doubled: Counter[int] = field(default_factory=Counter)
    stray: dict[int, str] = field(default_factory=dict)

    @property
    def heard(self) -> set[int]:
        """Whose reply to this round came, of whatever kind."""
        return {*self.states, *self.rejected, *self.failed}

    def reject(self, node: int, reason: str) -> None:
        """Turn a reply away that was taken before."""
        self.states.pop(node, None)
        self.contents.pop(node, None)
        self.samples.pop(node, None)
        self.rejected[node] = reason


def sort_replies(
    replies: Iterable[Message], asked: Asked, counting: Counting, waited: float | None = None
) -> Replies:
    """Sort what came back; nothing that a client sends makes this raise.

    Parameters
    ----------
    replies
        As Flower hands them over, in any order.
    asked
        Who was sent what.
    counting
        What to make of sample counts.
    waited
        How many seconds clients had, for the reason of who did not answer.
    """
    found, given = Replies(), list(replies)
    sent = {about.message_id: node for node, about in asked.messages.items() if about.message_id}
    if not any(_answers(reply) in sent for reply in given):
        sent = {}  # a grid that gives messages other ids: senders have to be taken at their word
    for reply in given:
        try:
            _sort(reply, asked, sent, counting, found)
        except Exception as error:  # what a client sent cannot even be looked at
            node = _node_of(reply)
            if node is not None:
                found.stray.setdefault(node, f"cannot be read: {one_line(repr(error))}")
    for node, reason in odd_metrics(found.contents).items():
        found.reject(node, reason)
    for node, reason in found.stray.items():
        if node not in found.heard:
            found.rejected[node] = reason
    for node in asked.messages:
        if node in found.heard:
            found.late.pop(node, None)
        elif node not in found.late:
            within = "" if waited is None else f" within {waited:.0f} s"
            found.failed[node] = f"no reply{within}"
    return found


def _sort(
    reply: Message, asked: Asked, sent: Mapping[str, int], counting: Counting, found: Replies
) -> None:
    about = reply.metadata
    node, addressee = about.src_node_id, sent.get(about.reply_to_message_id)
    if reply.has_error() and node not in asked.messages and addressee is not None:
        # Where a node is gone the SuperLink answers in its stead, under an id of its own.
        _take_error(addressee, reply.error, found)
    elif not reply.has_error() and _is_of_earlier(about, asked.number):
        early = f"its reply to round {about.group_id} came in round {asked.number}"
        found.late.setdefault(node, early)
    elif node not in asked.messages:
        if not reply.has_error():
            found.stray.setdefault(node, "was not asked in this round")
    elif (sent and addressee != node) or about.group_id not in {"", str(asked.number)}:
        # Nobody may spoil another's answer by its id: what is no answer is not counted as one.
        found.stray.setdefault(node, "answered something that it was not asked")
    elif reply.has_error():
        _take_error(node, reply.error, found)
    elif node in found.heard:
        found.doubled[node] += 1
    else:
        _take(node, reply.content, asked, counting, found)


def _take(node: int, content: RecordDict, asked: Asked, counting: Counting, found: Replies) -> None:
    try:
        state = state_in(content, asked.model)
        samples = samples_in(content, counting)
        check_metrics(content)
    except InputError as error:
        found.rejected[node] = str(error)
        return
    found.states[node], found.contents[node] = state, content
    if samples is not None:
        found.samples[node] = samples


def _take_error(node: int, error: Error, found: Replies) -> None:
    if node in found.heard:
        found.doubled[node] += 1
        return
    said = one_line(error.reason or "")
    if error.code == UNREADABLE:
        found.rejected[node] = f"cannot be read: {said}"
        return
    known = _ERRORS.get(error.code, f"error {error.code}")
    found.failed[node] = f"{known}: {said}" if said else known


def _is_of_earlier(about: Metadata, number: int) -> bool:
    said = about.group_id
    return said.isascii() and said.isdecimal() and len(said) < 10 and int(said) < number


def _answers(reply: Any) -> Any:
    """Give the id of the message that a reply is to."""
    return getattr(getattr(reply, "metadata", None), "reply_to_message_id", None)


def _node_of(reply: Any) -> int | None:
    try:
        node = reply.metadata.src_node_id
    except Exception:
        return None
    return node if isinstance(node, int) else None
