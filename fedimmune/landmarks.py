"""A round of many clients, measured without comparing everybody with everybody.

n×n inner products take n² memory per layer and n²·d time. Above `LARGE` clients, rules that can do
with less compare everybody with `COUNT` *landmarks*, clients drawn by lot, and read the round again
for what an estimate of the robust mean needs: its columns Xᵀw, and the products X(Xᵀw) with it,
come from one read, because a block has all clients of its columns.

What is lost: the nearest neighbor, or the largest cosine, is that among the landmarks. Two of ten
thousand clients that send the same are not noticed for that; one in ten is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedimmune._layers import Kind, Layer
from fedimmune.errors import InputError
from fedimmune.geometry import DISTRUST, refuse_immeasurable
from fedimmune.updates import CHUNK, ClientId, NonFiniteError, Updates

__all__ = ["COUNT", "LARGE", "Landmarks", "measure_landmarks"]

LARGE = 256
"""With more clients than this, rules that can do so compare clients with landmarks."""
COUNT = 64
"""How many landmarks there are."""


@dataclass(frozen=True)
class Landmarks:
    """What was measured of a round of many clients.

    Parameters
    ----------
    updates
        The round, to be read again.
    rows
        Which clients are landmarks.
    squares
        Squared lengths by layer, (layers, n), float64.
    products
        Inner products with the landmarks, then with the references, (layers, n, k + references).
    references
        Inner products of the references with each other, (layers, references).
    exact
        Whether products have to be taken in float64.
    """

    updates: Updates
    rows: Tensor
    squares: Tensor
    products: Tensor
    references: Tensor
    exact: bool

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Ids, in the order of the rows."""
        return self.updates.clients

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the measured layers."""
        return tuple(layer.shape for layer in self.updates.of_kind(Kind.PARAMETER))

    def only(self, rows: Tensor) -> Landmarks:
        """Return what was measured of some of the clients; landmarks that are none of them go.

        Parameters
        ----------
        rows
            Ascending.
        """
        if len(rows) == len(self.clients):
            return self
        place = torch.full((len(self.clients),), -1)
        place[rows] = torch.arange(len(rows))
        k = len(self.rows)
        kept = (place[self.rows] >= 0).nonzero().flatten()
        columns = torch.cat([kept, torch.arange(k, self.products.shape[-1])])
        return Landmarks(
            self.updates.only(self.clients[row] for row in rows.tolist()),
            place[self.rows[kept]],
            self.squares[:, rows],
            self.products[:, rows][:, :, columns],
            self.references,
            self.exact,
        )

    def multiply(self, weights: Tensor) -> Tensor:
        """Read the round and return inner products with Σ wⱼxⱼ by layer, (layers, n).

        Parameters
        ----------
        weights
            (n,), float64.
        """
        (found,) = _read(_products, self.updates, (), weights, exact=self.exact)
        return found

    def distances_to_sum(self, weights: Tensor) -> Tensor:
        """Read the round and return squared distances to Σ wⱼxⱼ over all layers, (n,).

        Differences are taken value by value: no common part of the updates cancels.
        """
        (found,) = _read(_distances, self.updates, (), weights, exact=True)
        return found.sum(0)

    def start(self, unit: Tensor | None = None, smoothing: float = 1e-16) -> tuple[Tensor, float]:
        """Return weights near the geometric median, (n,), and a usual squared distance; no read.

        The landmarks' own geometric median is found among them, and everybody is weighed by the
        distance to it.

        Parameters
        ----------
        unit
            What each layer's products are divided by, (layers,); by default nothing.
        smoothing
            Squared distances below this share of the usual one are rounded up to it.
        """
        scale = torch.ones(len(self.squares), dtype=torch.float64) if unit is None else unit
        k = len(self.rows)
        products = (self.products[..., :k] / scale[:, None, None]).sum(0)
        squares = (self.squares / scale[:, None]).sum(0)
        gram = products[self.rows]
        gram = (gram + gram.T) / 2
        own = squares[self.rows]
        gram.diagonal().copy_(own)
        apart = (own[:, None] + own[None, :] - 2 * gram).clamp(min=0)
        medians = apart.median(dim=1).values
        middle = int(medians.argmin())
        others = apart[middle][apart[middle] > 0]
        usual = float(others.median()) if len(others) else 0.0
        seen = gram - gram[middle][:, None] - gram[middle][None, :] + gram[middle, middle]
        least = max(smoothing * usual, torch.finfo(torch.float64).tiny)
        weights = _inverse(medians, max(usual, least))
        for _ in range(_STEPS):
            to_mean = seen @ weights
            away = seen.diagonal() - 2 * to_mean + weights @ to_mean
            weights = _inverse(away, least)
        away = squares - 2 * products @ weights + weights @ gram @ weights
        return _inverse(away, least), usual


_STEPS = 100


def _inverse(squared: Tensor, least: float) -> Tensor:
    inverse = squared.clamp(min=least).rsqrt()
    return inverse / inverse.sum()


def measure_landmarks(
    updates: Updates, rows: Sequence[int], references: Sequence[str] = ()
) -> Landmarks:
    """Read the parameters of a round once and compare everybody with some of the clients.

    Parameters
    ----------
    updates
        The round.
    rows
        Which clients are landmarks.
    references
        Names of the round's references that clients are to be compared with too.

    Raises
    ------
    NonFiniteError
        As by `fedimmune.measure`.
    InputError
        There is nothing to measure, or a reference is missing or too large.
    """
    layers = updates.of_kind(Kind.PARAMETER)
    if not any(layer.size for layer in layers):
        raise InputError("there is nothing to measure: every layer is a buffer")
    for name in references:
        if name not in updates.references:
            raise InputError(f"the round has no reference {name!r} to compare clients with")
    index = torch.as_tensor(list(rows), dtype=torch.long)
    found = _read(_compared, updates, references, index, exact=False)
    if not all(bool(torch.isfinite(each).all()) for each in found):
        if not updates.is_checked:
            raise NonFiniteError
        doubtful = True
    else:
        doubtful = any(
            _untrustworthy(each, with_them[:, : len(index)], index, layer)
            for layer, each, with_them in zip(layers, *found[:2], strict=True)
        )
    if doubtful:
        found = _read(_compared, updates, references, index, exact=True)
    squares, products, own = found
    refuse_immeasurable(updates, torch.cat([squares, own], 1).sum(0), references)
    return Landmarks(updates, index, squares, products, own, doubtful)


def _untrustworthy(squares: Tensor, products: Tensor, index: Tensor, layer: Layer) -> bool:
    """Whether some distance is so small against the lengths that rounding may have made it."""
    if layer.compute_dtype == torch.float64:
        return False  # nothing is more exact
    sums = squares[:, None] + squares[index]
    doubtful = (sums - 2 * products) < DISTRUST * torch.finfo(layer.compute_dtype).eps * sums
    doubtful[index, torch.arange(len(index))] = False
    return bool(doubtful.any())


def _read(
    task: Callable[..., tuple[Tensor, ...]],
    updates: Updates,
    references: Sequence[str],
    *given: Tensor,
    exact: bool,
) -> tuple[Tensor, ...]:
    """Have a round read, here or by its shards; all that is found adds up over columns."""
    layers = updates.of_kind(Kind.PARAMETER)
    if updates.shards is None:
        return task(updates, layers, references, *given, exact)
    found: tuple[Tensor, ...] = updates.shards.added(
        task, updates, layers, references, *given, exact
    )
    return found


def _compared(
    updates: Updates, layers: Sequence[Layer], references: Sequence[str], index: Tensor, exact: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `Landmarks.squares`, `products` and `references` of layers."""
    n, k = len(updates), len(index) + len(references)
    squares = torch.zeros(len(layers), n, dtype=torch.float64)
    products = torch.zeros(len(layers), n, k, dtype=torch.float64)
    own = torch.zeros(len(layers), len(references), dtype=torch.float64)
    numbers = {layer.name: row for row, layer in enumerate(layers)}
    for block in updates.blocks(layers, check=False, stacked=True, references=references):
        row = numbers[block.layer.name]
        for start in range(0, block.stop - block.start, CHUNK):
            part = slice(start, start + CHUNK)
            values = _laid_out(block.values[:, part], exact=exact)
            beside = [other[part] for other in block.references]
            others = torch.cat([values[index], *(each.to(values.dtype)[None] for each in beside)])
            squares[row] += torch.linalg.vector_norm(values, dim=1).cpu().double().square()
            products[row] += (values @ others.T).cpu()
            own[row] += others[len(index) :].double().square().sum(1).cpu()
    return squares, products, own


