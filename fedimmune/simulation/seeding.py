"""One seed per scenario, and from it one for every purpose, so that none disturbs another.

Seeds depend only on the scenario's `seed` and the purpose. So scenarios that differ only in their
rule or attack have the same clients, data, attackers, first model and batches, and can be compared
pair by pair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["generator", "seed_for", "seeded"]

_cpu = torch.default_generator


def seed_for(seed: int, purpose: str, *numbers: int) -> int:
    """Return the seed for one purpose, such as the training of client 3 in round 7.

    PyTorch's CPU generator uses only the lower 32 bits of a seed; in a digest, all bits are random.
    """
    text = ":".join([str(seed), purpose, *(str(number) for number in numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return a source of randomness for one purpose."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *numbers))


@contextmanager
def seeded(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """Seed PyTorch's global randomness (new weights, dropout), and restore it afterwards."""
    # `torch.manual_seed` notes the stack for three kinds of devices that are not there: a
    # twentieth of a federation of single steps.
    kinds = (torch.cuda, torch.xpu, torch.backends.mps)
    sow = torch.manual_seed if any(kind.is_available() for kind in kinds) else _cpu.manual_seed
    with torch.random.fork_rng():
        sow(seed_for(seed, purpose, *numbers))
        yield
