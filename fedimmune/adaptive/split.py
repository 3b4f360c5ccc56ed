"""Which recordings are trained on, and which are held out to validate on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedimmune.adaptive.recordings import Recording, of_attacks
from fedimmune.errors import InputError

__all__ = ["Split", "hold_out"]


@dataclass(frozen=True)
class Split:
    """Recordings in two parts that have no run in common.

    Parameters
    ----------
    to_train
        To learn from.
    to_validate
        To choose the best epoch on, and to measure on.
    """

    to_train: tuple[Recording, ...] = ()
    to_validate: tuple[Recording, ...] = ()

    @property
    def every(self) -> tuple[Recording, ...]:
        """Both parts."""
        return self.to_train + self.to_validate

    @property
    def kinds(self) -> set[str]:
        """The kinds of attack among them."""
        return {recording.about.attack for recording in self.every} - {"none"}


def hold_out(recordings: Sequence[Recording], attacks: Sequence[str] | None = None) -> Split:
    """Hold out the last run; with `attacks`, use only those and rounds in which nobody attacks.

    Raises
    ------
    InputError
        There is nothing to learn from, or nothing else to validate on.
    """
    if not recordings:
        raise InputError("there are no recordings to learn from")
    wanted = recordings if attacks is None else of_attacks(recordings, attacks)
    last = max(recording.about.run for recording in recordings)
    split = Split(
        tuple(recording for recording in wanted if recording.about.run < last),
        tuple(recording for recording in wanted if recording.about.run == last),
    )
    if not split.to_train or not split.to_validate:
        raise InputError(
            "two runs at least are needed, one of them to validate on: rehearse with --runs 3"
        )
    return split
