"""What may happen to a round before a rule sees it: updates are mixed, grouped or shortened.

All of it is linear: the rows that the rule sees are M times the clients' updates. Inner products G
become M G Mᵀ, and a rule's weights a of the rows become Mᵀa of the clients. So a step before a rule
that looks at inner products needs no copy of any update, and the answer is still per client. Before
other rules, rows are made block by block.
"""

from __future__ import annotations

import ast
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedimmune._layers import Kind, Layer
from fedimmune._sources import Source, room, shaped
from fedimmune.errors import ParameterError
from fedimmune.geometry import Geometry
from fedimmune.registry import Configurable, Registry
from fedimmune.updates import ClientId, Updates
from fedimmune.validation import check_float, check_int, check_measure, check_open_fraction

__all__ = [
    "ARC",
    "NNM",
    "Before",
    "Bucketing",
    "Clip",
    "Mixing",
    "PreAggregator",
    "lot",
    "mixed",
    "parse",
    "shortening",
]

_LONGEST_TEXT = 500


@dataclass(frozen=True)
class Mixing:
    """How rows are made of clients' updates.

    Parameters
    ----------
    matrix
        (rows, n), float64: row i is the sum of ``matrix[i, j]`` times the update of client j.
    shares
        (rows, n): what part of row i is client j's; rows sum to one. To shorten an update takes no
        share from it.
    owner
        (n,): the row that stands for each client.
    """

    matrix: Tensor
    shares: Tensor
    owner: Tensor

    @classmethod
    def of(cls, matrix: Tensor, owner: Tensor | None = None) -> Mixing:
        """Make the mixing of one step; by default row i stands for client i."""
        shares = matrix / matrix.sum(1, keepdim=True)
        return cls(matrix, shares, torch.arange(len(matrix)) if owner is None else owner)

    def then(self, later: Mixing) -> Mixing:
        """Return this step and a later one as one."""
        return Mixing(
            later.matrix @ self.matrix, later.shares @ self.shares, later.owner[self.owner]
        )

    def names(self, clients: Sequence[ClientId]) -> tuple[ClientId, ...]:
        """Name each row after the first client that it stands for."""
        first = dict(zip(self.owner.tolist()[::-1], clients[::-1], strict=True))
        return tuple(first[row] for row in range(len(self.matrix)))


class PreAggregator(Configurable, ABC):
    """A step before a rule. Parameters are keyword-only (a first one may go without its name)."""

    paper: str
    """Where it is from."""
    regroups = False
    """Whether rows stand for groups of clients, which no rule can remember."""

    @property
    def has_history(self) -> bool:
        """Whether the answer depends on earlier rounds."""
        return False

    def rows_of(self, n: int) -> int:
        """Return how many rows are made of n."""
        return n

    def breakdown(self, n: int, attackers: int) -> int:
        """Return how many of n rows may be anything without spoiling more rows than those.

        By default all.

        Parameters
        ----------
        n
            How many rows the step sees.
        attackers
            As for `mix`.
        """
        return n

    @abstractmethod
    def mix(self, geometry: Geometry, attackers: int, round_number: int) -> Mixing:
        """Return how to mix the clients of a round.

        Parameters
        ----------
        geometry
            Of the clients, or of the rows that an earlier step made of them.
        attackers
            How many the rule takes to attack (f): for a step that is not told itself.
        round_number
            For steps that draw lots: each round anew.
        """

    def __str__(self) -> str:
        """Show it as it is written: ``clip(at=2.0)``."""
        said = [
            f"{name}={getattr(self, name)!r}".replace("'", "")
            for name, default in self.parameters().items()
            if getattr(self, name) != default
        ]
        return f"{self.name}({', '.join(said)})" if said else self.name


