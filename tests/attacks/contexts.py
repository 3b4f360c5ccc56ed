"""What attacks are told, for tests that call them without an engine."""

from __future__ import annotations

from typing import Any

import torch

from fedimmune import attacks
from fedimmune.attacks import Context
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec

__all__ = ["IMAGES", "SPECS", "TABLE", "TEXT", "context", "fitting"]

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
