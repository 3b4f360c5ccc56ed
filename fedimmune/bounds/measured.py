"""How good the scores of a defence are, round by round."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedimmune.checks import share as check_share
from fedimmune.errors import InputError

__all__ = ["holds_in_most", "score_error", "spread_and_margin"]


def score_error(scores: Tensor, attackers: Tensor) -> Tensor:
    """Measure ε′: how far scores are from 1 for the honest and −1 for attackers, at worst.

    Parameters
    ----------
    scores
        Of the pass that the weights come from, the last, (rounds, n).
    attackers
        Who attacks, (rounds, n), true or false.

    Returns
    -------
    Tensor
        (rounds,): the smallest ε′ with honest scores ≥ 1 − ε′ and attackers' ≤ −1 + ε′; NaN where a
        score is.
    """
    _check(scores, attackers)
    away = torch.where(attackers, scores + 1, 1 - scores)
    return away.amax(1).clamp(0, 2)  # a cosine may be above 1 by rounding


def spread_and_margin(scores: Tensor, attackers: Tensor) -> tuple[Tensor, Tensor]:
    """Measure how scores differ, for `fedimmune.bounds.spread_bound`.

    Parameters
    ----------
    scores, attackers
        As for `score_error`; one client of each round is honest at least.

    Returns
    -------
    tuple of Tensor
        (rounds,) each: from the highest score of an honest client down to the lowest, and down to
        the highest of an attacker, 2 where nobody attacks.
    """
    _check(scores, attackers)
    if bool(attackers.all(1).any()):
        raise InputError("spread_and_margin: there is a round without an honest client")
    beyond = torch.full_like(scores, torch.inf)
    honest = torch.where(attackers, -beyond, scores).amax(1)
    lowest = torch.where(attackers, beyond, scores).amin(1)
    highest = torch.where(attackers, scores, -beyond).amax(1)
    return (honest - lowest).clamp(0, 2), (honest - highest).clamp(-2, 2)


def holds_in_most(values: Tensor, share: float = 0.9) -> float:
    """Give what holds in a share of rounds: the smallest value that so many do not exceed.

    Parameters
    ----------
    values
        One a round, such as from `score_error`; the negative of what should be large.
    share
        Of rounds, from 0 to 1; 1 for all of them.
    """
    share = check_share("holds_in_most", "share", share)
    if values.ndim != 1 or len(values) == 0:
        raise InputError(
            f"holds_in_most: give one number a round, of one round at least: {tuple(values.shape)}"
        )
    rank = math.ceil(share * len(values) - 1e-9)
    # Sorted, NaN comes last: a round without a number is one that is not good enough.
    return float(values.sort().values[max(rank, 1) - 1])


def _check(scores: Tensor, attackers: Tensor) -> None:
    if scores.ndim != 2 or scores.shape != attackers.shape or scores.shape[1] == 0:
        raise InputError(
            "scores and attackers must be two tables of the same shape, a row a round and a column "
            f"a client: {tuple(scores.shape)} and {tuple(attackers.shape)}"
        )
    if attackers.dtype != torch.bool or not scores.is_floating_point():
        raise InputError(
            "scores must be floating point and attackers true or false: "
            f"{scores.dtype} and {attackers.dtype}"
        )
