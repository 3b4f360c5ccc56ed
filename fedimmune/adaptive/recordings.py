"""Recordings: what a rehearsal leaves. Inner products and who attacked; no update of anyone.

One safetensors file a rehearsal. A round is its per-layer Gram matrices, the server's own update
(the *anchor*) being the last row where there is one: a few tens of kilobytes whatever the model's
size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.files import load_mapped, read_metadata, write_atomically

__all__ = ["About", "Recording", "digest_of", "read_recordings"]

_FORMAT = "fedimmune-recording-1"


class About(BaseModel):
    """What a rehearsal was.

    Parameters
    ----------
    task
        What was learned.
    layers
        Shapes of the measured layers by name, in the order of the Gram matrices.
    attack
        The kind of attack; ``none`` where nobody attacked.
    attackers, clients
        How many.
    run
        Which repetition; runs are told apart when a defence is trained and validated.
    trajectory
        The rule whose global model was followed.
    has_anchor
        Whether the last row of each Gram matrix is the server's own update.
    scenario
        The whole scenario.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    layers: dict[str, tuple[int, ...]]
    attack: str
    attackers: int
    clients: int
    run: int
    trajectory: str
    has_anchor: bool
    scenario: dict[str, object]


class Recording:
    """One rehearsal.

    Parameters
    ----------
    about
        What it was.
    grams
        Inner products, (rounds, layers, n, n), float64; n + 1 with the anchor, which is last.
    attackers
        Who attacks, (rounds, n), bool.
    rounds
        Numbers of the rounds, (rounds,).
    """

    def __init__(self, about: About, grams: Tensor, attackers: Tensor, rounds: Tensor) -> None:
        count, layers, n = len(rounds), len(about.layers), attackers.shape[1]
        rows = n + about.has_anchor
        if grams.shape != (count, layers, rows, rows) or attackers.shape != (count, n):
            raise InputError(
                f"a recording of {count} rounds, {layers} layers and {n} clients has Gram matrices "
                f"of shape {(count, layers, rows, rows)}, not {tuple(grams.shape)}"
            )
        if not bool(torch.isfinite(grams).all()):
            raise InputError("a recording holds values that are not finite")
        self.about, self.grams, self.attackers, self.rounds = about, grams, attackers, rounds

    def __len__(self) -> int:
        return len(self.rounds)

    def __repr__(self) -> str:
        a = self.about
        return (
            f"Recording({a.task}, {a.attack} by {a.attackers} of {a.clients}, run {a.run}, "
            f"following {a.trajectory}: {len(self)} rounds)"
        )

    def save(self, path: Path) -> None:
        """Write a safetensors file; it is replaced whole or not at all."""
        tensors = {"grams": self.grams, "attackers": self.attackers, "rounds": self.rounds}
        write_atomically(tensors, path, {"format": _FORMAT, "about": self.about.model_dump_json()})

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            The file is damaged, or no recording.
        """
        try:
            tensors = load_mapped(path)
        except InputError as error:
            raise InputError(f"the recording {error}") from error
        metadata = read_metadata(path)
        if metadata.get("format") != _FORMAT:
            raise InputError(f"{path} is no recording of this version ({_FORMAT})")
        try:
            about = About.model_validate_json(metadata["about"])
            return cls(about, tensors["grams"], tensors["attackers"].bool(), tensors["rounds"])
        except (KeyError, ValidationError, InputError) as error:
            raise InputError(f"{path} is damaged: {error}") from error


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
        files += sorted(place.glob("*.recording")) if place.is_dir() else [place]
    if not files:
        shown = ", ".join(str(folder) for folder in folders)
        raise InputError(f"there are no recordings (*.recording) in {shown}")
    recordings = [Recording.load(file) for file in files]
    first = recordings[0].about
    for recording, file in zip(recordings, files, strict=True):
        if recording.about.layers != first.layers:
            raise InputError(f"{file} is of another model than {files[0]}")
        if recording.about.has_anchor != first.has_anchor:
            raise InputError(f"{file} and {files[0]}: one has an anchor, the other has not")
    return recordings


def digest_of(recordings: Sequence[Recording]) -> str:
    """Digest recordings, in any order."""
    each = sorted(
        hashlib.sha256(
            recording.about.model_dump_json().encode()
            + recording.grams.contiguous().numpy().tobytes()
        ).hexdigest()
        for recording in recordings
    )
    return hashlib.sha256(json.dumps(each).encode()).hexdigest()[:16]


def only(
    recordings: Sequence[Recording], attacks: Mapping[str, object] | Sequence[str]
) -> list[Recording]:
    """Keep the recordings of some attacks, and those without any."""
    kept = [r for r in recordings if r.about.attack in attacks or r.about.attack == "none"]
    for attack in attacks:
        if not any(r.about.attack == attack for r in recordings):
            known = ", ".join(sorted({r.about.attack for r in recordings}))
            raise InputError(f"there is no recording of {attack!r}; there are {known}")
    return kept
