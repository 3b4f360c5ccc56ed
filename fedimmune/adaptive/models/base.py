"""What all forms of the learned rule share: passes of attention over the clients (Algorithm 1).

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021: T times, an
estimate of the robust mean is compared with every client; a client's weight follows from its score,
and the next estimate from the weights. A form defines what an estimate and a score are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedimmune.errors import InputError

__all__ = [
    "MOST_VALUE",
    "MOST_WIDTH",
    "AttentionModel",
    "Feature",
    "FirstLayer",
    "FormSettings",
    "Inputs",
    "Weighed",
    "ideal_weights",
    "with_tensors",
]

MOST_WIDTH = 100_000
"""No layer of a network has more inputs or outputs."""
MOST_VALUE = 1e12
"""No weight of a network is larger: what is computed with it stays finite."""

Inputs = Mapping[str, Tensor]
"""What a form reads of a batch of rounds, by name; one row per round. Nothing in it is learned."""


class FormSettings(BaseModel):
    """What a form is made with, besides what it learns.

    Parameters
    ----------
    c
        How sharply weights follow scores.
    eps
        A client with less than eps / n of the weight gets none.
    passes
        Number of estimates (T).
    layers
        Number of measured layers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    c: float = Field(10.0, gt=0, le=MOST_VALUE)
    eps: float = Field(0.5, ge=0, lt=1)
    passes: int = Field(5, ge=1, le=1000)
    layers: int = Field(ge=1, le=MOST_WIDTH)


@dataclass(frozen=True)
class Weighed:
    """The outcome of the passes for a batch of rounds.

    Parameters
    ----------
    weights
        After truncation, (rounds, n); they sum to one or, if something was cut off, less.
    scores
        Of every pass, (passes, rounds, n), each from −1, an attacker, to 1.
    logits
        What the last weights follow from, (rounds, n): c times the score, and evidence.
    """

    weights: Tensor
    scores: Tensor
    logits: Tensor

    @property
    def shares(self) -> Tensor:
        """The weights, scaled to a sum of one: what the rule uses."""
        return self.weights / self.weights.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Feature:
    """What one input of a form's network is: the layer, from 0, and what is measured there.

    The layer is None if all layers share the input.
    """

    layer: int | None
    kind: str


@dataclass(frozen=True)
class FirstLayer:
    """The first layer of a form's network, or a part: weights, (hidden, inputs), and the inputs."""

    weight: Tensor
    features: Sequence[Feature]


