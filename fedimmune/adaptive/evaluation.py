"""How good a defense is on rehearsals, and what its scores promise (`fedimmune.bounds`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedimmune import bounds
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.description import Calibration
from fedimmune.adaptive.models.base import AttentionModel, FormSettings, Inputs, ideal_weights
from fedimmune.adaptive.recordings import Recording
from fedimmune.errors import ParameterError

__all__ = ["calibrate", "detection", "promises", "validate"]


def promises(scores: Tensor, attackers: Tensor, settings: FormSettings) -> dict[str, Any]:
    """Measure the error of the last pass's scores, (rounds, n), and what follows from it.

    Equally many clients attack in all rounds.

    Returns
    -------
    dict
        ``score_error``, the ε′ that half of the rounds keep within, and ``score_error_most``, nine
        of ten; ``bound``, the largest error of the result that ε′ allows in half of the rounds, in
        lengths of the longest update; ``bound_by_spread``, the same by how far honest clients'
        scores differ and exceed the attackers', because the softmax sees only such differences.
        Bounds are None if c is too large to compute them.
    """
    error = bounds.score_error(scores, attackers)
    found: dict[str, Any] = {
        "score_error": bounds.holds_in_most(error, 0.5),
        "score_error_most": bounds.holds_in_most(error, 0.9),
        "bound": None,
        "bound_by_spread": None,
    }
    n, m = attackers.shape[1], int(attackers[0].sum())
    setting: dict[str, Any] = {"n": n, "m": m, "c": settings.c, "eps": settings.eps}
    spread, margin = (each.tolist() for each in bounds.spread_and_margin(scores, attackers))
    try:
        by_error = [bounds.error_bound(each, **setting) for each in error.tolist()]
        by_spread = [
            bounds.spread_bound(*each, **setting) for each in zip(spread, margin, strict=True)
        ]
    except ParameterError:  # c is beyond what bounds can be computed for
        return found
    return found | {
        "bound": bounds.holds_in_most(torch.tensor(by_error), 0.5),
        "bound_by_spread": bounds.holds_in_most(torch.tensor(by_spread), 0.5),
    }


_RATES = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


@torch.no_grad()
def calibrate(form: AttentionModel, rounds: Sequence[tuple[Inputs, Tensor]]) -> Calibration:
    """Measure what a form's logits mean, on prepared rounds that it has not learned from.

    Parameters
    ----------
    form
        Trained.
    rounds
        Inputs and who attacks, (rounds, n).
    """
    form.eval()
    logits = torch.cat([form(inputs).logits.double().flatten() for inputs, _ in rounds])
    attack = torch.cat([attackers.flatten() for _, attackers in rounds])
    slope, offset = _platt(logits, attack)
    honest = logits[~attack]
    alarms = tuple((rate, float(honest.quantile(rate))) for rate in _RATES)
    counts = {"clients": len(attack), "attackers": int(attack.sum())}
    return Calibration(slope=slope, offset=offset, alarms=alarms, **counts)


def _platt(logits: Tensor, attack: Tensor, steps: int = 50) -> tuple[float, float]:
    """Fit P(attack) = sigmoid(offset − slope · logit) by Newton's method, a little regularized."""
    design = torch.stack([-logits, torch.ones_like(logits)], -1)
    target = attack.double()
    found = design.new_tensor([1.0, 0.0])
    prior, held = found.clone(), 1e-3 * len(target) * torch.eye(2, dtype=torch.float64)
    for _ in range(steps):
        likely = torch.sigmoid(design @ found)
        slope = design.T @ (likely - target) + held @ (found - prior)
        curvature = (design * (likely * (1 - likely))[:, None]).T @ design + held
        found = found - torch.linalg.solve(curvature, slope)
    return float(found[0].clamp(min=1e-3)), float(found[1])


def validate(defense: Defense, recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    """Measure a defense, without memory, on recordings.

    Returns
    -------
    list of dict
        A row for each attack and number of attackers: ``attacker_weight``, the share of weight that
        attackers get; ``benign_kept``, the share of honest clients with a weight; ``accuracy``, the
        share of clients who rightly have one or rightly have none; ``exact``, the share of rounds
        in which only the honest have one; ``auroc``; ``over_half``, the share of rounds in which
        attackers get more than half; ``distance`` to the robust mean, relative to its length, and
        those of the plain mean and the median; and the `promises`.
    """
    groups: dict[tuple[str, int, int], list[Recording]] = {}
    for recording in recordings:
        about = recording.about
        groups.setdefault((about.attack, about.attackers, about.clients), []).append(recording)
    order = sorted(groups, key=lambda key: (key[0] != "none", key))
    return [
        {"attack": attack, "attackers": count, "clients": clients}
        | _figures(defense, groups[attack, count, clients])
        for attack, count, clients in order
    ]


@torch.no_grad()
def _figures(defense: Defense, recordings: Sequence[Recording]) -> dict[str, Any]:
    rows = [_rounds(defense, recording) for recording in recordings]
    every = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    scores, attackers = every.pop("scores"), torch.cat([each.attackers for each in recordings])
    found: dict[str, Any] = {"rounds": len(every["attacker_weight"])}
    for name, values in every.items():
        known = values[torch.isfinite(values)]
        found[name] = float(known.mean()) if len(known) else None
    if defense.is_universal:  # the lemma is about a softmax
        return found
    return found | promises(scores, attackers, defense.form.settings)


def detection(weights: Tensor, attackers: Tensor) -> dict[str, Tensor]:
    """Measure how weights, (rounds, n), tell attackers from honest clients, round by round.

    NaN if a figure makes no sense.
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


def _rounds(defense: Defense, recording: Recording) -> Mapping[str, Tensor]:
    """Measure each round of a recording; NaN if a figure makes no sense."""
    attackers = recording.attackers
    n = attackers.shape[1]
    grams, about = recording.seen_by(defense.form)
    weighed = defense.form(defense.form.prepare(grams, **about))
    weights = weighed.shares
    grams = recording.grams_with().sum(1)
    wanted = ideal_weights(attackers, torch.float64)
    length = _length(grams, wanted)
    return detection(weights, attackers) | {
        "scores": weighed.scores[-1],
        "distance": _length(grams, weights - wanted) / length,
        "distance_of_mean": _length(grams, 1 / n - wanted) / length,
        "distance_of_median": recording.median_distances / length,
    }


def _length(grams: Tensor, weights: Tensor) -> Tensor:
    """Return ‖Σ wᵢxᵢ‖ over all layers, one per round."""
    return torch.einsum("bi,bij,bj->b", weights, grams, weights).clamp(min=0).sqrt()


def _auroc(weights: Tensor, attackers: Tensor) -> Tensor:
    """Share of (attacker, honest) pairs in which the attacker has less weight; ties count half."""
    less = weights[:, :, None] < weights[:, None, :]
    equal = weights[:, :, None] == weights[:, None, :]
    pairs = attackers[:, :, None] & ~attackers[:, None, :]
    wins = ((less + 0.5 * equal) * pairs).sum((1, 2))
    return wins / pairs.sum((1, 2)).clamp(min=1)
