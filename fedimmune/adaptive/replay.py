"""Replay: a compact sample of the recordings, which travels in the defense's file.

A network that learns a new attack forgets old ones unless it is trained on them again. A few
hundred rounds are enough, so every defense carries some of those it was made from. A Gram matrix is
kept as squared lengths, float64, and cosines, float32, whose range is enough for any update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from fedimmune.adaptive.recordings import About, Recording
from fedimmune.adaptive.split import Split
from fedimmune.errors import InputError
from fedimmune.untrusted import first_problem

__all__ = ["PREFIX", "pack", "sample", "unpack"]

PREFIX = "replay/"
"""Of the names of its tensors."""

_TO_TRAIN, _TO_VALIDATE = 240, 120
"""Most rounds that are kept: with 10 clients and 10 layers about a megabyte."""

_PARTS = ("squares", "cosines", "attackers", "median_distances")


def sample(split: Split, *, to_train: int = _TO_TRAIN, to_validate: int = _TO_VALIDATE) -> Split:
    """Draw at most so many rounds evenly: from every kind of attack, and each of its rehearsals."""
    return Split(_drawn(split.to_train, to_train), _drawn(split.to_validate, to_validate))


def pack(
    replay: Split, layers: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return tensors by name, and what they are; the defense's `layers` are not repeated."""
    tensors: dict[str, Tensor] = {}
    descriptions = []
    for number, recording in enumerate(replay.every):
        found = (*_halved(recording.grams), recording.attackers, recording.median_distances)
        tensors |= {_name(number, what): tensor for what, tensor in zip(_PARTS, found, strict=True)}
        about = recording.about.model_dump(mode="json")
        if recording.about.layers == dict(layers):
            del about["layers"]
        descriptions.append({"apart": number >= len(replay.to_train), "about": about})
    return tensors, descriptions


def unpack(
    tensors: Mapping[str, Tensor],
    descriptions: Any,
    layers: Mapping[str, tuple[int, ...]],
) -> Split:
    """Read what `pack` returned and a file held: it may be anything.

    Raises
    ------
    InputError
        Something is missing, or does not fit.
    """
    if not isinstance(descriptions, list):
        raise InputError("its replay is not described")
    parts: tuple[list[Recording], list[Recording]] = ([], [])
    wanted = {_name(number, what) for number in range(len(descriptions)) for what in _PARTS}
    if set(tensors) != wanted:
        odd = min(wanted ^ set(tensors))
        raise InputError(f"its replay {'lacks' if odd in wanted else 'has'} {odd!r}")
    for number, description in enumerate(descriptions):
        squares, cosines, attackers, medians = (tensors[_name(number, what)] for what in _PARTS)
        try:
            about = About.model_validate({"layers": dict(layers), **description["about"]})
            grams = _whole(squares, cosines)
            found = Recording(about, grams, attackers.clone().bool(), medians.double())
            parts[bool(description["apart"])].append(found)
        except (LookupError, TypeError, ValidationError, RuntimeError, InputError) as error:
            raise InputError(f"its replay, recording {number}: {first_problem(error)}") from error
    return Split(tuple(parts[0]), tuple(parts[1]))


def _name(number: int, what: str) -> str:
    return f"{PREFIX}{number:03}/{what}"


# -------------------------------------------------------------------- Gram matrices


def _halved(grams: Tensor) -> tuple[Tensor, Tensor]:
    """Squared lengths, (…, n), and cosines above the diagonal, (…, n (n − 1) / 2)."""
    squares = grams.diagonal(dim1=-2, dim2=-1).double().clamp(min=0)
    lengths = squares.sqrt()
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    # One after the other: a product of two lengths may overflow.
    cosines = (grams.double() / lengths[..., :, None] / lengths[..., None, :]).clamp(-1, 1)
    first, second = torch.triu_indices(grams.shape[-1], grams.shape[-1], offset=1)
    return squares, cosines[..., first, second].float()


def _whole(squares: Tensor, cosines: Tensor) -> Tensor:
    # Before anything is allocated: an empty tensor's shape may promise a matrix of any size.
    n = squares.shape[-1] if squares.ndim == 3 else 0
    if not squares.numel() or cosines.shape != (*squares.shape[:-1], n * (n - 1) // 2):
        raise InputError(
            f"cosines of shape {tuple(cosines.shape)} do not go with lengths of shape "
            f"{tuple(squares.shape)}"
        )
    if squares.dtype != torch.float64 or cosines.dtype != torch.float32:
        raise InputError(f"lengths and cosines are {squares.dtype} and {cosines.dtype}")
    first, second = torch.triu_indices(n, n, offset=1)
    lengths = squares.double().sqrt()
    products = cosines.double() * lengths[..., first] * lengths[..., second]
    grams = torch.diag_embed(squares.double())
    grams[..., first, second] = products
    grams[..., second, first] = products
    return grams


# -------------------------------------------------------------------- drawing


def _drawn(recordings: Sequence[Recording], limit: int) -> tuple[Recording, ...]:
    by_kind: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_kind.setdefault(recording.about.attack, []).append(recording)
    counts = [sum(len(recording) for recording in group) for group in by_kind.values()]
    drawn: list[Recording] = []
    for group, of_kind in zip(by_kind.values(), _shares(counts, limit), strict=True):
        shares = _shares([len(recording) for recording in group], of_kind)
        drawn += [_some(one, share) for one, share in zip(group, shares, strict=True) if share]
    return tuple(drawn)


def _some(recording: Recording, count: int) -> Recording:
    """Keep rounds from all over a recording: early ones differ from late ones."""
    return recording.take(torch.tensor(_spread(len(recording), count)))


def _shares(available: Sequence[int], limit: int) -> list[int]:
    """Divide a limit evenly; what one does not have, the others give."""
    shares = [0] * len(available)
    left = min(limit, sum(available))
    while left:
        takers = [i for i, share in enumerate(shares) if share < available[i]]
        each = left // len(takers)
        if not each:  # fewer left than takers
            takers, each = [takers[i] for i in _spread(len(takers), left)], 1
        for taker in takers:
            given = min(each, available[taker] - shares[taker])
            shares[taker] += given
            left -= given
    return shares


def _spread(count: int, wanted: int) -> list[int]:
    """Return positions spread evenly over `count`, each in the middle of its part."""
    return [(2 * i + 1) * count // (2 * wanted) for i in range(wanted)]
