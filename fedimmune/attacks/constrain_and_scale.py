"""Constrain and scale: a backdoor that is trained to look like an honest update.

Bagdasaryan, Veit, Hua, Estrin, Shmatikov, *How To Backdoor Federated Learning*, AISTATS 2020: the
attacker adds to its loss whatever it expects the server to measure.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from fedimmune.attacks.any_backdoor import flat, moved
from fedimmune.attacks.base import Context
from fedimmune.attacks.scaling import Scaling
from fedimmune.validation import check_choice, check_fraction

__all__ = ["ConstrainAndScale"]


class ConstrainAndScale(Scaling):
    """Minimize α · loss + (1 − α) · anomaly on backdoored batches; send the update times `scale`.

    Parameters
    ----------
    alpha
        The loss's share; 1 leaves the anomaly out. So do the authors' own settings.
    metric
        What the server is thought to measure. ``euclidean``: the distance to the global model.
        ``cosine``: 1 − the cosine of the update and the last global one; 0 in the first round and
        as long as nothing has moved.
    **scaling
        As for `scaling`.
    """

    name = "constrain-and-scale"
    summary = "trains a backdoor that stays near the global model, and scales its update"
    paper = "Bagdasaryan et al. 2020"
    label = "constrain and scale"
    symbols = {**Scaling.symbols, "alpha": "α"}
    ranges = {**Scaling.ranges, "alpha": (0.5, 0.95)}
    needs_previous_model = True

    def __init__(self, *, alpha: float = 0.7, metric: str = "euclidean", **scaling: Any) -> None:
        super().__init__(**scaling)
        self.alpha = check_fraction(self.name, "alpha", alpha)
        self.metric = check_choice(self.name, "metric", metric, ("euclidean", "cosine"))

    def on_loss(self, loss: Tensor, model: nn.Module, context: Context) -> Tensor:
        return self.alpha * loss + (1 - self.alpha) * self._anomaly(model, context)

    def _anomaly(self, model: nn.Module, context: Context) -> Tensor | float:
        own = moved(model, context.global_model)
        update = flat(own.values())
        if self.metric == "euclidean":
            length: Tensor = torch.linalg.vector_norm(update)
            return length
        before, now = context.previous_model, context.global_model
        if before is None or not update.any():
            return 0.0
        last = flat(now[name] - before[name] for name in own).to(update.device)
        return 1 - cosine_similarity(update, last, dim=0)