class _WithAttackers(PreAggregator):
    """A step for at most f attackers."""

    symbols = {"attackers": "f"}

    def __init__(self, attackers: int | None = None) -> None:
        self.attackers = (
            None if attackers is None else check_int(self.name, "attackers", attackers, 0)
        )

    def attackers_of(self, n: int, attackers: int) -> int:
        """Return how many of n rows are taken to attack, given what the rule takes them for."""
        return min(attackers if self.attackers is None else self.attackers, n - 1)


class NNM(_WithAttackers):
    """Nearest-neighbor mixing: each update becomes the mean of its n − f nearest, itself included.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: *Fixing by Mixing: A Recipe for Optimal
    Byzantine ML under Heterogeneity*, AISTATS 2023.

    Parameters
    ----------
    attackers
        How many clients may attack (f). By default as many as the rule behind it goes by.
    """

    name = "nnm"
    summary = "each update becomes the mean of its n − f nearest"
    paper = "Allouah et al., AISTATS 2023"

    def breakdown(self, n: int, attackers: int) -> int:
        return self.attackers_of(n, attackers)  # of one more, every mean has a part

    def mix(self, geometry: Geometry, attackers: int, round_number: int) -> Mixing:
        n = len(geometry)
        squared = geometry.squared_distances().fill_diagonal_(-1)  # itself first
        nearest = squared.argsort(dim=1, stable=True)[:, : n - self.attackers_of(n, attackers)]
        matrix = torch.zeros(n, n, dtype=torch.float64)
        matrix.scatter_(1, nearest, 1 / nearest.shape[1])
        return Mixing.of(matrix)


class Bucketing(PreAggregator):
    """Clients are drawn into groups, and each group's mean is one row.

    Karimireddy, He, Jaggi: *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*,
    ICLR 2022. A last group of fewer is averaged over its own size. There are fewer rows than
    clients, and no fewer attackers.

    Parameters
    ----------
    size
        How many clients a group has.
    seed
        Lots are drawn from it, the round's number and the clients' ids; in every round anew.
    """

    name = "bucketing"
    summary = "means of random groups of clients"
    paper = "Karimireddy et al., ICLR 2022"
    symbols = {"size": "s"}
    regroups = True

    def __init__(self, size: int = 2, *, seed: int = 0) -> None:
        self.size = check_int(self.name, "size", size, 1)
        self.seed = check_int(self.name, "seed", seed, 0)

    def rows_of(self, n: int) -> int:
        return -(-n // self.size)

    def mix(self, geometry: Geometry, attackers: int, round_number: int) -> Mixing:
        n = len(geometry)
        # By id, so that the order in which clients are given does not matter.
        lots = [lot(self.seed, round_number, client) for client in geometry.clients]
        owner = torch.empty(n, dtype=torch.long)
        owner[torch.as_tensor(sorted(range(n), key=lots.__getitem__))] = torch.arange(n) // min(
            self.size, n
        )
        matrix = torch.zeros(self.rows_of(n), n, dtype=torch.float64)
        matrix[owner, torch.arange(n)] = 1
        return Mixing.of(matrix / matrix.sum(1, keepdim=True), owner)