class AttentionModel(nn.Module, ABC):
    """One form of the learned rule.

    Parameters
    ----------
    settings
        What it is made with.
    """

    name: ClassVar[str]
    side_by_side: ClassVar[frozenset[str]]
    """Inputs that have the layers side by side in their last dimension; others have them first."""

    def __init__(self, settings: FormSettings) -> None:
        super().__init__()
        self.settings = settings

    @property
    def references(self) -> tuple[str, ...]:
        """Names of the references that clients are compared with; by default none."""
        return ()

    @property
    def dtype(self) -> torch.dtype:
        """What the form computes in."""
        return next(self.parameters()).dtype

    @abstractmethod
    def prepare(
        self, grams: Tensor, shapes: Sequence[Sequence[int]] = (), *, anchored: bool = False
    ) -> dict[str, Tensor]:
        """Read what the form needs out of Gram matrices, (rounds, layers, rows, rows), float64.

        The rows of its `references` follow the clients'; of a form that can do with or without the
        anchor, the anchor's if they are `anchored`. `shapes` are those of the layers, in order, for
        a form that does not know the model.
        """

    @abstractmethod
    def start(self, inputs: Inputs) -> Tensor:
        """Return the first estimate of the robust mean."""

    @abstractmethod
    def keys(self, inputs: Inputs) -> Any:
        """Encode every client, once for all passes, without the estimate; `score` is given it."""

    @abstractmethod
    def score(self, inputs: Inputs, keys: Any, estimate: Tensor) -> Tensor:
        """Compare every client with the estimate, (rounds, n), from −1 to 1."""

    @abstractmethod
    def estimate(self, inputs: Inputs, weights: Tensor) -> Tensor:
        """Return the next estimate."""

    @abstractmethod
    def first_layers(self) -> list[FirstLayer]:
        """Return the layers that read features, for their importance."""

    @abstractmethod
    def describe(self, inputs: Inputs, estimate: Tensor) -> Tensor:
        """Return what the form sees of each client and an estimate, (rounds, n, features).

        Lengths are left out if they are features of their own: how long updates are depends on how
        long clients train, which a rehearsal cannot know.
        """

    @property
    @abstractmethod
    def described_by(self) -> int:
        """Number of features that `describe` returns per client."""

    @abstractmethod
    def loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        """Return how far from the robust mean the weights lead, averaged over the batch."""

    def choosing_loss(self, inputs: Inputs, weighed: Weighed, attackers: Tensor) -> Tensor:
        """Return what the kept epoch has least of; by default the loss."""
        return self.loss(inputs, weighed, attackers)

    def usable(self, inputs: Inputs) -> Tensor:
        """Return which rounds to learn from, (rounds,), bool; by default all."""
        first = next(iter(inputs.values()))
        return torch.ones(len(first), dtype=torch.bool)

    def familiar(self, inputs: Inputs) -> Tensor:
        """Return which rounds look like those trained on, (rounds,), bool; by default all."""
        first = next(iter(inputs.values()))
        return torch.ones(len(first), dtype=torch.bool)

    def augmented(self, inputs: Inputs, random: torch.Generator) -> Inputs:
        """Vary a batch that is about to be trained on; by default it stays as it is."""
        return inputs

    def forward(self, inputs: Inputs, evidence: Tensor | None = None) -> Weighed:
        """Weigh the clients of a batch of rounds.

        Parameters
        ----------
        inputs
            From `prepare`.
        evidence
            From earlier rounds, (rounds, n), added to the logits.
        """
        keys, estimate = self.keys(inputs), self.start(inputs)
        scores = []
        for _ in range(self.settings.passes):
            scores.append(self.score(inputs, keys, estimate))
            logits = self.settings.c * scores[-1]
            logits = logits if evidence is None else logits + evidence
            weights = self.attend(logits)
            estimate = self.estimate(inputs, weights)
        return Weighed(weights, torch.stack(scores), logits)

    def attend(self, logits: Tensor) -> Tensor:
        """Turn logits into weights: softmax, and nothing for who has less than eps / n."""
        weights = torch.softmax(logits, -1)
        least = self.settings.eps / weights.shape[-1]
        return torch.where(weights < least, torch.zeros_like(weights), weights)


def ideal_weights(attackers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights of the robust mean, (rounds, n): the same for all honest clients."""
    benign = (~attackers).to(dtype)
    return benign / benign.sum(-1, keepdim=True)


Network = TypeVar("Network", bound=nn.Module)


def with_tensors(make: Callable[[], Network], tensors: Mapping[str, Tensor]) -> Network:
    """Make a network of saved tensors, which have to be exactly its own.

    Parameters
    ----------
    make
        Returns the network; nothing is allocated for its tensors.
    tensors
        By name. They are copied.

    Raises
    ------
    InputError
        One is missing, unknown, of another shape, or holds values that no network has.
    """
    with torch.device("meta"):
        made = make()
    wanted = made.state_dict()
    if odd := sorted(wanted.keys() ^ tensors.keys()):
        raise InputError(f"its network {'lacks' if odd[0] in wanted else 'has no'} {odd[0]!r}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise InputError(
                f"{name!r} has the shape {tuple(tensor.shape)}, and its network "
                f"{tuple(wanted[name].shape)}"
            )
        if tensor.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{name!r} holds {tensor.dtype}")
        if not bool((tensor.abs() <= MOST_VALUE).all()):  # false for NaN too
            raise InputError(f"{name!r} holds values that are not finite, or above {MOST_VALUE:g}")
    made.load_state_dict({name: each.clone() for name, each in tensors.items()}, assign=True)
    return made
