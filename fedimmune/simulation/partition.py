"""How a data set is divided among clients: no sample goes to two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from fedimmune.errors import ParameterError
from fedimmune.registry import Configurable, Registry
from fedimmune.validation import check_float, check_fraction, check_int

__all__ = ["Partition", "available", "find", "get", "register"]


_EVEN = 1e12
"""Beyond this alpha all shares are equal, and drawing them would overflow."""


class Partition(Configurable, ABC):
    """A way to divide a data set.

    Parameters
    ----------
    samples
        Use only so many, drawn at random: a smaller, quicker federation. By default all.
    """

    def __init__(self, *, samples: int | None = None) -> None:
        self.samples = None if samples is None else check_int(self.name, "samples", samples, 1)

    def divide(self, labels: Tensor, clients: int, random: torch.Generator) -> list[Tensor]:
        """Divide samples among clients.

        Parameters
        ----------
        labels
            One per sample.
        clients
            How many; if there are more than samples, some get none.
        random
            Source of randomness.

        Returns
        -------
        list of Tensor
            Numbers of each client's samples, int64, ascending; every used sample is there once.

        Raises
        ------
        ParameterError
            There are fewer samples than `samples`.
        """
        if self.samples is None:
            return self._divide(labels, clients, random)
        if self.samples > len(labels):
            raise ParameterError(
                f"{self.name}: samples = {self.samples}, but there are only {len(labels)}"
            )
        drawn = _shuffled(torch.arange(len(labels)), random)[: self.samples].sort().values
        return [drawn[part] for part in self._divide(labels[drawn], clients, random)]

    @abstractmethod
    def _divide(self, labels: Tensor, clients: int, random: torch.Generator) -> list[Tensor]:
        """Divide all samples."""


class Dirichlet(Partition):
    """For each class, shares drawn from a Dirichlet distribution, as in Wan and Chen (2021).

    Parameters
    ----------
    alpha
        Concentration: the smaller, the more one-sided. Sizes vary as well.
    samples
        Use only so many.
    """

    name = "dirichlet"
    summary = "for each class, shares drawn from a Dirichlet distribution; sizes vary"
    symbols = {"alpha": "α"}

    def __init__(self, *, alpha: float = 0.9, samples: int | None = None) -> None:
        super().__init__(samples=samples)
        self.alpha = check_float(self.name, "alpha", alpha, 0)

    def _divide(self, labels: Tensor, clients: int, random: torch.Generator) -> list[Tensor]:
        draw = _numpy(random)
        held: list[list[Tensor]] = [[] for _ in range(clients)]
        for label in labels.unique().tolist():
            members = _shuffled((labels == label).nonzero().flatten(), random)
            shares = draw.dirichlet(np.full(clients, min(self.alpha, _EVEN)))
            if not np.isfinite(shares).all():  # a tiny alpha: all to one client
                shares = np.eye(clients)[draw.integers(clients)]
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).clip(0, len(members))
            pieces = members.tensor_split(torch.from_numpy(cuts.astype(np.int64)))
            for client, piece in zip(held, pieces, strict=True):
                client.append(piece)
        return [torch.cat(pieces).sort().values for pieces in held]


class Iid(Partition):
    """At random: all clients' data look alike, and sizes differ by one at most.

    Parameters
    ----------
    samples
        Use only so many.
    """

    name = "iid"
    summary = "at random: equal sizes, all alike"

    def _divide(self, labels: Tensor, clients: int, random: torch.Generator) -> list[Tensor]:
        order = _shuffled(torch.arange(len(labels)), random)
        return [piece.sort().values for piece in order.tensor_split(clients)]


class GammaSimilarity(Partition):
    """A share of the samples drawn blindly, the rest sorted by label and cut into equal pieces.

    The split of Karimireddy et al. (ICML 2020) and of ByzFL's benchmark.

    Parameters
    ----------
    gamma
        The share that is drawn blindly: 1 is ``iid``, 0 gives each client one or two classes.
    samples
        Divide only so many.
    """

    name = "gamma-similarity"
    summary = "a share γ drawn blindly, the rest sorted by label; equal sizes"
    symbols = {"gamma": "γ"}

    def __init__(self, *, gamma: float = 0.5, samples: int | None = None) -> None:
        super().__init__(samples=samples)
        self.gamma = check_fraction(self.name, "gamma", gamma)

    def _divide(self, labels: Tensor, clients: int, random: torch.Generator) -> list[Tensor]:
        order = _shuffled(torch.arange(len(labels)), random)
        alike = round(self.gamma * len(order))
        rest = order[alike:][labels[order[alike:]].argsort(stable=True)]
        pieces = zip(order[:alike].tensor_split(clients), rest.tensor_split(clients), strict=True)
        return [torch.cat(both).sort().values for both in pieces]


class ByLabel(Partition):
    """Sorted by label and cut into shards, a few per client, as in McMahan et al. (2017).

    Parameters
    ----------
    shards
        Number per client: it sees about that many classes.
    samples
        Use only so many.
    """

    name = "by-label"
    summary = "sorted by label and cut into shards: each client sees few classes"

    def __init__(self, *, shards: int = 2, samples: int | None = None) -> None:
        super().__init__(samples=samples)
        self.shards = check_int(self.name, "shards", shards, 1)

    def _divide(self, labels: Tensor, clients: int, random: torch.Generator) -> list[Tensor]:
        order = _shuffled(torch.arange(len(labels)), random)
        by_label = order[labels[order].argsort(stable=True)]
        pieces = by_label.tensor_split(clients * self.shards)
        shards = torch.randperm(len(pieces), generator=random).reshape(clients, self.shards)
        return [torch.cat([pieces[i] for i in own]).sort().values for own in shards.tolist()]


_PARTITIONS: Registry[Partition] = Registry("partition", (Dirichlet, Iid, ByLabel, GammaSimilarity))

register = _PARTITIONS.register
available = _PARTITIONS.available
find = _PARTITIONS.find
get = _PARTITIONS.get


def _shuffled(indices: Tensor, random: torch.Generator) -> Tensor:
    return indices[torch.randperm(len(indices), generator=random)]


def _numpy(random: torch.Generator) -> np.random.Generator:
    """Return a NumPy generator: PyTorch's Dirichlet distribution takes no generator."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=random)))
