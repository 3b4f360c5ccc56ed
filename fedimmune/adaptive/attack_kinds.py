"""Which kind of attack a suspected client carries out: a second, small classifier.

It reads what the form reads of a client, except lengths: how long updates are depends on how long
clients train, which a rehearsal cannot know. It has learned the kinds that were rehearsed and, as
*unknown*, synthetic attacks. Its confidence is calibrated on the held-out run: all logits are
divided by the temperature that makes that run most likely (Guo et al., *On Calibration of Modern
Neural Networks*, 2017).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedimmune.adaptive.models.base import AttentionModel, with_tensors
from fedimmune.adaptive.recordings import Recording
from fedimmune.adaptive.synthetic_attacks import invent
from fedimmune.errors import InputError
from fedimmune.results import UNKNOWN

__all__ = ["Kinds", "learn_kinds"]

_HIDDEN = 64
_EPOCHS = 30
_BATCH = 64
_LEARNING_RATE = 1e-3
_DECAY = 1e-2
_NOISE = 0.3
"""Added to the features in training, in units of their spread: real rounds are not rehearsals."""
_COPIES = 2
"""Number of synthetic rounds for each rehearsed one."""
_TEMPERATURES = torch.logspace(-1, 2, 61, dtype=torch.float64)


class Kinds(nn.Module):
    """A perceptron from what a form sees of a client to the kind of its attack.

    Parameters
    ----------
    names
        The kinds it can tell; anything else is unknown.
    features
        How many numbers describe a client.
    """

    mean: Tensor
    spread: Tensor
    temperature: Tensor

    def __init__(self, names: Sequence[str], features: int) -> None:
        super().__init__()
        self.names = (*names, UNKNOWN)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("spread", torch.ones(features))
        self.register_buffer("temperature", torch.ones(()))
        self.network = nn.Sequential(
            nn.Linear(features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, len(self.names))
        )

    def forward(self, described: Tensor) -> Tensor:
        """Return logarithms of the kinds' probabilities, the last being that of unknown."""
        logits = self.network((described - self.mean) / self.spread) / self.temperature
        return torch.log_softmax(logits, -1)

    @classmethod
    def from_tensors(cls, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Kinds:
        """Make a classifier of saved tensors.

        Raises
        ------
        InputError
            They do not fit.
        """
        mean = tensors.get("mean")
        if mean is None or mean.ndim != 1 or not len(mean):
            raise InputError("the kinds of attack it tells apart have no mean")
        made = with_tensors(lambda: cls(names, len(mean)), tensors)
        if not bool((made.spread > 0).all() & (made.temperature > 0)):
            raise InputError("the kinds of attack it tells apart have no spread or temperature")
        return made.double().eval()


@dataclass(frozen=True)
class _Seen:
    """Attackers as a form describes them, and their kinds by number."""

    described: Tensor
    kinds: Tensor


def learn_kinds(
    form: AttentionModel,
    to_train: Sequence[Recording],
    to_validate: Sequence[Recording],
    *,
    seed: int,
) -> Kinds | None:
    """Train a classifier on the attackers of recordings, and calibrate it on those of another run.

    Clients are described by `form`, which is trained already. None if nobody attacks.
    """
    names = sorted({each.about.attack for each in to_train} - {"none"})
    if not names:
        return None
    if UNKNOWN in names:
        raise InputError(f"an attack cannot be called {UNKNOWN!r}: that is for all others")
    random = torch.Generator().manual_seed(seed)
    known = _attackers(form, to_train, names, random)
    held_out = _attackers(form, to_validate, names, random)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kinds = Kinds(names, known.described.shape[1]).double()
    kinds.mean.copy_(known.described.mean(0))
    kinds.spread.copy_(known.described.std(0).clamp(min=1e-3))
    _fit(kinds, known, random)
    _calibrate(kinds, held_out)
    return kinds.eval()


def _fit(kinds: Kinds, known: _Seen, random: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(kinds.parameters(), _LEARNING_RATE, weight_decay=_DECAY)
    weights = _even(known.kinds, len(kinds.names))
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(known.kinds), generator=random).split(_BATCH):
            seen = known.described[rows]
            noise = torch.randn(seen.shape, generator=random, dtype=seen.dtype)
            found = kinds(seen + _NOISE * kinds.spread * noise)
            loss = nn.functional.nll_loss(found, known.kinds[rows], weight=weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def _calibrate(kinds: Kinds, held_out: _Seen) -> None:
    """Find the temperature under which the kinds of held-out attackers are most likely."""
    if not len(held_out.kinds):
        return
    kinds.eval()
    logits = kinds(held_out.described)
    weights = _even(held_out.kinds, len(kinds.names))
    losses = [
        nn.functional.cross_entropy(logits / temperature, held_out.kinds, weight=weights)
        for temperature in _TEMPERATURES
    ]
    kinds.temperature.copy_(_TEMPERATURES[int(torch.stack(losses).argmin())])


def _even(kinds: Tensor, count: int) -> Tensor:
    """Return weights under which all kinds that occur count alike."""
    return 1 / torch.bincount(kinds, minlength=count).clamp(min=1).double()


@torch.no_grad()
def _attackers(
    form: AttentionModel,
    recordings: Sequence[Recording],
    names: Sequence[str],
    random: torch.Generator,
) -> _Seen:
    """Describe the attackers of recordings, and of synthetic rounds made from them."""
    described: list[Tensor] = []
    kinds: list[Tensor] = []
    for recording in recordings:
        if recording.about.attack not in names:
            continue
        attackers, (grams, about) = recording.attackers, recording.seen_by(form)
        seen, _ = _described(form, grams, about)
        described.append(seen[attackers])
        kinds.append(torch.full((len(described[-1]),), names.index(recording.about.attack)))
        for _ in range(_COPIES):
            seen, accused = _described(form, invent(grams, attackers, random), about)
            # Only suspects are ever classified.
            described.append(seen[attackers & accused])
            kinds.append(torch.full((len(described[-1]),), len(names)))
    if not described:
        return _Seen(torch.empty(0, 0, dtype=torch.float64), torch.empty(0, dtype=torch.long))
    return _Seen(torch.cat(described).double(), torch.cat(kinds))


def _described(
    form: AttentionModel, grams: Tensor, about: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return what the form sees of the clients and its last estimate, and who has no weight."""
    inputs = form.prepare(grams, **about)
    weighed = form(inputs)
    estimate = form.estimate(inputs, weighed.shares)
    return form.describe(inputs, estimate), weighed.weights == 0
