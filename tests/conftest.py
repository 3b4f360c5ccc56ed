"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Other work on the machine must not fail a test, and CI must not find what nobody can repeat.
settings.register_profile(
    "fedimmune",
    deadline=None,
    max_examples=int(os.environ.get("FEDIMMUNE_EXAMPLES", "40")),
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedimmune")
