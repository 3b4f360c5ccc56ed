"""A detector of odd updates: a variational autoencoder of honest ones, its file, its training.

Of each update some values of the last layer are looked at (the *surrogate vector*). The network has
learned to reconstruct those of honest clients, in rehearsals on the server's own data; an update
that it reconstructs badly is odd. The rule ``spectral`` uses it.

References
----------
Li, Cheng, Wang, Liu, Chen: *Learning to Detect Malicious Clients for Robust Federated Learning*,
arXiv:2002.00211. The authors' program (Suyi32/Learning-to-Detect-Malicious-Clients-for-Robust-FL)
has hidden layers of 500 and 500, 20 latent numbers, a softplus of the logarithm of the variance and
a sigmoid at the end; it looks at values of the models, not of their changes, takes the latent
numbers at random when it detects, and adds their Kullback-Leibler term to the error. Here updates
are standardized, so the end is linear; a smaller network is enough, and the same update always has
the same error. How the authors trained their network is not in their program.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from fedimmune import __version__
from fedimmune.adaptive.description import Epoch
from fedimmune.adaptive.evaluation import detection
from fedimmune.adaptive.models.base import with_tensors
from fedimmune.adaptive.recordings import Recording, Sampled, digest_of
from fedimmune.adaptive.split import hold_out
from fedimmune.errors import InputError, ParameterError
from fedimmune.io import read_described, write_described
from fedimmune.untrusted import first_problem, naming

__all__ = ["Autoencoder", "Detector", "DetectorAbout", "DetectorSettings", "train_detector"]

_FORMAT = "fedimmune-detector-1"
_MOST_WIDTH = 10_000
_BATCH, _LR = 256, 1e-3
_FLATTEST = 1e-3
"""No value's deviation counts as less than this share of the usual one."""
_FARTHEST = 1e6
"""Standardized values beyond this are not told apart: errors stay finite."""
_INDISTINCT = 1e-9
"""An error above the mean by less than this share of it is not above it."""

_Width = Annotated[int, Field(ge=1, le=_MOST_WIDTH)]


class DetectorSettings(BaseModel):
    """The network's size.

    Parameters
    ----------
    hidden
        Widths of the encoder's hidden layers; the decoder has them in reverse.
    latent
        Number of latent numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: tuple[_Width, ...] = Field((64, 32), min_length=1, max_length=8)
    latent: _Width = 8


class DetectorAbout(BaseModel):
    """What a detector was made for and from.

    Parameters
    ----------
    task
        What was rehearsed.
    shape
        Of the layer that it looks at.
    sampled
        The layer, and which of its values.
    settings
        The network's size.
    training
        How it was trained.
    validation
        Figures on rehearsals held out, one table row each.
    recordings
        Digest of the recordings.
    version
        Of fedimmune that made it.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    shape: tuple[int, ...]
    sampled: Sampled
    settings: DetectorSettings = DetectorSettings()
    training: dict[str, Any] = {}
    validation: tuple[dict[str, Any], ...] = ()
    recordings: str = ""
    version: str = __version__


class Autoencoder(nn.Module):
    """A variational autoencoder of standardized values.

    Parameters
    ----------
    values
        How many values an update has.
    settings
        The network's size.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, values: int, settings: DetectorSettings) -> None:
        super().__init__()
        widths = (values, *settings.hidden)
        self.encoder = _perceptron((*widths, 2 * settings.latent))
        self.decoder = _perceptron((settings.latent, *reversed(widths)))
        self.register_buffer("mean", torch.zeros(values))
        self.register_buffer("deviation", torch.ones(values))

    def standardized(self, values: Tensor) -> Tensor:
        """Return values, (rows, values), as the network sees them."""
        return ((values - self.mean) / self.deviation).clamp(-_FARTHEST, _FARTHEST)

    def loss(self, inputs: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Return the negative evidence bound of standardized values, a row each, up to a constant.

        Latent numbers are drawn with `random`; without it they are the likeliest.
        """
        mean, log_variance = self.encoder(inputs).chunk(2, dim=1)
        latent = mean
        if random is not None:
            noise = torch.randn(mean.shape, generator=random, dtype=mean.dtype)
            latent = mean + noise * (log_variance / 2).exp()
        wrong = (self.decoder(latent) - inputs).square().sum(1)
        apart = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        found: Tensor = (wrong + apart) / 2
        return found

    def errors(self, values: Tensor) -> Tensor:
        """Return the mean squared error of reconstructing each row, from the likeliest numbers."""
        inputs = self.standardized(values)
        mean, _ = self.encoder(inputs).chunk(2, dim=1)
        found: Tensor = (self.decoder(mean) - inputs).square().mean(1)
        return found


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    steps: list[nn.Module] = []
    for before, after in pairwise(widths):
        steps += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*steps[:-1])


