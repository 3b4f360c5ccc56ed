"""What attacks are told, for tests that call them without an engine."""

from __future__ import annotations

from typing import Any

import torch

from fedimmune.attacks import Context
from fedimmune.tasks import DataSpec

__all__ = ["context"]


def context(spec: DataSpec | None = None, seed: int = 0, **given: Any) -> Context:
    """Return the context of a first round."""
    usual: dict[str, Any] = {
        "round": 1,
        "global_model": {},
        "rng": torch.Generator().manual_seed(seed),
    }
    return Context(spec or DataSpec(classes=10, shape=(1, 8, 8), highest=(1.0,)), **(usual | given))
