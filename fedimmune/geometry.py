"""The geometry of a round: inner products of the updates, layer by layer, from one read.

Almost every rule needs nothing else of the updates. A layer's n×n Gram matrix is summed from
products of 512 columns each, taken in the updates' own precision and added up in float64.

Updates that share a large common part (raw weights given as updates, say) would lose their
differences in such products: ‖x‖² + ‖y‖² − 2x·y cancels. Where a layer's distances come out too
small against its norms to be trusted, that layer is read again: in float64, and as differences to
the client in the middle of the others. The inner products then follow from those about that centre.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.layers import Kind, Layer
from fedimmune.summing import add_in_order
from fedimmune.updates import CHUNK, ClientId, NonFiniteError, Updates

__all__ = ["Geometry", "measure"]

_DISTRUST = 1e4
"""A squared distance below this many rounding errors of the squared norms is measured again."""

_EXACT_COLUMNS = 32 * CHUNK

_LARGEST_SQUARE = 1e290
"""Whose squared length is beyond this is turned away: sums of such squares must stay finite."""


@dataclass(frozen=True)
class Geometry:
    """What the inner products of one round say, for any group of layers.

    Parameters
    ----------
    clients
        Ids, in the order of the rows.
    layers
        Names of the measured layers.
    about_centre
        Inner products of the updates, each seen from the layer's centre, (layers, n, n), float64.
    with_centre
        Inner products of those differences with the centre itself, (layers, n).
    of_centre
        The centre's inner product with itself, (layers,). All zero where the centre is the origin.
    """

    clients: tuple[ClientId, ...]
    layers: tuple[str, ...]
    about_centre: Tensor
    with_centre: Tensor
    of_centre: Tensor

    def __len__(self) -> int:
        return len(self.clients)

    def of(self, layers: str | Iterable[str]) -> Geometry:
        """Give the geometry of one layer or of a group of layers."""
        names = [layers] if isinstance(layers, str) else list(layers)
        rows = [self.layers.index(name) for name in names]
        return Geometry(
            self.clients,
            tuple(names),
            self.about_centre[rows],
            self.with_centre[rows],
            self.of_centre[rows],
        )

    def only(self, rows: Sequence[int]) -> Geometry:
        """Return the geometry of some of the clients."""
        index = torch.as_tensor(list(rows), dtype=torch.long)
        return Geometry(
            tuple(self.clients[row] for row in rows),
            self.layers,
            self.about_centre[:, index][:, :, index],
            self.with_centre[:, index],
            self.of_centre,
        )

    def grams(self) -> Tensor:
        """Inner products by layer, (layers, n, n)."""
        cross = self.with_centre
        return (
            self.about_centre
            + cross[:, :, None]
            + cross[:, None, :]
            + self.of_centre[:, None, None]
        )

    def gram(self) -> Tensor:
        """Inner products over all the layers, (n, n)."""
        return self.grams().sum(0)

    def squared_distances(self) -> Tensor:
        """Squared distances between the updates, (n, n); never negative, the diagonal 0."""
        gram = self.about_centre.sum(0)
        norms = gram.diagonal()
        squared = norms[:, None] + norms[None, :] - 2 * gram
        return squared.clamp_(min=0).fill_diagonal_(0)

    def seen_from(self, client: int) -> Tensor:
        """Inner products of the differences to one client over all the layers, (n, n)."""
        gram = self.about_centre.sum(0)
        cross = gram[client]
        return gram - cross[:, None] - cross[None, :] + gram[client, client]

    def norms(self) -> Tensor:
        """Lengths of the updates, (n,)."""
        return self.gram().diagonal().clamp(min=0).sqrt()

    def cosines(self) -> Tensor:
        """Cosines between the updates, (n, n); 0 for an update of length 0, the diagonal 1."""
        lengths = self.norms()
        products = lengths[:, None] * lengths[None, :]
        cosines = torch.where(products > 0, self.gram() / products, torch.zeros_like(products))
        return cosines.clamp_(-1, 1).fill_diagonal_(1)

    def principal_coordinates(self, components: int) -> Tensor:
        """Coordinates of the updates along their own principal axes, (n, components).

        For the matrix X = U S Vᵀ of the updates these are the first columns of U S, from the
        eigenvectors of the Gram matrix alone; not centred; the sign of an axis is arbitrary.
        Columns beyond the n-th are 0.
        """
        values, vectors = torch.linalg.eigh(self.gram())
        values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
        coordinates = (vectors * values.sqrt())[:, :components]
        return torch.nn.functional.pad(coordinates, (0, components - coordinates.shape[1]))


def measure(updates: Updates) -> Geometry:
    """Read the parameters of a round once and measure them.

    Raises
    ------
    NonFiniteError
        A client sent a value that is not finite, and the round has not been checked before; or
        finite ones too large to be squared.
    """
    layers = updates.of_kind(Kind.PARAMETER)
    if not any(layer.size for layer in layers):
        raise InputError("there is nothing to measure: every layer is a buffer")
    n = len(updates)
    about_centre = torch.zeros(len(layers), n, n, dtype=torch.float64)
    with_centre = torch.zeros(len(layers), n, dtype=torch.float64)
    of_centre = torch.zeros(len(layers), dtype=torch.float64)
    rows = {layer.name: row for row, layer in enumerate(layers)}
    for block in updates.blocks(layers, check=False, stacked=True):
        gram = about_centre[rows[block.layer.name]]
        _add_products(gram, block.values)
    if not updates.is_checked and not bool(torch.isfinite(about_centre).all()):
        raise NonFiniteError
    for row, layer in enumerate(layers):
        gram = about_centre[row]
        if _untrustworthy(gram, layer):
            gram, cross, square = _measure_about_centre(updates, layer, _middle(gram))
            about_centre[row], with_centre[row], of_centre[row] = gram, cross, square
    _refuse_immeasurable(updates, about_centre)
    names = tuple(layer.name for layer in layers)
    return Geometry(updates.clients, names, about_centre, with_centre, of_centre)


def _refuse_immeasurable(updates: Updates, grams: Tensor) -> None:
    """Turn away finite updates whose squares, or sums of whose squares, are beyond float64."""
    immense = ~(grams.diagonal(dim1=1, dim2=2).sum(dim=0) < _LARGEST_SQUARE)
    if bool(immense.any()):
        culprits = [client for client, bad in zip(updates.clients, immense, strict=True) if bad]
        raise NonFiniteError(dict.fromkeys(culprits, "its values are too large to be measured"))


def _add_products(total: Tensor, values: Tensor) -> None:
    """Add ``values @ values.T`` to a float64 matrix.

    A batched product over chunks of columns keeps all rows of a chunk in the cache, and adding
    the chunks up one after the other makes the sum the same for every block size.
    """
    columns = values.shape[1]
    whole = columns - columns % CHUNK
    if whole:
        chunks = values[:, :whole].unflatten(1, (-1, CHUNK)).transpose(0, 1)
        add_in_order(total, torch.bmm(chunks, chunks.transpose(1, 2)).cpu().to(torch.float64))
    if whole < columns:
        rest = values[:, whole:]
        total += (rest @ rest.T).cpu().to(torch.float64)


def _untrustworthy(gram: Tensor, layer: Layer) -> bool:
    """Whether some distance is so small against the norms that rounding may have made it."""
    if not bool(torch.isfinite(gram).all()):
        return True
    norms = gram.diagonal()
    sums = norms[:, None] + norms[None, :]
    doubtful = (sums - 2 * gram) < _DISTRUST * torch.finfo(layer.compute_dtype).eps * sums
    return bool(doubtful.fill_diagonal_(False).any())


def _middle(gram: Tensor) -> int:
    """The client whose median distance to the others is the smallest, roughly."""
    norms = gram.diagonal()
    squared = norms[:, None] + norms[None, :] - 2 * gram
    squared = torch.nan_to_num(squared, nan=torch.inf, posinf=torch.inf)
    return int(squared.median(dim=1).values.argmin())


def _measure_about_centre(
    updates: Updates, layer: Layer, centre: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Measure a layer's differences to one client in float64, with the centre as one more row."""
    n = len(updates)
    total = torch.zeros(n + 1, n + 1, dtype=torch.float64)
    for block in updates.blocks([layer], check=False, stacked=True):
        for start in range(0, block.values.shape[1], _EXACT_COLUMNS):
            part = block.values[:, start : start + _EXACT_COLUMNS].cpu().to(torch.float64)
            middle = part[centre]
            _add_products(total, torch.cat([part - middle, middle[None]]))
    return total[:n, :n], total[:n, n], total[n, n]
