"""Recordings: what is kept of a rehearsal. Inner products and who attacked; nobody's update.

One safetensors file per rehearsal. A round is its per-layer Gram matrices, in which the rows of
references, such as the server's own update (the *anchor*), follow the clients': a few tens of
kilobytes whatever the model's size. On request it also has some values of each update's last layer,
which the rule ``spectral`` learns from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor

from fedimmune.adaptive.models.base import AttentionModel
from fedimmune.errors import InputError, ParameterError
from fedimmune.io import read_described, write_described
from fedimmune.untrusted import naming

__all__ = ["SUFFIX", "About", "Recording", "Sampled", "digest_of", "of_attacks", "read_recordings"]

_FORMAT = "fedimmune-recording-3"
SUFFIX = ".recording"
"""Of recordings' file names."""
_MOST_CLIENTS = 10_000
_MOST_VALUES = 100_000
_SAMPLE_SEED = 2002


class Sampled(BaseModel):
    """Which values of an update are looked at.

    Parameters
    ----------
    layer
        The layer's name.
    indices
        Positions in the flattened layer, ascending.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: str
    indices: tuple[int, ...] = Field(min_length=1, max_length=_MOST_VALUES)

    @classmethod
    def of(cls, layers: Mapping[str, tuple[int, ...]], count: int) -> Sampled:
        """Draw so many of the last layer's weights, or all if there are fewer.

        The last layer is the last one that has a matrix of weights, so not its bias. The same model
        and number give the same sample.

        Parameters
        ----------
        layers
            Shapes of the trained layers by name, in the model's order.
        count
            How many values.
        """
        layer = ([name for name, shape in layers.items() if len(shape) > 1] or [*layers])[-1]
        random = torch.Generator().manual_seed(_SAMPLE_SEED)
        drawn = torch.randperm(prod(layers[layer]), generator=random)[: min(count, _MOST_VALUES)]
        return cls(layer=layer, indices=tuple(sorted(drawn.tolist())))

    def check(self, layers: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a sample that no model with these layers has.

        Raises
        ------
        InputError
            There is no such layer, or the positions are not within it, in order.
        """
        size = prod(layers.get(self.layer, (0,)))
        steps = zip((-1, *self.indices), (*self.indices, size), strict=True)
        if not all(before < after for before, after in steps):
            raise InputError(f"the sampled values are not of a layer {self.layer!r} of {size:,}")


class About(BaseModel):
    """What a rehearsal was.

    Parameters
    ----------
    task
        What was learned.
    layers
        Shapes of the measured layers by name, in the order of the Gram matrices.
    attack
        The kind of attack; ``none`` if nobody attacked.
    attackers, clients
        How many.
    run
        Which repetition; a defense is trained and validated on different ones.
    trajectory
        The rule whose global model was followed.
    references
        Rows of each Gram matrix after the clients': ``anchor`` for the server's own update.
    on
        Whose data the simulated clients had: the ``server``'s or the ``clients``' own.
    scenario
        The whole scenario.
    sampled
        Of which values the recording has samples; None if it has none.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    layers: dict[str, tuple[int, ...]]
    attack: str
    attackers: int = Field(ge=0)
    clients: int = Field(ge=1, le=_MOST_CLIENTS)
    run: int
    trajectory: str
    references: tuple[str, ...]
    on: str = "server"
    scenario: dict[str, object]
    sampled: Sampled | None = None

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `sampled` out if there is none: such recordings are the same bytes as ever."""
        found: dict[str, Any] = write(self)
        if self.sampled is None:
            found.pop("sampled", None)
        return found


