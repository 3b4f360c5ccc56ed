"""Universal defenses that have learned nothing, and networks that say what they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedimmune import rules
from fedimmune.adaptive.defense import Defense, DefenseAbout, Judged
from fedimmune.adaptive.description import Calibration
from fedimmune.adaptive.models.universal import Universal, UniversalSettings

__all__ = ["CALIBRATION", "dictated", "untrained", "untrained_file"]

CALIBRATION = Calibration(
    slope=1.0,
    offset=-1.0,
    alarms=((0.01, -6.0), (0.05, -3.0), (0.2, 2.0)),
    clients=1000,
    attackers=200,
)


def untrained(seed: int = 1, **about: Any) -> Defense:
    """Make a universal defense that has learned nothing."""
    settings = UniversalSettings(hidden=8)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        form = Universal(settings)
    given: dict[str, Any] = {"memory": 1.0, "calibration": CALIBRATION, **about}
    described = DefenseAbout(
        task="of a test", layers={}, form="universal", settings=settings.model_dump(), **given
    )
    return Defense(form, described)


def untrained_file(path: Path, seed: int = 1, **about: Any) -> Path:
    """Write such a defense."""
    untrained(seed, **about).save(path)
    return path


def dictated(
    file: Path,
    logits: Sequence[float] | Callable[[int], Tensor],
    *,
    familiar: bool = True,
    **parameters: Any,
) -> Any:
    """Make the rule with a network that has these logits for those it judges, in their order.

    `rule.loaded.asked` has what the network was asked with.
    """
    rule: Any = rules.get("adaptive", defense=file, **parameters)
    loaded = rule.loaded

    def judge(
        grams: Tensor, evidence: Tensor | None = None, *, threshold: float = 0.0, **asked: Any
    ) -> Judged:
        n = grams.shape[-1] - asked["anchored"]
        own = logits(n) if callable(logits) else torch.tensor(logits, dtype=torch.float64)
        assert own.shape == (n,)
        held = own if evidence is None else own + evidence
        loaded.asked = {**asked, "evidence": evidence, "threshold": threshold}
        weights = loaded.form.attend(held[None] - threshold)[0]
        return Judged(weights, torch.tanh(own / 10), held, rule.is_familiar)

    loaded.judge, rule.is_familiar = judge, familiar
    return rule
