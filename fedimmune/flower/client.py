"""Notices about a client's last update, and how the client reads them.

The server writes it into the config of a client's next message; a client reads it with
`verdict_of`. Nothing of Flower or PyTorch is imported here: clients may be small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedimmune.results import ClientResult, Notice, Verdict

__all__ = ["to_config", "verdict_of"]

_PREFIX = "fedimmune-"
_EMPTY = {**dict.fromkeys(ClientResult("", Verdict.TRUSTED).notice(), None), "round": None}
del _EMPTY["client"]


def to_config(notice: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return a notice as entries of a config, which cannot hold None."""
    return {_PREFIX + key: notice[key] for key in _EMPTY if notice.get(key) is not None}


def verdict_of(message: Any, *, configrecord_key: str = "config") -> Notice | None:
    """Read, in a client app, what the server says about the client's last update.

    Parameters
    ----------
    message
        The message that the client app was called with, its content, or its config.
    configrecord_key
        Name of the config in the message; as the strategy has it.

    Returns
    -------
    Notice or None
        A dict with ``verdict``, the ``round`` that it is about, ``weight``, what the update looks
        like (``kind``, ``confidence``, …) and ``text``, which is also its `str`: what was seen, and
        what an honest client should check. What the server does not say is None. There is no notice
        in a first round, or if the server sends none.
    """
    found = message.content if _has_content(message) else message
    if isinstance(found, Mapping) and isinstance(found.get(configrecord_key), Mapping):
        found = found[configrecord_key]
    if not isinstance(found, Mapping) or not isinstance(found.get(_PREFIX + "verdict"), str):
        return None
    told = Notice({key: found.get(_PREFIX + key) for key in _EMPTY})
    told["text"] = told["text"] or told["verdict"]
    return told


def _has_content(message: Any) -> bool:
    """Whether a message has content; asking one that holds an error for it raises."""
    asked = getattr(message, "has_content", None)
    return bool(asked()) if callable(asked) else False
