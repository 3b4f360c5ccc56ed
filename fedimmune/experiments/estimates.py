"""How fast this machine is, beside the one that the figures in `scales` are of."""

from __future__ import annotations

import time

import torch
from torch import nn

from fedimmune.tasks.lenet import LeNet
from fedimmune.threads import computing_with

__all__ = ["machine_factor"]

_REFERENCE = 1.1e-4
"""Seconds a sample on one core of the reference, an AMD EPYC of 2024, with nothing beside it."""
_BATCH, _STEPS, _TRIES = 128, 4, 3


def machine_factor() -> float:
    """Train a LeNet for a moment: 2 means that everything takes twice as long here."""
    with computing_with(1):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = LeNet()
            images, labels = torch.randn(_BATCH, 1, 32, 32), torch.randint(10, (_BATCH,))
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5, fused=True)

        def steps() -> float:
            begun = time.thread_time()
            for _ in range(_STEPS):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(images), labels).backward()
                optimiser.step()
            return (time.thread_time() - begun) / (_STEPS * _BATCH)

        steps()
        # Of this thread alone: what else the machine is doing does not count.
        return min(steps() for _ in range(_TRIES)) / _REFERENCE