def _products(
    updates: Updates, layers: Sequence[Layer], _: Sequence[str], weights: Tensor, exact: bool
) -> tuple[Tensor]:
    """Return inner products with a sum of the updates by layer, (layers, n)."""
    found = torch.zeros(len(layers), len(weights), dtype=torch.float64)
    for row, values in _chunks(updates, layers, exact=exact):
        estimate = weights.to(values.device, values.dtype) @ values
        found[row] += (values @ estimate).cpu()
    return (found,)


def _distances(
    updates: Updates, layers: Sequence[Layer], _: Sequence[str], weights: Tensor, exact: bool
) -> tuple[Tensor]:
    """Return squared distances to a sum of the updates by layer, (layers, n)."""
    found = torch.zeros(len(layers), len(weights), dtype=torch.float64)
    for row, values in _chunks(updates, layers, exact=exact):
        away = values - weights.to(values.device, values.dtype) @ values
        found[row] += away.square_().sum(1).cpu()
    return (found,)


def _laid_out(values: Tensor, *, exact: bool) -> Tensor:
    """Copy columns to where products add up alike, whatever the size of blocks."""
    return values.double() if exact and values.dtype != torch.float64 else values.clone()


def _chunks(
    updates: Updates, layers: Sequence[Layer], *, exact: bool
) -> Iterator[tuple[int, Tensor]]:
    """Read layers, 512 columns at a time: (number of the layer, (n, columns))."""
    numbers = {layer.name: row for row, layer in enumerate(layers)}
    for block in updates.blocks(layers, check=False, stacked=True):
        for start in range(0, block.stop - block.start, CHUNK):
            values = block.values[:, start : start + CHUNK]
            yield numbers[block.layer.name], _laid_out(values, exact=exact)
