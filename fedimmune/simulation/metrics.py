"""A round compared with the truth, which a simulation knows and a server does not."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace

import torch
from torch import Tensor

from fedimmune._layers import Kind
from fedimmune.aggregation import Aggregation
from fedimmune.errors import NotEnoughClientsError
from fedimmune.results import ACCUSING
from fedimmune.rules.mean import Mean
from fedimmune.updates import ClientId, Updates

__all__ = ["auroc", "detections", "distances"]


def distances(
    updates: Updates, attackers: Collection[ClientId], aggregation: Aggregation | None
) -> dict[str, float | None]:
    """Measure ‖aggregate − robust mean‖ and ‖robust mean‖ over the trained parameters.

    The robust mean is the mean of the honest clients' valid updates. Both come from inner products
    if the rule has measured them, and from another read only if those do not tell.
    """
    known = _from_products(updates, attackers, aggregation)
    if known is not None:
        return known
    try:
        honest = updates.only(client for client in updates.clients if client not in attackers)
        truth = Mean().aggregate(honest).update
    except NotEnoughClientsError:
        return {}
    trained = [layer.name for layer in updates.of_kind(Kind.PARAMETER)]
    found = {"robust_mean_norm": _norm(truth[name] for name in trained)}
    if aggregation is not None:
        update = aggregation.update
        found["distance"] = _norm(update[name].double() - truth[name] for name in trained)
    return found


def _from_products(
    updates: Updates, attackers: Collection[ClientId], aggregation: Aggregation | None
) -> dict[str, float | None] | None:
    if aggregation is None or aggregation.makeup is None:
        return None
    makeup, rejected = aggregation.makeup, aggregation.rejected
    valid = [client for client in updates.clients if client not in rejected]
    honest = [client for client in valid if client not in attackers]
    if not honest:
        return {}
    robust_mean = dict.fromkeys(honest, 1 / len(honest))
    distance = makeup.length(robust_mean)
    nothing = replace(makeup, coefficients=torch.zeros_like(makeup.coefficients))
    norm = nothing.length(robust_mean)
    if distance is None or norm is None:
        return None
    return {"robust_mean_norm": norm, "distance": distance}


def detections(
    attackers: Set[ClientId], aggregation: Aggregation | None
) -> dict[str, float | None]:
    """Measure how well attackers were told from honest clients.

    Precision and recall are of accusations; AUROC and the attackers' share are of weights.
    """
    if aggregation is None:
        return {}
    accused = {client for client, verdict in aggregation.verdicts.items() if verdict in ACCUSING}
    present = attackers & aggregation.verdicts.keys()
    found: dict[str, float | None] = {}
    if aggregation.weights is not None:
        found["auroc"] = auroc(aggregation.weights, present)
        shares = [share for client, share in aggregation.weights.items() if client in present]
        found["attacker_weight"] = math.fsum(shares) if present else None
    elif not accused:
        return {}  # a rule of coordinates judges nobody
    found["precision"] = len(accused & present) / len(accused) if accused else None
    found["recall"] = len(accused & present) / len(present) if present else None
    return found


def auroc(weights: Mapping[ClientId, float], attackers: Collection[ClientId]) -> float | None:
    """Share of (attacker, honest) pairs in which the attacker has less weight; ties count half.

    1 is perfect, 0.5 is chance; None if one of the two kinds is missing.
    """
    low = [weight for client, weight in weights.items() if client in attackers]
    high = [weight for client, weight in weights.items() if client not in attackers]
    if not low or not high:
        return None
    wins = sum((a < h) + 0.5 * (a == h) for a in low for h in high)
    return wins / (len(low) * len(high))


def _norm(tensors: Iterable[Tensor]) -> float | None:
    norm = math.sqrt(math.fsum(float(t.double().square().sum()) for t in tensors))
    return norm if math.isfinite(norm) else None
