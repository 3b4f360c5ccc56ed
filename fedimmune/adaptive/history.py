"""What clients have in common over rounds: inner products of the same two clients add up.

One round tells little of a client whose data differ from others': honest updates have little in
common by the end of training, and what they have drowns in noise. Over rounds noise averages out,
and what a client keeps doing does not. If each client's updates of several rounds are put one after
the other, in units of each round's median client, their inner products are the sums of the rounds'
own. Rounds fade by a tenth from one to the next, and only rounds in which both took part count for
two clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fedimmune._inputs import ClientId, savable_ids
from fedimmune.errors import InputError

__all__ = ["History"]

_KEPT = 0.9
"""Share of earlier rounds that is kept from round to round."""
_LONGEST = 10.0
"""Median lengths of a layer: whoever is longer, in one round, counts as if as long as that."""
_MOST_NUMBERS = 8_000_000
"""Of inner products that are remembered; the clients that were seen last are remembered longest."""
_FEWEST, _FEWEST_ROUNDS = 5, 4.0
"""Clients, and rounds of a client, fading, that it takes to say who goes against the others."""
_LEAST_USUAL = 0.15
"""Median cosine below which trusted clients have too little in common for that."""


class _About(BaseModel):
    """What a file says of the tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: list[int | str]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class History:
    """Inner products of earlier rounds, added up by pairs of clients.

    A value: `after` returns a new one.

    Parameters
    ----------
    clients
        Who is remembered; who was seen last comes last.
    shapes
        Of the layers.
    products
        (layers, N, N), float32.
    squares
        Of the same shape: at i, j the squared lengths of i, of the rounds in which j took part too.
    rounds
        How many rounds each took part in, older ones counting less, (N,).
    """

    clients: tuple[ClientId, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    products: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))
    squares: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))
    rounds: Tensor = field(default_factory=lambda: torch.zeros(0))

    def after(
        self, clients: Sequence[ClientId], grams: Tensor, shapes: Sequence[Sequence[int]]
    ) -> History:
        """Return the history with one more round.

        Parameters
        ----------
        clients
            Who took part. If they are too many to remember all pairs of them, nothing is.
        grams
            Their inner products, (layers, n, n).
        shapes
            Of the layers. If they are others than before, everything earlier is forgotten.
        """
        layers, n = len(grams), len(clients)
        most = int((_MOST_NUMBERS / max(1, layers)) ** 0.5)
        if n > most:
            return History()
        kinds = tuple(tuple(shape) for shape in shapes)
        past = self if kinds == self.shapes else History()
        present = set(clients)
        absent = [one for one in past.clients if one not in present]
        names = (*absent[max(0, len(absent) + n - most) :], *clients)
        before = past._places()
        here = torch.tensor([place for place, one in enumerate(names) if one in before]).long()
        there = torch.tensor([before[names[place]] for place in here.tolist()]).long()
        products, squares = torch.zeros(2, layers, len(names), len(names))
        rounds = torch.zeros(len(names))
        if len(here):
            products[:, here[:, None], here] = past.products[:, there[:, None], there]
            squares[:, here[:, None], here] = past.squares[:, there[:, None], there]
            rounds[here] = past.rounds[there]
        new = _in_units(grams).float()
        at = (slice(None), slice(len(names) - n, None), slice(len(names) - n, None))
        products[at] = _KEPT * products[at] + (new + new.mT) / 2
        own = new.diagonal(dim1=-2, dim2=-1)[..., None].expand_as(new)
        squares[at] = _KEPT * squares[at] + own
        rounds[len(names) - n :] = _KEPT * rounds[len(names) - n :] + 1
        return History(names, kinds, products, squares, rounds)

    def _places(self) -> dict[ClientId, int]:
        return {one: place for place, one in enumerate(self.clients)}

    def cosines(self, clients: Sequence[ClientId]) -> Tensor:
        """Return cosines of clients' updates of all rounds that both took part in.

        (layers, n, n), float64; 0 for clients that sent nothing. All of them are remembered.
        """
        where = self._places()
        place = torch.tensor([where[one] for one in clients]).long()
        at = (slice(None), place[:, None], place)
        products, squares = self.products[at].double(), self.squares[at].double()
        both = (squares * squares.mT).clamp(min=torch.finfo(torch.float32).tiny).sqrt()
        return (products / both).clamp(-1, 1)

    def agreement(self, clients: Sequence[ClientId], trusted: Tensor) -> Tensor:
        """Return how clients' updates of all rounds agree with those of trusted clients.

        Over rounds, honest clients go the same way, however different their data are, and a client
        that goes against most of them does so on purpose. What counts is a client's median cosine
        to trusted others, which a minority of these cannot make negative, against that of the
        trusted clients themselves.

        Parameters
        ----------
        clients
            All remembered.
        trusted
            Whom to compare with, (n,), bool: half of the clients at least.

        Returns
        -------
        Tensor
            (n,), about 1 for most, negative for who goes against them; 0 for who is new, and for
            everybody if trusted clients do not agree, or have too little in common.
        """
        n, nobody = len(clients), torch.zeros(len(clients), dtype=torch.float64)
        by_layer = self.cosines(clients)
        moved = (by_layer.diagonal(dim1=-2, dim2=-1) > 0).all(-1)
        if n < _FEWEST or not bool(moved.any()):
            return nobody
        cosines = by_layer[moved].mean(0)
        found = _median_to(cosines, trusted)
        agreed = trusted & (found > 0)
        if 2 * int(agreed.sum()) <= int(trusted.sum()):
            return nobody
        found = _median_to(cosines, agreed)
        usual = float(found[agreed].nanmedian())
        if not usual >= _LEAST_USUAL:
            return nobody
        where = self._places()
        known = self.rounds[[where[one] for one in clients]] > _FEWEST_ROUNDS
        return torch.where(known, found / usual, nobody).nan_to_num()

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """Return what `from_tensors` reads: tensors, and what is to be said of them."""
        if not self.clients:
            return {}, None
        tensors = {"products": self.products, "squares": self.squares, "rounds": self.rounds}
        about = _About(clients=savable_ids(list(self.clients)), shapes=self.shapes)
        return tensors, about.model_dump(mode="json")

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], about: object) -> Self:
        """Read what `to_tensors` returned.

        Raises
        ------
        InputError
            The tensors are not what is said of them, or not inner products of earlier rounds.
        """
        if about is None and not tensors:
            return cls()
        said = _About.model_validate(about)
        clients = tuple(savable_ids(said.clients))
        size = len(clients)
        square = (len(said.shapes), size, size)
        for name, shape in {"products": square, "squares": square, "rounds": (size,)}.items():
            found = tensors.get(name)
            if found is None or found.shape != shape or found.dtype != torch.float32:
                raise InputError(f"its {name} of earlier rounds and its clients disagree")
        products, squares, rounds = (tensors[name] for name in ("products", "squares", "rounds"))
        most = 1.001 / (1 - _KEPT)
        right = (
            (rounds >= 0) & (rounds <= most),
            (squares >= 0) & (squares <= most * _LONGEST**2),
            products.abs() <= most * _LONGEST**2,
            products == products.mT,
        )
        if not all(bool(each.all()) for each in right):
            raise InputError("it holds inner products of earlier rounds that no round has")
        return cls(clients, said.shapes, products, squares, rounds)


def _in_units(grams: Tensor) -> Tensor:
    """Return inner products in units of the median client's length, layer by layer."""
    lengths = grams.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    usual, most = lengths.median(-1, keepdim=True).values, lengths.amax(-1, keepdim=True)
    unit = torch.where(usual > 0, usual, torch.where(most > 0, most, torch.ones_like(most)))
    least = torch.finfo(grams.dtype).tiny
    scale = torch.minimum(1 / unit, _LONGEST / lengths.clamp(min=least))
    return grams * scale[..., :, None] * scale[..., None, :]


def _median_to(cosines: Tensor, chosen: Tensor) -> Tensor:
    """Return each client's median cosine to chosen others; NaN if there are none."""
    n = len(cosines)
    others = cosines.masked_fill(~chosen[None] | torch.eye(n, dtype=torch.bool), torch.nan)
    return torch.nanquantile(others, 0.5, dim=1)
