"""White-box search: attackers try the server's own rule, and send the worst that it lets through.

After Shejwalkar and Houmansadr, *Manipulating the Byzantine*, NDSS 2021, who fit an attack to each
rule, and ByzFL's optimized attacks; here along any of four lines, and against every rule, because
attackers have a copy of it. The search is in `fedimmune.attacks.line_search`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedimmune.attacks.backdoor import Backdoor
from fedimmune.attacks.base import Context, TriggeredBatch, draw_int
from fedimmune.attacks.collusion import Collusion, Seen
from fedimmune.attacks.line_search import most_harmful
from fedimmune.tasks import DataSpec
from fedimmune.updates import Updates
from fedimmune.validation import check_choice, check_fraction

__all__ = ["Search"]

_DIRECTIONS = ("mean", "std", "own", "backdoor")


class Search(Collusion):
    """Send the honest mean plus t times a direction, with the t that does most harm unnoticed.

    Harm is the distance of the rule's result from the honest mean; 20 factors up to 32 are tried on
    a copy of the rule, 50 if it chooses clients by inner products. Attackers together keep their
    weight, if the rule has weights.

    Parameters
    ----------
    direction
        ``mean``: against the honest mean. ``std``: the honest standard deviation by coordinate,
        downwards. ``own``: against what the attackers have trained. ``backdoor``: attackers train
        on data with the default `Backdoor`, and the direction is from the honest mean to theirs, so
        that t = 1 is their own mean update.
    keep
        Which share of an equal weight the attackers keep at least, together: by default half, below
        which clients are reduced or suspected. 0 asks for harm alone.
    """

    name = "search"
    summary = "tries the server's rule, and sends the most harmful update that keeps its weight"
    paper = "Shejwalkar and Houmansadr 2021"
    label = "white-box search"
    knowledge = "defense"
    advice = (
        "check that your data and your training are like the others', and that nobody copies you"
    )

    def __init__(self, *, direction: str = "mean", keep: float = 0.5) -> None:
        self.direction = check_choice(self.name, "direction", direction, _DIRECTIONS)
        self.keep = check_fraction(self.name, "keep", keep)
        self.needs_training = direction in {"own", "backdoor"}
        self._backdoor = Backdoor() if direction == "backdoor" else None
        self.target = None if self._backdoor is None else self._backdoor.target

    def overrides(self, method: str) -> bool:
        return method == "on_round" or (method == "on_batch" and self._backdoor is not None)

    def check(self, spec: DataSpec) -> None:
        if self._backdoor is not None:
            self._backdoor.check(spec)

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw one of the directions that need no images."""
        return {"direction": _DIRECTIONS[draw_int(0, 2, rng)]}

    def on_batch(self, inputs: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        if self._backdoor is None:
            return inputs, labels
        return self._backdoor.on_batch(inputs, labels, context)

    def triggered(self, inputs: Tensor, labels: Tensor, spec: DataSpec) -> TriggeredBatch | None:
        return None if self._backdoor is None else self._backdoor.triggered(inputs, labels, spec)

    def collude(self, seen: Seen, context: Context) -> Updates:
        if self.direction == "backdoor":
            direction = seen.along(seen.own, -1, seen.mean)
        else:
            lines = {"mean": "mean", "std": "deviation", "own": "own"}
            direction = seen.trained(getattr(seen, lines[self.direction]), -1)
        factor = most_harmful(seen, seen.mean, direction, context, keep=self.keep)
        return seen.send(seen.along(seen.mean, factor, direction))
