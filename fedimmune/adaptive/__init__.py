"""The learned rule: rehearse attacks, train a defense on the recordings, use it as ``adaptive``.

>>> from fedimmune import adaptive
>>> recordings = adaptive.rehearse("digits", ["backdoor"], attackers=[0, 4], runs=2, rounds=2)
>>> adaptive.train(recordings, epochs=5).save("digits.defense")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedimmune.adaptive.defense import Defense as Defense
    from fedimmune.adaptive.defense import universal as universal
    from fedimmune.adaptive.patching import patch as patch
    from fedimmune.adaptive.recordings import Recording as Recording
    from fedimmune.adaptive.recordings import read_recordings as read_recordings
    from fedimmune.adaptive.training import train as train
    from fedimmune.simulation.rehearsal import rehearse as rehearse

_HOMES = {
    "Defense": "fedimmune.adaptive.defense",
    "Recording": "fedimmune.adaptive.recordings",
    "patch": "fedimmune.adaptive.patching",
    "read_recordings": "fedimmune.adaptive.recordings",
    # Rehearsals are simulations, and those import the learned rule: so only when asked for.
    "rehearse": "fedimmune.simulation.rehearsal",
    "train": "fedimmune.adaptive.training",
    "universal": "fedimmune.adaptive.defense",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
