"""What attacks are told, for tests that call them without an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedimmune import Updates, attacks
from fedimmune.attacks import Context
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec

__all__ = ["IMAGES", "SPECS", "TABLE", "TEXT", "a_round", "context", "fitting", "trained", "vector"]

TRAINED = ("w", "b")
IMAGES = DataSpec(classes=10, shape=(1, 8, 8), highest=(1.0,))
TEXT = DataSpec(classes=2, shape=(12,), words=30)
TABLE = DataSpec(classes=4, shape=(9,))
SPECS = (IMAGES, TEXT, TABLE)


def fitting(attack: str) -> DataSpec:
    """Return the first kind of data that an attack fits: images, if it does."""
    for spec in SPECS:
        try:
            attacks.get(attack).check(spec)
        except ParameterError:
            continue
        return spec
    raise AssertionError(f"{attack} fits nothing")


def context(spec: DataSpec | None = None, seed: int = 0, **given: Any) -> Context:
    """Return the context of a first round."""
    usual: dict[str, Any] = {
        "round": 1,
        "global_model": {},
        "rng": torch.Generator().manual_seed(seed),
    }
    return Context(spec or IMAGES, **(usual | given))


def a_round(seed: int, clients: int = 7, common: float = 1.0) -> list[dict[str, Tensor]]:
    """Return updates of a model with two trained layers, a buffer and a counter."""
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    shared = common * drawn(3, 4), common * drawn(6)
    return [
        {
            "w": shared[0] + drawn(3, 4),
            "b": shared[1] + drawn(6),
            "bn.running_mean": drawn(4),
            "bn.num_batches_tracked": torch.tensor(client),
            "flag": torch.tensor([client % 2 == 0]),
        }
        for client in range(clients)
    ]


def vector(state: Any) -> np.ndarray:
    """Return the trained layers of a state as one vector."""
    return np.concatenate([state[name].double().numpy().ravel() for name in TRAINED])


def trained(updates: Updates | list[Any]) -> np.ndarray:
    """Return the trained layers of a round, a row per client."""
    if isinstance(updates, Updates):
        updates = [updates.state(client) for client in updates.clients]
    return np.stack([vector(state) for state in updates])