class Recording:
    """One rehearsal.

    Parameters
    ----------
    about
        What it was.
    grams
        Inner products of round 1 and following, (rounds, layers, rows, rows), float64: of the n
        clients, then of the references.
    attackers
        Who attacks, (rounds, n), bool.
    median_distances
        Distance of the coordinate-wise median to the robust mean, (rounds,), to compare with:
        inner products do not determine it.
    values
        Values of each client's update, (rounds, n, values), float32, if `about` says of which.
    """

    def __init__(
        self,
        about: About,
        grams: Tensor,
        attackers: Tensor,
        median_distances: Tensor,
        values: Tensor | None = None,
    ) -> None:
        if grams.ndim != 4 or attackers.ndim != 2:
            raise InputError(
                f"a recording has Gram matrices by round and layer, and attackers by round, not "
                f"tensors of shape {tuple(grams.shape)} and {tuple(attackers.shape)}"
            )
        count, layers, n = len(grams), len(about.layers), attackers.shape[1]
        rows = n + len(about.references)
        if (
            grams.shape != (count, layers, rows, rows)
            or attackers.shape != (count, n)
            or median_distances.shape != (count,)
        ):
            raise InputError(
                f"a recording of {count} rounds, {layers} layers and {n} clients has Gram matrices "
                f"of shape {(count, layers, rows, rows)}, not {tuple(grams.shape)}"
            )
        if not 1 <= n <= _MOST_CLIENTS or not count or not layers:
            raise InputError(
                f"a recording has rounds, layers and from 1 to {_MOST_CLIENTS:,} clients, not "
                f"{count} rounds, {layers} layers and {n} clients"
            )
        if not all(each.dtype == torch.float64 for each in (grams, median_distances)):
            raise InputError(
                f"a recording's inner products and distances are float64, not {grams.dtype} and "
                f"{median_distances.dtype}"
            )
        if not bool(torch.isfinite(grams).all()):
            raise InputError("a recording holds values that are not finite")
        _check_values(about, values, (count, n))
        self.about, self.grams, self.attackers = about, grams, attackers
        self.median_distances, self.values = median_distances, values

    def __len__(self) -> int:
        return len(self.grams)

    def __repr__(self) -> str:
        a = self.about
        return (
            f"Recording({a.task}, {a.attack} by {a.attackers} of {a.clients}, run {a.run}, "
            f"following {a.trajectory}: {len(self)} rounds)"
        )

    def grams_with(self, *references: str) -> Tensor:
        """Return the inner products of the clients and of some references, by round and layer.

        Raises
        ------
        InputError
            A reference was not recorded.
        """
        n = self.attackers.shape[1]
        for name in references:
            if name not in self.about.references:
                raise InputError(f"{self} has no {name}: set the scenario's `{name}` and record")
        if references == self.about.references[: len(references)]:
            rows = n + len(references)
            return self.grams[..., :rows, :rows]
        index = torch.tensor([*range(n), *(n + self.about.references.index(r) for r in references)])
        return self.grams[..., index, :][..., index]

    def seen_by(self, form: AttentionModel) -> tuple[Tensor, dict[str, Any]]:
        """Return what a form's `prepare` takes: inner products, and what else it asks for.

        A form that can do with or without an anchor gets it if it was recorded.
        """
        anchored = form.name == "universal" and "anchor" in self.about.references
        grams = self.grams_with(*(("anchor",) if anchored else form.references))
        return grams, {"shapes": [*self.about.layers.values()], "anchored": anchored}

    def take(self, rounds: Tensor | slice) -> Recording:
        """Return some rounds, without sampled values."""
        return Recording(
            self.about.model_copy(update={"sampled": None}),
            self.grams[rounds],
            self.attackers[rounds],
            self.median_distances[rounds],
        )

    def save(self, path: Path) -> None:
        """Write a safetensors file; it is replaced whole or not at all."""
        tensors = {
            "grams": self.grams,
            "attackers": self.attackers,
            "median_distances": self.median_distances,
        }
        if self.values is not None:
            tensors["values"] = self.values
        about = self.about.model_dump(mode="json")
        write_described(tensors, path, format=_FORMAT, about=about)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            The file is damaged, or not a recording.
        """
        tensors, description = read_described(path, _FORMAT, made_by="fedimmune rehearse")
        with naming(f"the recording {path}"):
            about = About.model_validate(description.get("about"))
            if set(tensors) - {"values"} != {"grams", "attackers", "median_distances"}:
                raise InputError(f"it has the tensors {', '.join(sorted(tensors)) or 'none'}")
            if tensors["attackers"].dtype != torch.bool:
                raise InputError("it does not say who attacks")
            return cls(about, **tensors)


def _check_values(about: About, values: Tensor | None, rows: tuple[int, int]) -> None:
    if about.sampled is None or values is None:
        if about.sampled is not None or values is not None:
            raise InputError("a recording with sampled values says which they are, and has them")
        return
    about.sampled.check(about.layers)
    wanted = (*rows, len(about.sampled.indices))
    if values.shape != wanted or values.dtype != torch.float32:
        raise InputError(
            f"a recording's sampled values are float32 of shape {wanted}, not {values.dtype} of "
            f"shape {tuple(values.shape)}"
        )
    if not bool(torch.isfinite(values).all()):
        raise InputError("a recording holds sampled values that are not finite")


def read_recordings(folders: Iterable[str | Path]) -> list[Recording]:
    """Read all recordings in some folders or files, in the order of their names.

    Raises
    ------
    InputError
        There are none, or they are of different models.
    """
    files: list[Path] = []
    for given in folders:
        place = Path(given)
        files += sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]
    if not files:
        shown = ", ".join(str(folder) for folder in folders)
        raise InputError(f"there are no recordings (*{SUFFIX}) in {shown}")
    recordings = [Recording.load(file) for file in files]
    first = recordings[0].about
    for recording, file in zip(recordings, files, strict=True):
        if recording.about.layers != first.layers:
            raise InputError(f"{file} is of another model than {files[0]}")
        if recording.about.references != first.references:
            raise InputError(f"{file} and {files[0]}: one has an anchor, the other does not")
    return recordings


def digest_of(recordings: Sequence[Recording]) -> str:
    """Digest recordings, in any order."""
    each = sorted(
        hashlib.sha256(
            recording.about.model_dump_json().encode()
            + recording.attackers.contiguous().numpy().tobytes()
            + recording.grams.contiguous().numpy().tobytes()
            + (b"" if recording.values is None else recording.values.contiguous().numpy().tobytes())
        ).hexdigest()
        for recording in recordings
    )
    return hashlib.sha256(json.dumps(each).encode()).hexdigest()[:16]


def of_attacks(recordings: Sequence[Recording], attacks: Sequence[str]) -> list[Recording]:
    """Keep the recordings of some attacks, and those in which nobody attacks."""
    known = {recording.about.attack for recording in recordings}
    for attack in attacks:
        if attack not in known:
            listed = ", ".join(sorted(known))
            raise ParameterError(f"there is no recording of {attack!r}; there are {listed}")
    return [r for r in recordings if r.about.attack in {*attacks, "none"}]
