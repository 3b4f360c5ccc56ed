"""How good a defence is on rehearsals that it was not trained on, attack by attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedimmune.adaptive.defence import Defence
from fedimmune.adaptive.promises import promises
from fedimmune.adaptive.recordings import Recording

__all__ = ["detection", "validate"]


def validate(defence: Defence, recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    """Measure a defence, without memory, on recordings.

    Returns
    -------
    list of dict
        A row for each attack and number of attackers: ``attacker_weight``, the share of weight that
        attackers get; ``benign_kept``, the share of honest clients with a weight; ``accuracy``, the
        share of clients who rightly have one or rightly have none; ``exact``, the share of rounds
        in which just the honest have one; ``auroc``; ``over_half``, the share of rounds in which
        attackers get more than half; the distance to the robust mean, relative to its length,
        beside that of the plain ``mean`` and the ``median``; and what the scores promise, see
        `fedimmune.adaptive.promises`.
    """
    groups: dict[tuple[str, int, int], list[Recording]] = {}
    for recording in recordings:
        about = recording.about
        groups.setdefault((about.attack, about.attackers, about.clients), []).append(recording)
    order = sorted(groups, key=lambda key: (key[0] != "none", key))
    return [
        {"attack": attack, "attackers": count, "clients": clients}
        | _figures(defence, groups[attack, count, clients])
        for attack, count, clients in order
    ]


@torch.no_grad()
def _figures(defence: Defence, recordings: Sequence[Recording]) -> dict[str, Any]:
    rows = [_rounds(defence, recording) for recording in recordings]
    every = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    scores, attackers = every.pop("scores"), torch.cat([each.attackers for each in recordings])
    found: dict[str, Any] = {"rounds": len(every["attacker_weight"])}
    for name, values in every.items():
        known = values[torch.isfinite(values)]
        found[name] = float(known.mean()) if len(known) else None
    return found | promises(scores, attackers, defence.form.settings)


def detection(weights: Tensor, attackers: Tensor) -> dict[str, Tensor]:
    """Measure how weights, (rounds, n), tell attackers from honest clients, round by round.

    NaN where a figure has no sense.
    """
    kept = weights > 0
    share = (weights * attackers).sum(1)
    nobody = torch.full_like(share, torch.nan)
    attacked = attackers.any(1)
    return {
        "attacker_weight": torch.where(attacked, share, nobody),
        "benign_kept": (kept & ~attackers).sum(1) / (~attackers).sum(1).double(),
        "accuracy": (kept == ~attackers).double().mean(1),
        "exact": (kept == ~attackers).all(1).double(),
        "auroc": torch.where(attacked, _auroc(weights, attackers), nobody),
        "over_half": (share > 0.5).double(),
    }


def _rounds(defence: Defence, recording: Recording) -> Mapping[str, Tensor]:
    """Measure each round of a recording; NaN where a figure has no sense."""
    attackers = recording.attackers
    n = attackers.shape[1]
    grams = recording.grams_with(*defence.references)
    weighed = defence.form(defence.form.prepare(grams))
    weights = weighed.shares
    grams = recording.grams_with().sum(1)
    benign = (~attackers).double()
    wanted = benign / benign.sum(1, keepdim=True)
    length = _length(grams, wanted)
    return detection(weights, attackers) | {
        "scores": weighed.scores[-1],
        "distance": _length(grams, weights - wanted) / length,
        "distance_of_mean": _length(grams, 1 / n - wanted) / length,
        "distance_of_median": recording.median_distances / length,
    }


def _length(grams: Tensor, weights: Tensor) -> Tensor:
    """‖Σ wᵢxᵢ‖ over all layers, one a round."""
    return torch.einsum("bi,bij,bj->b", weights, grams, weights).clamp(min=0).sqrt()


def _auroc(weights: Tensor, attackers: Tensor) -> Tensor:
    """How often an attacker has less weight than an honest client, ties counted half."""
    less = weights[:, :, None] < weights[:, None, :]
    equal = weights[:, :, None] == weights[:, None, :]
    pairs = attackers[:, :, None] & ~attackers[:, None, :]
    wins = ((less + 0.5 * equal) * pairs).sum((1, 2))
    return wins / pairs.sum((1, 2)).clamp(min=1)
