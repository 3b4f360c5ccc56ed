"""Settings of the whole suite."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

# Threads that wait for each other make small operations slow wherever the cores are shared.
torch.set_num_threads(1)

# Other work on the machine must not fail a test, and CI must not find what nobody can repeat.
settings.register_profile(
    "fedimmune",
    deadline=None,
    max_examples=int(os.environ.get("FEDIMMUNE_EXAMPLES", "40")),
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedimmune")
