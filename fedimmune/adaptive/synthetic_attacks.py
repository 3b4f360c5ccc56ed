"""Synthetic attacks: rounds in which attackers do what nobody has rehearsed.

A classifier that knows two kinds of attack takes everything for one of them, so it has to see what
is neither. Layer by layer, an attacker's update is mixed from an honest client's, its own, a
direction that all attackers share and one that none does. All of this can be done on Gram matrices:
if X' = T X, then X' X'ᵀ = T G Tᵀ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["improvise", "invent", "lengthen", "vary_honest"]

_MOST_ATTACKERS = 0.45
"""Largest share of attackers in rounds that are made up."""
_ODD = 5.0
"""An odd honest update is at most so many times as long or as short as it was."""

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


# -------------------------------------------------------------------- attacks made up anew


@dataclass(frozen=True)
class _Recipe:
    """What senders put into a layer, (rounds, layers) each; 0 if nothing.

    Parameters
    ----------
    own, mean, one
        Factors of the own honest update, of the honest mean, and of one honest client's update.
    span
        Of a random combination of honest deviations from the mean, the same for all senders, in
        units of the honest spread.
    shared, private
        Of directions that nobody else has, one for all senders and one each, in units of the
        median client's length.
    """

    own: Tensor
    mean: Tensor
    one: Tensor
    span: Tensor
    shared: Tensor
    private: Tensor


def improvise(
    grams: Tensor, attackers: Tensor, random: torch.Generator, sizes: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Make attacks up in rounds in which nobody attacks, and vary those that were rehearsed.

    An attack whose update combines clients' updates and directions of its own can be made from
    inner products alone: negated, boosted and noisy updates, inner product manipulation, pushes
    within the honest spread, mimicry, blends, poison on top of honest training, free riding; in all
    layers, in the last or first ones, or in some.

    Parameters
    ----------
    grams
        Of the rounds, (rounds, layers, rows, rows), the clients' rows first.
    attackers
        Who attacks, (rounds, n).
    random
        Source of randomness.
    sizes
        Of the layers: noise that is alike in all values of a model is longer in larger layers. By
        default all have the same.

    Returns
    -------
    tuple of Tensor
        Gram matrices of the same shape, and who attacks.
    """
    (rounds, n), layers = attackers.shape, grams.shape[1]
    quiet = ~attackers.any(-1, keepdim=True)
    most = max(1, int(_MOST_ATTACKERS * n))
    # Many attackers are harder to tell than few, so they are drawn more often.
    share = torch.rand(rounds, 1, generator=random).sqrt()
    count = (share * most).ceil().clamp(min=1)
    order = torch.rand(rounds, n, generator=random).argsort(-1).argsort(-1)
    senders = torch.where(quiet, order < count, attackers) & (n > 1)

    def between(low: float, high: float, *shape: int) -> Tensor:
        """Draw log-uniformly, by round or by round and layer."""
        drawn = torch.rand(rounds, *(shape or (1,)), generator=random, dtype=grams.dtype)
        return low * (high / low) ** drawn

    def coin() -> Tensor:
        return (torch.rand(rounds, 1, generator=random) < 0.5).to(grams.dtype)

    none = grams.new_zeros(rounds, 1)
    one, toward, of_two = none + 1, between(0.15, 1.0), coin()
    noise = between(0.7, 6)
    poison = between(0.2, 2) * between(0.3, 3, layers)
    white = between(0.3, 6) * _white(grams, n, sizes)
    kept = coin()  # whether what is added stands on an honest update, or alone
    z = between(0.2, 3)
    families = [  # own, mean, one, span, shared, private
        (-between(0.3, 5), none, none, none, none, none),  # negated
        (between(3, 20), none, none, none, none, none),  # boosted
        (kept, none, none, none, of_two * noise, (1 - of_two) * noise),  # noise
        (kept * coin(), none, none, none, none, white),  # the same noise in all values
        (none, -between(0.1, 5), none, none, none, coin() * 0.05),  # inner product manipulation
        (coin() * 0.02, none, none, none, none, coin() * 0.02),  # free riding
        (none, 1 - between(0.8, 3), none, none, between(0.3, 2), none),  # push
        (toward, 1 - toward, none, none, toward * between(0.3, 2), none),  # blend
        (none, one, none, z, none, 0.1 * coin()),  # within the span of honest deviations
        (
            none,
            one,
            none,
            none,
            z * _relative_spread(grams, n),
            0.02 * coin(),
        ),  # a little is enough
        (none, none, one, none, none, 0.02 * coin()),  # mimicry
        (one, none, none, none, poison, none),  # poisoned data
        (one, none, none, none, poison, between(0.1, 0.5)),
        (between(0.3, 1.5), none, none, none, poison * between(0.5, 3), none),
    ]
    which = torch.randint(len(families), (rounds, 1), generator=random)
    parts = [
        torch.stack([family[part].expand(rounds, layers) for family in families], -1)
        for part in range(6)
    ]
    found = [part.gather(-1, which[:, :, None].expand(-1, layers, 1))[..., 0] for part in parts]
    # What was rehearsed is made weaker or stronger: blended with the honest mean.
    faded = between(0.3, 1.5).expand(-1, layers)
    zero = grams.new_zeros(rounds, layers)
    varied = (faded, 1 - faded, zero, zero, zero, zero)
    found = [torch.where(quiet, drawn, again) for drawn, again in zip(found, varied, strict=True)]
    touched = _some_layers(rounds, layers, random) | ~quiet
    honest = (torch.ones_like(zero), zero, zero, zero, zero, zero)
    found = [torch.where(touched, part, own) for part, own in zip(found, honest, strict=True)]
    return _sent(grams, senders, _Recipe(*found), random), senders