class Clip(PreAggregator):
    """Updates that are too long are shortened.

    Sun, Kairouz, Suresh, McMahan: *Can You Really Backdoor Federated Learning?*, 2019. The running
    quantile is that of Andrew, Thakkar, McMahan, Ramaswamy: *Differentially Private Learning with
    Adaptive Clipping*, NeurIPS 2021, without noise: C becomes C · exp(−rate · (b − quantile)), with
    b the share of updates that are no longer than C. It begins at the first round's quantile.

    Parameters
    ----------
    at
        The longest that an update may be: a number, ``"median"`` for the round's median length, or
        ``"quantile"`` for a quantile of lengths that is followed from round to round.
    times
        For a median or quantile: allow this many times that length.
    quantile, rate
        Of the running quantile.
    """

    name = "clip"
    summary = "shortens updates that are too long"
    paper = "Sun et al. 2019; Andrew et al., NeurIPS 2021"

    def __init__(
        self,
        at: float | str = "median",
        *,
        times: float = 1.0,
        quantile: float = 0.5,
        rate: float = 0.2,
    ) -> None:
        self.at = check_measure(self.name, "at", at, "median", "quantile")
        self.times = check_float(self.name, "times", times, 0)
        self.quantile = check_open_fraction(self.name, "quantile", quantile, below=1)
        self.rate = check_float(self.name, "rate", rate, 0, most=100)
        self.length: float | None = None
        """Where the running quantile is; None before the first round."""
        self._next: float | None = None

    @property
    def has_history(self) -> bool:
        return self.at == "quantile"

    def mix(self, geometry: Geometry, attackers: int, round_number: int) -> Mixing:
        lengths = geometry.norms()
        if self.at != "quantile":
            return _shortened(shortening(lengths, self.at, self.times))
        length = float(lengths.quantile(self.quantile)) if self.length is None else self.length
        below = float((lengths <= length).double().mean())
        # A quantile of 0, of clients who sent nothing, would never grow: it is not begun with.
        self._next = length * math.exp(-self.rate * (below - self.quantile)) or None
        return _shortened(shortening(lengths, self.times * length))

    def finish(self) -> None:
        """Take note of a round that has been aggregated."""
        self.length = self._next


