"""Protocols: what a scenario leaves open, filled in as the paper's text or its program has it.

Defaults are those of the text of Wan and Chen (2021). Their program differs in some: that is the
protocol ``authors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedimmune import attacks
from fedimmune.errors import ParameterError

__all__ = ["PROTOCOLS", "with_protocol"]

PROTOCOLS = ("paper", "authors")

_ATTACKS: Mapping[str, Mapping[str, Any]] = {
    # 1 is written after normalizing: a gray on MNIST, a red of 0.71 on Tiny-ImageNet.
    "backdoor": {"value": 1.0, "chance": 0.5, "drawn_at": 32},
    "sign-flip": {"spare": ["*running_*"]},
}
_TASKS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"scaling": "half"},
    "cifar100": {"scaling": "half"},
    "tiny-imagenet": {"scaling": "imagenet", "varied": "flips"},
}
_OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "tiny-imagenet": {"lr": 0.01},
    "imdb": {"lr": 0.01},
}


def with_protocol(protocol: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what a scenario that is not checked yet leaves open.

    Parameters
    ----------
    protocol
        One of `PROTOCOLS`; ``paper`` fills in nothing.
    given
        Fields of the scenario; they stay as they are.

    Raises
    ------
    ParameterError
        There is no such protocol.
    """
    if protocol not in PROTOCOLS:
        raise ParameterError(f"there is no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
    if protocol == "paper":
        return dict(given)
    task, attack = (_table(given.get(name)) for name in ("task", "attack"))
    optimizer = _table(given.get("optimizer"))
    named = str(task.get("name", "digits"))
    filled = dict(given)
    if named in _TASKS:
        filled["task"] = {**_TASKS[named], **task}
    usual = _ATTACKS.get(attacks.resolve(str(attack.get("name", "none"))))
    if usual is not None:
        filled["attack"] = {**usual, **attack}
    if optimizer.get("name", "sgd") == "sgd" and optimizer.get("momentum") != 0:
        filled["optimizer"] = {"carried": True, **_OPTIMIZERS.get(named, {}), **optimizer}
    return filled


def _table(given: object) -> dict[str, Any]:
    if isinstance(given, str):
        return {"name": given}
    return dict(given) if isinstance(given, Mapping) else {}
