"""The geometry of a round: inner products of the updates, layer by layer, from one read.

Almost every rule needs nothing else of the updates. A layer's n×n Gram matrix is summed from
products of 512 columns each, taken in the updates' own precision and added up in float64.

Updates that share a large common part (raw weights given as updates, say) would lose their
differences in such products: ‖x‖² + ‖y‖² − 2x·y cancels. If a layer's distances come out too
small against its norms to be trusted, that layer is read again: in float64, and as differences to
the row in the middle of the others. The inner products then follow from those about that center.
Rows that are equal, as colluders' are, have distance 0: they are compared, and not measured again.

With ten thousand clients a Gram matrix takes 800 MB. There is one, which products are added to in
place, and whoever looks at it does so a few rows at a time (`Geometry.parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedimmune._inputs import as_float_tensor, client_ids
from fedimmune._layers import Kind, Layer
from fedimmune.errors import InputError
from fedimmune.kernels import add_in_order
from fedimmune.updates import CHUNK, REFERENCES, ClientId, NonFiniteError, Updates

__all__ = [
    "DISTRUST",
    "Geometry",
    "Makeup",
    "Reference",
    "measure",
    "measure_groups",
    "refuse_immeasurable",
]

DISTRUST = 1e4
"""A squared distance below this many rounding errors of the squared norms is measured again."""

_LOST = 1e-12
"""A squared length below this share of the terms that it is the sum of is not known."""

_CANCELED = 1e-3
"""A squared length below this share of the terms that it is the sum of is not exact enough."""

_AT_ONCE = 1 << 18
"""So many inner products of several layers are looked at at a time."""

_PART = 1 << 20
"""So many inner products of one layer are looked at at a time: 8 MB."""

_EXACT_VALUES = 1 << 23
"""So many values are held in float64 at a time (or 512 columns of them)."""

_MOST_PRODUCTS = 1 << 24
"""So many products are held at a time before they are added up: 192 MB with float64 copies."""

_LARGEST_SQUARE = 1e290
"""A client with a larger squared length is rejected: sums of such squares must stay finite."""

Groups: TypeAlias = Sequence[Sequence[Layer]]
"""Layers whose inner products are added up, and measured as one."""


@dataclass(frozen=True)
class Reference:
    """What the inner products say of an update that is not a client's.

    Parameters
    ----------
    products
        Its inner products with the clients' updates, (layers, n), float64.
    square
        Its inner product with itself, (layers,).
    """

    products: Tensor
    square: Tensor


@dataclass(frozen=True)
class Makeup:
    """A sum of updates, known by their inner products.

    Parameters
    ----------
    geometry
        Of the updates.
    coefficients
        What each is multiplied by, (n,), float64.
    """

    geometry: Geometry
    coefficients: Tensor

    def length(self, less: Mapping[ClientId, float]) -> float | None:
        """Return the length of the sum less another one.

        Parameters
        ----------
        less
            What the other sum multiplies clients' updates by, by id; 0 for who is missing.

        Returns
        -------
        float or None
            None if the other one is of clients whose inner products are not known, or if the two
            are too much alike for inner products to tell.
        """
        clients = self.geometry.clients
        if not less.keys() <= set(clients):
            return None
        other = torch.tensor([less.get(client, 0.0) for client in clients], dtype=torch.float64)
        return self.geometry.length_of(self.coefficients - other)


@dataclass(frozen=True)
class Geometry:
    """What the inner products of one round say, for any group of layers.

    Everything is about the clients alone, unless references are asked for by name.

    Parameters
    ----------
    clients
        Ids, in the order of the rows.
    layers
        Names of the measured layers.
    about_center
        Inner products of the updates, each seen from the layer's center, (layers, rows, rows),
        float64; the rows of references follow the clients'. NaN for two clients, if the round was
        measured without pairs.
    with_center
        Inner products of those differences with the center itself, (layers, rows).
    of_center
        The center's inner product with itself, (layers,). All zero if the center is the origin.
    references
        Names of the rows that follow the clients'.
    shapes
        Of the layers, in their order; empty if they are not known.
    """

    clients: tuple[ClientId, ...]
    layers: tuple[str, ...]
    about_center: Tensor
    with_center: Tensor
    of_center: Tensor
    references: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def from_grams(
        cls,
        grams: Any,
        clients: Sequence[ClientId] | None = None,
        *,
        layers: Sequence[str] | None = None,
        references: Sequence[str] = (),
        shapes: Sequence[Sequence[int]] = (),
    ) -> Geometry:
        """Take inner products that were measured elsewhere.

        Parameters
        ----------
        grams
            Array or tensor: one Gram matrix per layer, (layers, rows, rows), or one of the whole
            update, (rows, rows). The rows of references follow the clients'.
        clients
            Ids; by default 0, 1, 2, …
        layers
            Names of the layers; by default "0", "1", "2", …
        references
            Names of the rows that follow the clients'.
        shapes
            Of the layers, in order, for a rule that asks what layers are; by default not known.

        Raises
        ------
        InputError
            The shapes do not fit, or the matrices are not finite and symmetric.
        """
        found = as_float_tensor(grams).to("cpu", torch.float64)
        found = found[None] if found.ndim == 2 else found
        if found.ndim != 3 or found.shape[1] != found.shape[2] or not found.numel():
            raise InputError(
                "expected Gram matrices, (n, n) or (layers, n, n); got an array of shape "
                f"{tuple(found.shape)}"
            )
        if not bool(torch.isfinite(found).all()):
            raise InputError("the Gram matrices hold NaN or infinite values")
        if not torch.allclose(found, found.mT):
            raise InputError("the Gram matrices are not symmetric")
        names = [str(each) for each in range(len(found))] if layers is None else layers
        if len(names) != len(found):
            raise InputError(f"{len(names)} layer names for {len(found)} Gram matrices")
        if len(shapes) not in (0, len(found)):
            raise InputError(f"{len(shapes)} shapes of layers for {len(found)} Gram matrices")
        ids = client_ids(clients, found.shape[1] - len(references))
        return cls(
            tuple(ids),
            tuple(names),
            found,
            found.new_zeros(found.shape[:2]),
            found.new_zeros(len(found)),
            tuple(references),
            tuple(tuple(shape) for shape in shapes),
        )

    def __len__(self) -> int:
        return len(self.clients)

    def of(self, layers: str | Iterable[str]) -> Geometry:
        """Return the geometry of one layer or of a group of layers."""
        names = [layers] if isinstance(layers, str) else list(layers)
        rows = [self.layers.index(name) for name in names]
        return replace(
            self,
            layers=tuple(names),
            about_center=self.about_center[rows],
            with_center=self.with_center[rows],
            of_center=self.of_center[rows],
            shapes=tuple(self.shapes[row] for row in rows) if self.shapes else (),
        )

    def only(self, rows: Sequence[int]) -> Geometry:
        """Return the geometry of some of the clients, with all references."""
        index = torch.as_tensor([*rows, *self._rows(self.references)], dtype=torch.long)
        return replace(
            self,
            clients=tuple(self.clients[row] for row in rows),
            about_center=self.about_center[:, index][:, :, index],
            with_center=self.with_center[:, index],
        )

    def parts(self) -> list[Tensor]:
        """Return the clients' rows, as many at a time as may be looked at without much memory."""
        return list(torch.arange(len(self)).split(max(1, _PART // max(1, len(self)))))

    def by_parts(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what a function of some rows finds of each of them, (…, n), for all rows.

        What is found is put where there is room for all of it: if small tensors were kept between
        the large ones of each part, no memory of these could be used again.

        Parameters
        ----------
        function
            Called with each of `parts`, returns (…, rows).
        """
        found = torch.empty(0)
        for rows in self.parts():
            part = function(rows)
            if not len(found):
                found = part.new_empty(*part.shape[:-1], len(self))
            found[..., rows] = part
        return found

    def total(self) -> Geometry:
        """Return the geometry of the whole update as one layer, which takes little memory."""
        if len(self.layers) == 1:
            return replace(self, layers=("",), shapes=())
        return replace(
            self,
            layers=("",),
            about_center=self.about_center.sum(0, keepdim=True),
            with_center=self.with_center.sum(0, keepdim=True),
            of_center=self.of_center.sum(0, keepdim=True),
            shapes=(),
        )

    def mixed(self, matrix: Tensor, clients: Sequence[ClientId]) -> Geometry:
        """Return the geometry of rows that are sums of the clients' updates.

        Parameters
        ----------
        matrix
            (rows, n), float64: what each client's update is multiplied by.
        clients
            Ids of the rows. References stay as they are.
        """
        kept = torch.eye(len(self.references), dtype=torch.float64)
        whole = torch.block_diag(matrix, kept) if len(kept) else matrix
        # Row i is Σ mᵢⱼ(dⱼ + c); seen from the center c again, (Σ mᵢⱼ − 1)c is left over.
        excess = whole.sum(1) - 1
        about = whole @ self.about_center @ whole.T
        cross = self.with_center @ whole.T
        about = about + excess[:, None] * cross[:, None, :] + excess * cross[:, :, None]
        about = about + torch.outer(excess, excess) * self.of_center[:, None, None]
        return replace(
            self,
            clients=tuple(clients),
            about_center=about,
            with_center=cross + excess * self.of_center[:, None],
        )

    def grams(self, *references: str) -> Tensor:
        """Inner products by layer, (layers, n, n).

        Parameters
        ----------
        *references
            Names of references whose rows and columns are to follow the clients'.
        """
        if references == self.references:
            about, cross = self.about_center, self.with_center
        else:
            index = torch.as_tensor([*range(len(self)), *self._rows(references)])
            about, cross = self.about_center[:, index][:, :, index], self.with_center[:, index]
        return about + cross[:, :, None] + cross[:, None, :] + self.of_center[:, None, None]

    def reference(self, name: str) -> Reference:
        """Return what the inner products say of a reference, such as the ``anchor``."""
        row = self.grams(name)[:, -1]
        return Reference(row[:, :-1], row[:, -1])

    def _rows(self, references: Iterable[str]) -> list[int]:
        for name in references:
            if name not in self.references:
                raise InputError(f"this round was measured without a reference {name!r}")
        return [len(self) + self.references.index(name) for name in references]

    def _about_center(self, rows: Tensor | None = None) -> Tensor:
        """Inner products of the clients over all the layers, seen from each layer's center."""
        about = self.about_center[:, : len(self), : len(self)]
        return (about if rows is None else about[:, rows]).sum(0)

    def _squares_about_center(self) -> Tensor:
        if len(self.layers) == 1:
            return self.about_center[0].diagonal()[: len(self)]
        return self._about_center().diagonal()  # summed as the products are, to the same bits

    def gram(self, rows: Tensor | None = None) -> Tensor:
        """Inner products over all the layers, (n, n).

        Parameters
        ----------
        rows
            Which clients' rows are wanted, such as one of `parts`; by default all.
        """
        if rows is None:
            return self.grams().sum(0)
        n = len(self)
        about, cross = self.about_center[:, rows, :n], self.with_center[:, :n]
        found = about + cross[:, rows, None] + cross[:, None, :] + self.of_center[:, None, None]
        return found.sum(0)

    def _squares(self) -> Tensor:
        if len(self.layers) > 1:
            return self.gram().diagonal()
        cross = self.with_center[0, : len(self)]
        return self._squares_about_center() + cross + cross + self.of_center[0]

    def squared_distances(self, rows: Tensor | None = None) -> Tensor:
        """Squared distances between the updates, (n, n); never negative, the diagonal 0.

        Parameters
        ----------
        rows
            Which clients' rows are wanted, such as one of `parts`; by default all.
        """
        squares = self._squares_about_center()
        own = squares if rows is None else squares[rows]
        squared = (own[:, None] + squares[None, :]).sub_(self._about_center(rows), alpha=2)
        return _with_own(squared.clamp_(min=0), rows, 0)

    def squared_distances_to(self, reference: str) -> Tensor:
        """Squared distances of the updates to a reference, (n,); never negative."""
        (row,), gram = self._rows([reference]), self.about_center.sum(0)
        squared = gram.diagonal() + gram[row, row] - 2 * gram[row]
        return squared[: len(self)].clamp_(min=0)

    def middle(self) -> int:
        """Return the client whose median distance to the others is the smallest."""
        return int(self.by_parts(self._median_distances).argmin())

    def _median_distances(self, rows: Tensor) -> Tensor:
        return self.squared_distances(rows).median(dim=1).values

    def seen_from(self, row: int | str) -> Tensor:
        """Inner products of the differences to a client or a reference over all layers, (n, n)."""
        n, gram = len(self), self.about_center.sum(0)
        place = self._rows([row])[0] if isinstance(row, str) else row
        cross = gram[place, :n]
        return gram[:n, :n] - cross[:, None] - cross[None, :] + gram[place, place]

    def norms(self) -> Tensor:
        """Lengths of the updates, (n,); 0 for one that is lost in the rounding of a far center."""
        squares = self._squares()
        terms = self._squares_about_center() + self.of_center.sum()
        return torch.where(squares > _LOST * terms, squares, 0.0).sqrt()

    def length_of(self, coefficients: Tensor) -> float | None:
        """Return the length of a sum of the updates; None if too little is left of its terms.

        Parameters
        ----------
        coefficients
            What each update is multiplied by, (n,), float64.
        """
        # Seen from the center c, Σ aᵢxᵢ is Σ aᵢdᵢ + (Σ aᵢ)c.
        n, excess = len(self), coefficients.sum()
        inner = torch.outer(coefficients, coefficients) * self._about_center()
        cross = 2 * excess * coefficients * self.with_center[:, :n].sum(0)
        of_center = excess.square() * self.of_center.sum()
        square = inner.sum() + cross.sum() + of_center
        terms = inner.abs().sum() + cross.abs().sum() + of_center
        if not bool(torch.isfinite(terms)) or not square >= _CANCELED * terms:
            return None
        return float(square.clamp(min=0).sqrt())

    def cosines(self, rows: Tensor | None = None) -> Tensor:
        """Cosines between the updates, (n, n); 0 for an update of length 0, the diagonal 1.

        Parameters
        ----------
        rows
            Which clients' rows are wanted, such as one of `parts`; by default all.
        """
        lengths = self.norms()
        own = lengths if rows is None else lengths[rows]
        products = own[:, None] * lengths[None, :]
        cosines = torch.where(products > 0, self.gram(rows) / products, torch.zeros_like(products))
        return _with_own(cosines.clamp_(-1, 1), rows, 1)

    def principal_coordinates(self, components: int) -> Tensor:
        """Coordinates of the updates along their own principal axes, (n, components).

        For the matrix X = U S Vᵀ of the updates these are the first columns of U S, from the
        eigenvectors of the Gram matrix alone; not centered; the sign of an axis is arbitrary.
        Columns beyond the n-th are 0.
        """
        values, vectors = torch.linalg.eigh(self.gram())
        values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
        coordinates = (vectors * values.sqrt())[:, :components]
        return torch.nn.functional.pad(coordinates, (0, components - coordinates.shape[1]))


def _with_own(block: Tensor, rows: Tensor | None, value: float) -> Tensor:
    """Set what each of some clients has with itself."""
    if rows is None:
        return block.fill_diagonal_(value)
    block[torch.arange(len(rows)), rows] = value
    return block


def measure(
    updates: Updates, references: Sequence[str] = (), *, pairs: bool = True, by_layer: bool = True
) -> Geometry:
    """Read the parameters of a round once and measure them.

    Parameters
    ----------
    updates
        The round.
    references
        Names of the round's references that are to be measured with the clients' updates.
    pairs
        Whether clients are compared with each other. Their lengths, and the inner products with
        references, take a third of the time.
    by_layer
        Whether each layer's inner products are kept. Otherwise their sums are, as those of one
        layer, which take n² numbers and not n² per layer.

    Raises
    ------
    NonFiniteError
        A client sent a value that is not finite, and the round has not been checked before; or
        finite ones too large to be squared.
    InputError
        There is nothing to measure, or a reference is missing or too large.
    """
    layers = updates.of_kind(Kind.PARAMETER)
    if not any(layer.size for layer in layers):
        raise InputError("there is nothing to measure: every layer is a buffer")
    for name in references:
        if name not in updates.references:
            raise InputError(f"the round has no reference {name!r} to compare clients with")
    names = tuple(layer.name for layer in layers)
    shapes = tuple(layer.shape for layer in layers)
    groups: Groups = [(layer,) for layer in layers]
    if not by_layer and len(layers) > 1:
        names, shapes, groups = (_EVERY,), (), [layers]
    found = measure_groups(updates, groups, references, pairs=pairs)
    if found is None:  # how clients lie to each other says which center will do
        return measure(updates, references, by_layer=by_layer)
    about_center = found[0]
    # Differences to a center that is immense itself say nothing, nor does its own, which is 0.
    squares = about_center.diagonal(dim1=1, dim2=2).sum(dim=0) + found[2].sum()
    refuse_immeasurable(updates, squares, references)
    if not pairs:
        of_clients = about_center[:, : len(updates), : len(updates)]
        own = of_clients.diagonal(dim1=1, dim2=2).clone()
        of_clients.fill_(torch.nan).diagonal(dim1=1, dim2=2).copy_(own)
    return Geometry(updates.clients, names, *found, tuple(references), shapes)


_EVERY = "every layer"


def measure_groups(
    updates: Updates, groups: Groups, references: Sequence[str], *, pairs: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return `Geometry.about_center`, `with_center` and `of_center` of groups of layers.

    A group's inner products are added up in place, and its distances are trusted, or not, as those
    of one layer. None if pairs are needed to know a group's center, and were not asked for.
    """
    if updates.shards is not None:
        found: tuple[Tensor, Tensor, Tensor] | None = updates.shards.measured(
            updates, groups, references, pairs=pairs
        )
        return found
    layers = [layer for group in groups for layer in group]
    places = {layer.name: place for place, group in enumerate(groups) for layer in group}
    reading = updates.reading(layers, references)
    if reading is None:
        about_center = _by_blocks(updates, groups, references, pairs=pairs)
    else:
        about_center = reading.grams(places, len(groups), pairs=pairs)
    with_center = about_center.new_zeros(about_center.shape[:2])
    of_center = about_center.new_zeros(len(groups))
    if not updates.is_checked and not all(map(_is_finite, about_center)):
        raise NonFiniteError
    least = [_least(group) for group in groups]
    for place in _untrustworthy(about_center, least):
        gram, group = about_center[place], groups[place]
        if _share_products(gram, least[place], updates, group):
            continue
        if not pairs:
            return None
        with_center[place], of_center[place] = _measure_about_center(
            gram, updates, group, _middle(gram), references
        )
    return about_center, with_center, of_center


def _by_blocks(
    updates: Updates, groups: Groups, references: Sequence[str], *, pairs: bool
) -> Tensor:
    """Measure layers with PyTorch, in blocks: on any device, and from any source."""
    n, rows = len(updates), len(updates) + len(references)
    grams = torch.zeros(len(groups), rows, rows, dtype=torch.float64)
    places = {layer.name: place for place, group in enumerate(groups) for layer in group}
    layers = [layer for group in groups for layer in group]
    for block in updates.blocks(layers, check=False, stacked=True, references=references):
        gram = grams[places[block.layer.name]]
        _add_products(gram, block.values, block.references, pairs=pairs)
    grams[:, :n, n:] = grams[:, n:, :n].mT
    own = grams[:, n:, n:]
    own += own.tril(-1).mT
    return grams


def refuse_immeasurable(updates: Updates, squares: Tensor, references: Sequence[str]) -> None:
    """Turn away finite updates whose squares, or sums of whose squares, are beyond float64.

    Parameters
    ----------
    updates
        The round.
    squares
        Squared lengths of the clients' updates, then of the references.
    references
        Their names.
    """
    immense = ~(squares < _LARGEST_SQUARE)
    if not bool(immense.any()):
        return
    for name, bad in zip(references, immense[len(updates) :], strict=True):
        if bad:
            raise InputError(f"{REFERENCES[name]} is too large to be measured")
    of_clients = immense[: len(updates)]
    culprits = [client for client, bad in zip(updates.clients, of_clients, strict=True) if bad]
    raise NonFiniteError(dict.fromkeys(culprits, "its values are too large to be measured"))


def _add_products(
    gram: Tensor, values: Tensor, references: Sequence[Tensor] = (), *, pairs: bool = True
) -> None:
    """Add inner products to a float64 matrix: of rows, and in the lower triangle of references.

    A batched product over chunks of columns keeps all rows of a chunk in the cache, and adding
    the chunks up one after the other makes the sum the same for every block size. References are
    multiplied with the same block while it is in the cache: no row is copied for them, and what is
    measured of the rows does not depend on them. Without `pairs`, rows are multiplied with
    themselves alone.
    """
    n, columns = values.shape
    whole = columns - columns % CHUNK
    step = CHUNK * max(1, _MOST_PRODUCTS // (n * n))
    starts = [(start, min(start + step, whole), CHUNK) for start in range(0, whole, step)]
    for start, stop, size in (*starts, (whole, columns, columns - whole)):
        if start == stop:
            continue
        rows = values[:, start:stop].view(n, -1, size).transpose(0, 1)
        others = [other[start:stop].view(-1, 1, size) for other in references]
        if not pairs:
            squares = torch.linalg.vector_norm(rows, dim=2).cpu().double().square()
            add_in_order(gram.diagonal()[:n], squares)
        elif n * n <= _MOST_PRODUCTS:
            add_in_order(gram[:n, :n], torch.bmm(rows, rows.mT).cpu().to(torch.float64))
        else:  # one chunk, whose products take as much as the matrix itself
            for part in torch.arange(n).split(max(1, _PART // n)):
                some = slice(int(part[0]), int(part[-1]) + 1)
                gram[some, :n] += (rows[0, some] @ rows[0].T).cpu()
        for place, other in enumerate(others):
            # One row from the left: the other way round, a product takes many times longer.
            found = [torch.bmm(other, each.mT)[:, 0] for each in (rows, *others[: place + 1])]
            products = torch.cat(found, 1).cpu().to(torch.float64)
            add_in_order(gram[n + place, : n + place + 1], products)


def _least(layers: Sequence[Layer]) -> float:
    """How small a squared distance may be against the squared norms and still be trusted."""
    return DISTRUST * max(torch.finfo(layer.compute_dtype).eps for layer in layers)


def _is_finite(gram: Tensor) -> bool:
    # A finite sum proves that all its terms are; one that is not may only be too large.
    if bool(torch.isfinite(gram.sum())):
        return True
    return all(bool(torch.isfinite(gram[rows]).all()) for rows in _parts(len(gram)))


def _parts(n: int) -> list[slice]:
    """Cut n rows of n products into parts that may be looked at without much memory."""
    step = max(1, _PART // max(1, n))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _untrustworthy(grams: Tensor, least: Sequence[float]) -> list[int]:
    """Find the groups with a distance so small that rounding of the norms may have made it."""
    norms, bounds = grams.diagonal(dim1=1, dim2=2), torch.tensor(least, dtype=torch.float64)
    found = []
    # Many groups at a time, but no second copy of all Gram matrices.
    step = max(1, _AT_ONCE // grams[0].numel())
    for start in range(0, len(grams), step):
        some = slice(start, start + step)
        doubtful = ~torch.isfinite(norms[some]).all(1)
        for rows in _parts(grams.shape[1]):
            sums = norms[some, rows, None] + norms[some, None, :]
            apart = sums.sub(grams[some, rows], alpha=2)
            # Not above, instead of below: so that NaN counts.
            trusted = (apart >= bounds[some, None, None] * sums) & (apart < torch.inf)
            trusted.diagonal(rows.start, dim1=1, dim2=2).fill_(True)
            doubtful |= ~trusted.flatten(1).all(1)
        found += (start + doubtful.nonzero().flatten()).tolist()
    return found


def _share_products(gram: Tensor, least: float, updates: Updates, layers: Sequence[Layer]) -> bool:
    """Give equal rows equal products, so that their distance is 0.

    False if distances are doubtful, so small against the norms that rounding may have made them,
    of rows that are not equal.
    """
    if not _is_finite(gram):
        return False
    n, norms = len(updates), gram.diagonal()
    doubtful = torch.zeros(len(gram), len(gram), dtype=torch.bool)
    for rows in _parts(len(gram)):
        sums = norms[rows, None] + norms[None, :]
        doubtful[rows] = sums.sub(gram[rows], alpha=2) < least * sums
    doubtful.fill_diagonal_(False)
    if bool(doubtful[n:].any()):
        return False
    first = torch.arange(n)  # the row that each is said to be equal to
    for row in doubtful[:n, :n].any(1).nonzero().flatten().tolist():
        earlier = doubtful[row, :row].nonzero()
        if len(earlier):
            first[row] = first[int(earlier[0])]
    for rows in _parts(n):
        if bool((doubtful[rows, :n] & (first[rows, None] != first[None, :])).any()):
            return False
    del doubtful
    copies = {row: same for row, same in enumerate(first.tolist()) if row != same}
    involved = sorted({*copies, *copies.values()})
    places = {row: place for place, row in enumerate(involved)}
    some = updates.only(updates.clients[row] for row in involved)
    pairs = [(places[row], places[same]) for row, same in copies.items()]
    for block in some.blocks(layers, check=False):
        if not all(torch.equal(block.rows[a], block.rows[b]) for a, b in pairs):
            return False
    for row, same in copies.items():
        gram[row] = gram[same]
        gram[:, row] = gram[:, same]
    return True


def _middle(gram: Tensor) -> int:
    """The row whose median distance to the others is the smallest, roughly.

    An immense one only if all are: then nobody can be measured.
    """
    norms, medians = gram.diagonal(), gram.new_empty(len(gram))
    norms = torch.where(norms < _LARGEST_SQUARE, norms, torch.inf)
    for rows in _parts(len(gram)):
        squared = norms[rows, None] + norms[None, :] - 2 * gram[rows]
        squared = torch.nan_to_num(squared, nan=torch.inf, posinf=torch.inf)
        medians[rows] = squared.median(dim=1).values
    nearest = medians == medians.min()
    return int(torch.where(nearest, norms, torch.inf).argmin())


def _measure_about_center(
    gram: Tensor, updates: Updates, layers: Sequence[Layer], center: int, references: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Measure layers' differences to one row again, in float64, in the place of their products.

    Returns what the differences' products with the center are, and the center's own.
    """
    n = len(gram)
    cross = torch.zeros(n + 1, dtype=torch.float64)
    gram.zero_()
    step = CHUNK * max(1, _EXACT_VALUES // (n * CHUNK))
    for block in updates.blocks(layers, check=False, stacked=True, references=references):
        for start in range(0, block.values.shape[1], step):
            columns = slice(start, start + step)
            rows = [block.values[:, columns], *(other[None, columns] for other in block.references)]
            part = torch.cat(rows).cpu().to(torch.float64)
            # Whole chunks, so that rows lie in memory alike whatever the size of blocks.
            part = torch.nn.functional.pad(part, (0, -part.shape[1] % CHUNK))
            middle = part[center].clone()
            _add_products(gram, part.sub_(middle))
            others = middle.view(-1, 1, CHUNK)
            each = part.view(n, -1, CHUNK).transpose(0, 1), others
            add_in_order(cross, torch.cat([torch.bmm(others, one.mT)[:, 0] for one in each], 1))
    return cross[:n], cross[n]