def vary_honest(grams: Tensor, attackers: Tensor, random: torch.Generator) -> Tensor:
    """Make some honest clients odd: longer or shorter than others, or with noise of their own.

    Clients train longer, on fewer samples, on other preprocessing; half of a round may. None of
    this is an attack.
    """
    (rounds, n), layers = attackers.shape, grams.shape[1]

    def draw(*shape: int) -> Tensor:
        return torch.rand(rounds, *shape, generator=random, dtype=grams.dtype)

    odd = (draw(n) < 0.5 * draw(1)) & ~attackers
    factor = (math.log(_ODD) * (2 * draw(1) - 1)).exp()
    uneven = (0.2 * (2 * draw(layers) - 1)).exp()
    zero = grams.new_zeros(rounds, layers)
    noise = 0.5 * draw(1) * (draw(1) < 0.5) * draw(layers)
    recipe = _Recipe(factor * uneven, zero, zero, zero, zero, factor * noise)
    # Each by a factor of its own in half of the rounds, all by the same in the others.
    own = torch.where(odd & (draw(1) < 0.5), (0.7 * (2 * draw(n) - 1)).exp(), torch.ones_like(odd))
    scale = grams.new_ones(rounds, grams.shape[-1])
    scale[:, :n] = own
    made = _sent(grams, odd, recipe, random, honest=~attackers)
    return made * scale[:, None, :, None] * scale[:, None, None, :]


def _some_layers(rounds: int, layers: int, random: torch.Generator) -> Tensor:
    """Draw the layers that are attacked, (rounds, layers): mostly all, else last, first or some."""
    kind = torch.rand(rounds, 1, generator=random)
    few = torch.randint(1, 3, (rounds, 1), generator=random)
    place = torch.arange(layers)[None]
    some = torch.rand(rounds, layers, generator=random) < torch.rand(rounds, 1, generator=random)
    some[:, -1] |= ~some.any(-1)
    last, first = place >= layers - few, place < few
    return torch.where(
        kind < 0.55, True, torch.where(kind < 0.75, last, torch.where(kind < 0.85, first, some))
    )


def _white(grams: Tensor, n: int, sizes: Sequence[int] | None) -> Tensor:
    """Return lengths of noise as long as the median client, in lengths of that by layer."""
    squares = grams.diagonal(dim1=-2, dim2=-1)[..., :n].clamp(min=0)
    by_layer, whole = squares.median(-1).values, squares.sum(1).median(-1, keepdim=True).values
    share = grams.new_tensor([*sizes] if sizes else [1.0] * grams.shape[1])
    wanted = whole * share / share.sum()
    least = torch.finfo(grams.dtype).tiny
    return (wanted / by_layer.clamp(min=least)).clamp(max=1e6).sqrt()


def _relative_spread(grams: Tensor, n: int) -> Tensor:
    """Return how far clients are from their mean, in lengths of the median client, by layer."""
    among = grams[..., :n, :n]
    squares = among.diagonal(dim1=-2, dim2=-1)
    spread = (squares.mean(-1) - among.mean((-2, -1))).clamp(min=0)
    usual = squares.median(-1).values
    return (spread / usual.clamp(min=torch.finfo(grams.dtype).tiny)).clamp(max=100).sqrt()


def _sent(
    grams: Tensor,
    senders: Tensor,
    recipe: _Recipe,
    random: torch.Generator,
    honest: Tensor | None = None,
) -> Tensor:
    """Return Gram matrices of rounds in which senders send what the recipe says."""
    rounds, layers, rows, _ = grams.shape
    n = senders.shape[1]
    honest = ~senders if honest is None else honest
    shared, private = rows, rows + 1  # rows of new directions, orthogonal to everything
    wide = rows + 1 + n
    usual = grams.diagonal(dim1=-2, dim2=-1)[..., :n].clamp(min=0).median(-1).values
    wider = grams.new_zeros(rounds, layers, wide, wide)
    wider[..., :rows, :rows] = grams
    wider.diagonal(dim1=-2, dim2=-1)[..., rows:] = usual[..., None]

    share = honest.to(grams.dtype) / honest.sum(-1, keepdim=True).clamp(min=1)
    among = torch.randn(rounds, n, generator=random, dtype=grams.dtype) * honest
    among = (among - (among * share).sum(-1, keepdim=True)) * share
    among = among / among.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
    # Of independent deviations such a combination is about as long as one of them.
    chosen = (torch.rand(rounds, n, generator=random) * honest).argmax(-1)
    copied = torch.nn.functional.one_hot(chosen, n).to(grams.dtype)
    common = (
        recipe.mean[..., None] * share[:, None]
        + recipe.span[..., None] * among[:, None]
        + recipe.one[..., None] * copied[:, None]
    )
    mixture = torch.eye(rows, wide, dtype=grams.dtype).repeat(rounds, layers, 1, 1)
    sent = grams.new_zeros(rounds, layers, n, wide)
    sent[..., :n] = common[:, :, None] + torch.diag_embed(recipe.own[..., None].expand(-1, -1, n))
    sent[..., shared] = recipe.shared[..., None]
    sent[..., private:] = torch.diag_embed(recipe.private[..., None].expand(-1, -1, n))
    mixture[:, :, :n] = torch.where(senders[:, None, :, None], sent, mixture[:, :, :n])
    return mixture @ wider @ mixture.mT