class Detector:
    """A trained autoencoder, and what it was made for.

    Parameters
    ----------
    network
        The autoencoder.
    about
        What it was made for and from.
    digest
        Of its file; empty if it has none yet.
    curve
        The learning curve of a training that has just ended; empty for one from a file.
    """

    def __init__(
        self,
        network: Autoencoder,
        about: DetectorAbout,
        digest: str = "",
        *,
        curve: Sequence[Epoch] = (),
    ) -> None:
        # In float64 the order of the clients does not matter, and the network is small enough.
        self.network, self.about = network.double().eval(), about
        self.digest, self.curve = digest, tuple(curve)

    def check_layers(self, layers: Mapping[str, Sequence[int]]) -> None:
        """Refuse a model, given as shapes by name, without the layer or with another shape of it.

        Raises
        ------
        InputError
            The message names the layer.
        """
        name, about = self.about.sampled.layer, self.about
        if name not in layers:
            what = f"lacks {name!r}"
        elif (*layers[name],) != about.shape:
            what = f"has {name!r} of shape {(*layers[name],)}, not {about.shape}"
        else:
            return
        raise InputError(
            f"the detector was trained for another model ({about.task}): this one {what}. Train a "
            "detector for it"
        )

    @torch.no_grad()
    def judge(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Judge the clients of one round by their sampled values, (n, values).

        Returns
        -------
        tuple
            Whose error is not above the mean of all errors, (n,), bool; and the errors, (n,).
        """
        errors = self.network.errors(values.double())
        return errors <= errors.mean() * (1 + _INDISTINCT), errors

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; it is replaced whole or not at all."""
        about = self.about.model_dump(mode="json")
        write_described(self.network.state_dict(), path, format=_FORMAT, about=about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Detector:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            There is no such file, or it is damaged, not a detector, or of an unknown version.
        """
        made_by = "fedimmune train --form spectral"
        tensors, description = read_described(path, _FORMAT, made_by=made_by)
        with naming(f"the detector {path}"):
            about = DetectorAbout.model_validate(description.get("about"))
            about.sampled.check({about.sampled.layer: about.shape})
            values = len(about.sampled.indices)
            network = with_tensors(lambda: Autoencoder(values, about.settings), tensors)
            if not bool((network.deviation > 0).all()):
                raise InputError("its deviations are not above 0")
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
        return cls(network, about, digest)


def train_detector(
    recordings: Sequence[Recording],
    *,
    epochs: int = 500,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Detector:
    """Train a detector on the honest clients of all runs but the last, which chooses the epoch.

    Parameters
    ----------
    recordings
        From `rehearse` with ``save_updates``, of two runs at least.
    epochs, seed, settings, on_epoch
        As in `fedimmune.adaptive.train`; settings are those of `DetectorSettings`.

    Raises
    ------
    InputError
        A recording has no sampled values, or others than the first.
    ParameterError
        There is no such setting.
    """
    split, about = hold_out(recordings), recordings[0].about
    sampled = about.sampled
    for recording in recordings:
        if sampled is None or recording.about.sampled != sampled:
            found = "no values of updates" if recording.values is None else "other values"
            raise InputError(f"{recording} has {found}: rehearse all with the same --save-updates")
    assert sampled is not None
    try:
        chosen = DetectorSettings(**(settings or {}))
    except ValidationError as error:
        raise ParameterError(f"the spectral form: {first_problem(error)}") from None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Autoencoder(len(sampled.indices), chosen).double()
    to_train = _honest(split.to_train)
    network.mean, deviation = to_train.mean(0), to_train.std(0, correction=0)
    least = _FLATTEST * float(deviation.square().mean().sqrt())
    network.deviation = deviation.clamp(min=least or 1.0)
    curve = _fit(
        network,
        network.standardized(to_train),
        network.standardized(_honest(split.to_validate)),
        epochs=epochs,
        seed=seed,
        on_epoch=on_epoch,
    )
    made = Detector(
        network,
        DetectorAbout(
            task=about.task,
            shape=about.layers[sampled.layer],
            sampled=sampled,
            settings=chosen,
            training={"epochs": epochs, "batch": _BATCH, "lr": _LR, "seed": seed},
            recordings=digest_of(recordings),
        ),
        curve=curve,
    )
    figures = tuple(_validate(made, split.to_validate))
    made.about = made.about.model_copy(update={"validation": figures})
    return made


def _honest(recordings: Sequence[Recording]) -> Tensor:
    """Return the sampled values of honest clients, a row each."""
    found = [each.values[~each.attackers] for each in recordings if each.values is not None]
    rows = torch.cat(found).double()
    if not len(rows):
        raise InputError("there is no honest client to learn from, or none in the last run")
    return rows


def _fit(
    network: Autoencoder,
    to_train: Tensor,
    to_validate: Tensor,
    *,
    epochs: int,
    seed: int,
    on_epoch: Callable[[Epoch], None],
) -> list[Epoch]:
    """Train in place with Adam, leave the network as at its best epoch; return the curve."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=_LR, fused=True)
    best, best_state = float("inf"), copy.deepcopy(network.state_dict())
    curve = []
    for number in range(1, epochs + 1):
        total = 0.0
        for rows in torch.randperm(len(to_train), generator=random).split(_BATCH):
            optimizer.zero_grad()
            loss = network.loss(to_train[rows], random).mean()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        with torch.no_grad():
            validation = float(network.loss(to_validate).mean())
        curve.append(Epoch(number, total / len(to_train), validation))
        if validation < best:
            best, best_state = validation, copy.deepcopy(network.state_dict())
        on_epoch(curve[-1])
    network.load_state_dict(best_state)
    return curve


def _validate(detector: Detector, recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    """Measure a detector on recordings: a row for each attack and number of attackers."""
    groups: dict[tuple[str, int, int], list[dict[str, Tensor]]] = {}
    for recording in recordings:
        about = recording.about
        assert recording.values is not None
        kept = torch.stack([detector.judge(values)[0] for values in recording.values]).double()
        weights = kept / kept.sum(1, keepdim=True)
        found = groups.setdefault((about.attack, about.attackers, about.clients), [])
        found.append(detection(weights, recording.attackers))
    rows = []
    for attack, count, clients in sorted(groups, key=lambda key: (key[0] != "none", key)):
        parts = groups[attack, count, clients]
        every = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        means = {name: float(values.nanmean()) for name, values in every.items()}
        rows.append(
            {"attack": attack, "attackers": count, "clients": clients}
            | {"rounds": len(every["exact"])}
            | {name: None if math.isnan(value) else value for name, value in means.items()}
        )
    return rows