class ARC(_WithAttackers):
    """Adaptive robust clipping: the k longest updates are cut to the length of the next.

    Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: *Adaptive Gradient Clipping for Robust
    Federated Learning*, ICLR 2025. k = ⌊2f(n − f)/n⌋.

    Parameters
    ----------
    attackers
        How many clients may attack (f). By default as many as the rule behind it goes by.
    """

    name = "arc"
    summary = "shortens the ⌊2f(n − f)/n⌋ longest updates to the next one's length"
    paper = "Allouah et al., ICLR 2025"

    def mix(self, geometry: Geometry, attackers: int, round_number: int) -> Mixing:
        lengths, n = geometry.norms(), len(geometry)
        f = self.attackers_of(n, attackers)
        count = min(2 * f * (n - f) // n, n - 1)
        return _shortened(shortening(lengths, float(lengths.sort().values[n - 1 - count])))


def shortening(lengths: Tensor, most: float | str, times: float = 1.0) -> Tensor:
    """Return what to multiply vectors by that may not be longer than `most`, at most 1.

    Parameters
    ----------
    lengths
        How long they are.
    most
        A number, or ``"median"`` for the median length `times` a number.
    """
    limit = times * float(lengths.quantile(0.5)) if isinstance(most, str) else most
    factors = (limit / lengths.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
    return torch.where(lengths <= limit, 1.0, factors)


def _shortened(factors: Tensor) -> Mixing:
    """Shorten updates; a factor of 0 would leave nothing to share."""
    return Mixing.of(factors.clamp(min=1e-300).diag())


def lot(seed: int | str, round_number: int, client: ClientId) -> bytes:
    """Draw a client's lot in a round: whoever sorts by lots has groups that nobody chose."""
    return hashlib.sha256(f"{seed}:{round_number}:{client!r}".encode()).digest()


# -------------------------------------------------------------------- written as text

Before: TypeAlias = str | PreAggregator | Iterable[PreAggregator | str]
"""What `before=` takes: steps, or their text such as ``"clip(at=2),nnm"``."""

_STEPS: Registry[PreAggregator] = Registry("pre-aggregator", [NNM, Bucketing, Clip, ARC], base=None)
available = _STEPS.available
find = _STEPS.find


def parse(given: Before) -> tuple[PreAggregator, ...]:
    """Read what was given for `before=`.

    Raises
    ------
    ParameterError
        It is not a list of steps; the message says what is wrong.
    """
    if isinstance(given, PreAggregator):
        return (given,)
    if isinstance(given, str):
        return _read(given)
    if not isinstance(given, Iterable):
        raise ParameterError(f"before: expected steps such as 'clip(at=2),nnm': {given!r}")
    steps: list[PreAggregator] = []
    for each in given:
        if not isinstance(each, str | PreAggregator):
            raise ParameterError(f"before: {each!r} is not a step; there are {_listed()}")
        steps += _read(each) if isinstance(each, str) else [each]
    return tuple(steps)


def _read(text: str) -> tuple[PreAggregator, ...]:
    if not text.strip():
        return ()
    problem = f"before: cannot read {text[:60]!r}; write steps such as 'clip(at=2),nnm'"
    if len(text) > _LONGEST_TEXT:
        raise ParameterError(problem)
    try:
        found = ast.parse(f"({text},)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ParameterError(problem) from None
    if not isinstance(found, ast.Tuple):
        raise ParameterError(problem)
    return tuple(_step(each, text, problem) for each in found.elts)


def _step(node: ast.expr, text: str, problem: str) -> PreAggregator:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise ParameterError(problem)
    member = _STEPS.find(call.func.id)
    names = list(member.parameters())
    if len(call.args) > min(1, len(names)) or any(each.arg is None for each in call.keywords):
        raise ParameterError(problem)
    given = [*zip(names, call.args, strict=False)]
    given += [(str(each.arg), each.value) for each in call.keywords]
    if len(dict(given)) < len(given):
        raise ParameterError(f"before: {member.name} is given a parameter twice in {text[:60]!r}")
    return _STEPS.get(member.name, **{name: _value(v, problem) for name, v in given})


def _value(node: ast.expr, problem: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ParameterError(problem) from None


def _listed() -> str:
    return ", ".join(available())


# -------------------------------------------------------------------- before rules of coordinates


def mixed(updates: Updates, mixing: Mixing) -> Updates:
    """Return a round of mixed rows, made block by block while it is read."""
    clients, samples = mixing.names(updates.clients), updates.samples
    if samples is not None:
        held = torch.tensor([float(samples.get(c, 0)) for c in updates.clients]).double()
        members = torch.bincount(mixing.owner, minlength=len(mixing.matrix))
        sums = torch.zeros(len(members), dtype=torch.float64).index_add_(0, mixing.owner, held)
        samples = dict(zip(clients, (sums / members).tolist(), strict=True))
    source = _MixedSource(updates.source, mixing)
    return replace(updates, clients=clients, source=source, samples=samples, shards=None)


class _MixedSource(Source):
    """Rows that are sums of a source's rows."""

    def __init__(self, source: Source, mixing: Mixing, rows: Sequence[int] | None = None) -> None:
        self._source, self._mixing = source, mixing
        self._rows = list(range(len(mixing.matrix))) if rows is None else list(rows)

    @property
    def device(self) -> torch.device:
        return self._source.device

    def read(self, layer: Layer, start: int, stop: int, buffer: Tensor) -> Tensor:
        n = self._mixing.matrix.shape[1]
        own = room(n, stop - start, buffer.dtype, buffer.device)
        values = self._source.read(layer, start, stop, own)
        # Statistics are not steps: they are averaged, and never shortened.
        kind = self._mixing.matrix if layer.kind is Kind.PARAMETER else self._mixing.shares
        # Rows that are mixed alike are made once: a product's rounding depends on the row's place.
        distinct, places = kind[self._rows].unique(dim=0, return_inverse=True)
        found = torch.mm(distinct.to(values.device, values.dtype), values)
        out = shaped(buffer, len(self._rows), stop - start)
        return torch.index_select(found, 0, places.to(values.device), out=out)

    def take(self, rows: Sequence[int]) -> _MixedSource:
        return _MixedSource(self._source, self._mixing, [self._rows[row] for row in rows])

    def counters(self, layer: Layer) -> Tensor:
        return self._source.counters(layer)

    def flatten(self, layer: Layer, tensor: Tensor) -> Tensor:
        return self._source.flatten(layer, tensor)

    def unflatten(self, layer: Layer, columns: Tensor) -> Tensor:
        return self._source.unflatten(layer, columns)

    def base_of(self, layer: Layer) -> Tensor | None:
        return self._source.base_of(layer)
