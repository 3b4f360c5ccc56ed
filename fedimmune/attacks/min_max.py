"""Min-Max: as far from the honest mean as an update can lie without being the odd one out.

Shejwalkar, Houmansadr, *Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses
for Federated Learning*, NDSS 2021. The authors find the factor by bisection; it is the least root
of one quadratic equation per honest client, and is solved here.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from fedimmune.attacks.base import Context, draw_int
from fedimmune.attacks.collusion import Collusion, Seen, State
from fedimmune.tasks import DataSpec
from fedimmune.updates import Updates
from fedimmune.validation import check_choice

__all__ = ["MinMax", "Perturbed"]

_DIRECTIONS = ("std", "unit", "sign")


class Perturbed(Collusion):
    """Send the honest mean less γ times a direction, with the largest γ that a bound admits.

    Parameters
    ----------
    direction
        ``std``: the honest standard deviation by coordinate. ``unit``: the honest mean's own.
        ``sign``: the sign of the honest mean's coordinates.
    """

    paper = "Shejwalkar and Houmansadr 2021"
    advice = (
        "check that your data and your training are like the others', and that nobody copies you"
    )
    needs_training = False

    def __init__(self, *, direction: str = "std") -> None:
        self.direction = check_choice(self.name, "direction", direction, _DIRECTIONS)

    def collude(self, seen: Seen, context: Context) -> Updates:
        towards = self._direction(seen)
        gram = seen.products(towards).sum(0)
        factor = self.largest(gram) if gram[-1, -1] > 0 else 0.0
        return seen.send(seen.along(seen.mean, -factor, towards))

    @abstractmethod
    def largest(self, gram: Tensor) -> float:
        """Find γ from inner products of the honest updates and, last, of the direction."""

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw a direction."""
        return {"direction": _DIRECTIONS[draw_int(0, len(_DIRECTIONS) - 1, rng)]}

    def _direction(self, seen: Seen) -> State:
        if self.direction == "sign":
            return {name: tensor.sign() for name, tensor in seen.trained(seen.mean).items()}
        # A factor follows: the honest mean need not be brought to length 1.
        return seen.deviation if self.direction == "std" else seen.mean


def squares(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared distances of honest updates from their mean, (m,), and each other, (m, m)."""
    honest = gram[:-1, :-1]
    norms, means = honest.diagonal(), honest.mean(1)
    from_mean = (norms - 2 * means + means.mean()).clamp(min=0)
    apart = (norms[:, None] + norms[None, :] - 2 * honest).clamp(min=0)
    return from_mean, apart


class MinMax(Perturbed):
    """Send what is no farther from any honest update than two honest ones are from each other.

    All attackers send the honest mean less γ times `direction`, with the largest γ for which the
    largest distance to an honest update is at most the largest between honest ones.

    Parameters
    ----------
    direction
        ``std``: the honest standard deviation by coordinate, as in the authors' experiments.
        ``unit``: the honest mean's own. ``sign``: the sign of the honest mean's coordinates.
    """

    name = "min-max"
    summary = "sends the mean, moved as far as two honest updates are apart"
    label = "Min-Max"

    def largest(self, gram: Tensor) -> float:
        from_mean, apart = squares(gram)
        towards = gram[-1, :-1]
        slope = towards.mean() - towards  # ⟨p, μ − xᵢ⟩
        square, most = gram[-1, -1], apart.max()
        roots = (
            slope + (slope.square() + square * (most - from_mean).clamp(min=0)).sqrt()
        ) / square
        return float(roots.min())
