"""Synthetic attacks: rounds in which attackers do what nobody has rehearsed.

A classifier that knows two kinds of attack takes everything for one of them, so it has to see what
is neither. Layer by layer, an attacker's update is mixed from an honest client's, its own, a
direction that all attackers share and one that none does. All of this can be done on Gram matrices:
if X' = T X, then X' X'ᵀ = T G Tᵀ.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["invent", "lengthen"]

_MOST_OWN = 0.3
"""Largest share of the rehearsed attack that is left in a synthetic one."""
_MOST_SHARED = 1.5
_SHORTEST, _LONG, _LONGEST = -3.0, 1.0, 6.0
"""Powers of ten that scale attackers' updates; an honest one's, from the second on."""


def invent(grams: Tensor, attackers: Tensor, random: torch.Generator) -> Tensor:
    """Replace the attackers' updates of rehearsed rounds by synthetic ones.

    Parameters
    ----------
    grams
        Of the rounds, (rounds, layers, rows, rows), the clients' rows first.
    attackers
        Who attacks, (rounds, n); somebody is honest in every round.
    random
        Source of randomness.

    Returns
    -------
    Tensor
        Gram matrices of the same shape; what does not involve attackers is as it was.
    """
    rounds, layers, rows, _ = grams.shape
    n = attackers.shape[1]
    shared, own = rows, rows + 1  # rows of new directions, orthogonal to everything
    wide = rows + 1 + n

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, dtype=grams.dtype)

    # Each layer by itself: treating all alike, as a sign flip does, is a kind of its own.
    of_honest = 2 * draw(rounds, layers) - 1
    of_itself = _MOST_OWN * draw(rounds, layers) * (draw(rounds, 1) < 0.5)
    of_shared, of_own = _MOST_SHARED * draw(rounds, layers), draw(rounds, layers)

    usual = grams.diagonal(dim1=-2, dim2=-1)[..., :n].clamp(min=0).median(-1).values
    wider = grams.new_zeros(rounds, layers, wide, wide)
    wider[..., :rows, :rows] = grams
    wider.diagonal(dim1=-2, dim2=-1)[..., rows:] = usual[..., None]

    mixture = torch.eye(rows, wide, dtype=grams.dtype).repeat(rounds, layers, 1, 1)
    # A random honest client for each attacker: the largest of random numbers among the honest.
    chosen = (draw(rounds, n, n) - 2 * attackers[:, None, :].to(grams.dtype)).argmax(-1)
    which, who = attackers.nonzero(as_tuple=True)
    every = torch.arange(layers)[None]
    at = (which[:, None], every, who[:, None])
    mixture[at] = 0
    mixture[*at, chosen[which, who][:, None]] = of_honest[which]
    mixture[*at, who[:, None]] = of_itself[which]
    mixture[*at, shared] = of_shared[which]
    mixture[*at, (own + who)[:, None]] = of_own[which]
    return mixture @ wider @ mixture.mT


def lengthen(grams: Tensor, attackers: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Make rehearsed rounds in which attackers' updates are much longer or shorter.

    In a round without attackers one client's update becomes far too long, and that client an
    attacker, because no rehearsal varies lengths.

    Parameters
    ----------
    grams, attackers, random
        As for `invent`; there may be rounds without attackers.

    Returns
    -------
    tuple of Tensor
        Gram matrices, and who attacks.
    """
    rounds, n = attackers.shape
    quiet = ~attackers.any(-1)
    chosen = torch.randint(n, (rounds,), generator=random)
    attack = attackers.clone()
    attack[quiet] = torch.nn.functional.one_hot(chosen[quiet], n).bool()
    drawn = torch.rand(rounds, generator=random, dtype=grams.dtype)
    least = torch.where(quiet, _LONG, _SHORTEST)
    factor = 10 ** (least + (_LONGEST - least) * drawn)
    scale = grams.new_ones(rounds, grams.shape[-1])
    scale[:, :n] = torch.where(attack, factor[:, None], scale[:, :n])
    return grams * scale[:, None, :, None] * scale[:, None, None, :], attack
