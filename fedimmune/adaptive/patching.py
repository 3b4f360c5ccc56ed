"""Patches: a defense learns a new attack, and is trained on old ones again so as not to forget."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedimmune import __version__
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.description import Epoch
from fedimmune.adaptive.evaluation import validate
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.adaptive.split import Split, hold_out
from fedimmune.adaptive.training import ancestor_of, finished, learn, training_facts
from fedimmune.errors import InputError, ParameterError

__all__ = ["Compared", "Patched", "patch"]


@dataclass(frozen=True)
class Compared:
    """One attack by one number of attackers, before and after a patch.

    Parameters
    ----------
    is_old
        Whether the defense had learned it before.
    before, after
        Rows of `validate` over the same rounds, which neither was trained on.
    """

    is_old: bool
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def lost(self) -> float:
        """How much worse it got: the larger of attackers' gain in weight and honest clients' loss.

        As a share; negative if both got better.
        """
        changes = [
            sign * (self.after[name] - self.before[name])
            for name, sign in (("attacker_weight", 1), ("benign_kept", -1))
            if self.before[name] is not None
        ]
        return max(changes, default=0.0)


@dataclass(frozen=True)
class Patched:
    """The result of a patch.

    Parameters
    ----------
    defense
        The patched one.
    rows
        Old attacks and new ones, before and after.
    margin
        By how much an old attack may get worse, as a share.
    """

    defense: Defense
    rows: Sequence[Compared]
    margin: float

    @property
    def worse(self) -> list[Compared]:
        """Old attacks that got worse by more than the margin, the worst first."""
        found = [row for row in self.rows if row.is_old and row.lost > self.margin]
        return sorted(found, key=lambda row: -row.lost)


def patch(
    defense: Defense,
    recordings: Sequence[Recording],
    *,
    old_recordings: Sequence[Recording] | None = None,
    margin: float = 0.02,
    epochs: int = 200,
    seed: int = 1,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Patched:
    """Train a defense further, on new recordings and a replay of what it was made from.

    Parameters
    ----------
    defense
        From its file; it is left as it is.
    recordings
        Of the same model. Those that the defense knows already are skipped; of the others the last
        run is held out.
    old_recordings
        What the defense was made from, to replay instead of the sample in its file.
    margin
        By how much an old attack may get worse, as a share.
    epochs, seed
        Of the training.
    on_epoch
        Called after every epoch.

    Raises
    ------
    InputError
        The recordings do not fit the defense, hold nothing new, or there is nothing to replay.
    """
    if not (math.isfinite(margin) and 0 <= margin <= 1):
        raise ParameterError(f"the margin is a share from 0 to 1, not {margin}")
    if not defense.digest:
        raise InputError("the defense has no file yet: save it, load it, and patch that")
    old = _old(defense, old_recordings)
    known = {recording.about.model_dump_json() for recording in old.every}
    # A known run may have been trained on, or be what old attacks are measured on.
    unknown = [one for one in recordings if one.about.model_dump_json() not in known]
    if recordings and not unknown:
        raise InputError("the defense knows all of these recordings: there is nothing to learn")
    new = hold_out(unknown)
    for recording in (*old.every, *new.every):
        _check(defense, recording)
    form = copy.deepcopy(defense.form).float()
    learned = Split(old.to_train + new.to_train, old.to_validate + new.to_validate)
    even = Split(_balanced(learned.to_train), _balanced(learned.to_validate))
    how: dict[str, Any] = {"epochs": epochs, "seed": seed}
    # As its parent was trained; a file from elsewhere may say anything.
    how["synthetic"] = defense.about.training.get("synthetic") is True
    curve = learn(form, defense.about.form, even, **how, on_epoch=on_epoch)
    about = defense.about.model_copy(
        update={
            "attacks": tuple(sorted({*defense.about.attacks, *new.kinds})),
            "training": training_facts(defense.about.form, **how),
            "recordings": digest_of(learned.every),
            "searched": {},  # that was another network
            "version": __version__,
            "lineage": (*defense.about.lineage, ancestor_of(defense)),
        }
    )
    patched = finished(form, about, learned, learned.to_validate, curve=curve)
    rows = [
        *_compared(defense, patched, old.to_validate, is_old=True),
        *_compared(defense, patched, new.to_validate, is_old=False),
    ]
    return Patched(patched, rows, margin)


def _old(defense: Defense, recordings: Sequence[Recording] | None) -> Split:
    """Return what is trained on again."""
    if recordings is not None:
        return hold_out(recordings, defense.about.attacks)
    if not defense.replay.to_train or not defense.replay.to_validate:
        raise InputError(
            "the defense carries no recordings to replay (it was made before there were patches), "
            "and would forget what it knows: add those it was made from (--old-recordings DIR)"
        )
    return defense.replay


def _check(defense: Defense, recording: Recording) -> None:
    layers = list(recording.about.layers)
    # Shapes may differ: a recording has only inner products.
    defense.check_layers(recording.about.layers, any_shape=True)
    if defense.is_universal:
        return
    if layers != list(defense.about.layers):
        raise InputError(f"{recording} has the defense's layers in another order")
    recording.grams_with(*defense.references)  # raises if one was not recorded


def _balanced(recordings: Sequence[Recording]) -> tuple[Recording, ...]:
    """Repeat recordings until every kind counts alike.

    Rounds in which nobody attacks are a kind too: few in a replay, but the most common in use.
    """
    by_kind: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_kind.setdefault(recording.about.attack, []).append(recording)
    rounds = [sum(len(recording) for recording in group) for group in by_kind.values()]
    return tuple(
        recording
        for group, count in zip(by_kind.values(), rounds, strict=True)
        for recording in group * round(max(rounds) / count)
    )


def _compared(
    before: Defense, after: Defense, recordings: Sequence[Recording], *, is_old: bool
) -> list[Compared]:
    rows = zip(validate(before, recordings), validate(after, recordings), strict=True)
    return [Compared(is_old, one, other) for one, other in rows]
