"""What becomes of a network's answer: believed, or not because the round is odd or unfamiliar.

A network answers whatever it is asked. If it takes most clients for attackers, or leaves nearly
everything to one, either attackers are the majority or it is wrong; if the round is unlike all that
it was trained on, its answer is worth nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedimmune.geometry import Geometry
from fedimmune.rules.geometric_median import GeometricMedian
from fedimmune.updates import ClientId, Updates

__all__ = ["Oddity", "Ruling", "oddity_of"]

_FEW = 4
"""Of fewer clients, one may well have more than half of the weight."""


@dataclass(frozen=True)
class Oddity:
    """Why a round is odd, for the record, and for clients, who learn nothing of each other."""

    recorded: str
    told: str


@dataclass(frozen=True)
class Ruling:
    """What is made of a network's answer about n clients.

    Parameters
    ----------
    weights
        (n,), float64; they sum to one, or are all 0 if the round is skipped.
    accused
        Who is suspected, (n,), bool.
    caught
        Whom this round takes for an attacker by itself, (n,), bool.
    held
        Who is held out for earlier rounds, (n,), bool.
    probability
        That clients attack, by this round, (n,), NaN for whom that was not asked; None if the
        defense is not calibrated, or does not know such rounds.
    note
        What each client is told, if the network's answer is not simply used.
    remarks
        What the round's record is to say.
    skipped
        Why the round is skipped; empty if it is not.
    forgives
        Whether nobody may stand worse after this round.
    """

    weights: Tensor
    accused: Tensor
    caught: Tensor
    held: Tensor
    probability: Tensor | None = None
    note: str = ""
    remarks: tuple[str, ...] = ()
    skipped: str = ""
    forgives: bool = False

    def by_median(self, measured: Geometry | Updates) -> Ruling:
        """Weigh by geometric median instead, without those whom memory holds out; accuse no other.

        Parameters
        ----------
        measured
            The geometry of the n clients; or their updates, which are read again.
        """
        out = self.held if not bool(self.held.all()) else torch.zeros_like(self.held)
        rows = (~out).nonzero().flatten()
        weights = torch.zeros_like(self.weights)
        if isinstance(measured, Geometry):
            found = GeometricMedian().weigh_geometry(measured.only(rows.tolist()))
        else:
            found = GeometricMedian().weigh(measured.only(measured.clients[r] for r in rows))
        weights[rows] = found.weight
        return replace(self, weights=weights, accused=out)

    def unfamiliar(self, measured: Geometry | Updates) -> Ruling:
        """Weigh a round that the network knows nothing about."""
        note = (
            "weighed by geometric median, because the round is unlike all that the defense was "
            "trained on"
        )
        nobody = torch.zeros_like(self.caught)
        found = replace(self, caught=nobody, probability=None, note=note, remarks=(note,))
        return found.by_median(measured)

    def of_odd(
        self, odd: Oddity, measured: Geometry | Updates, policy: str, *, may_skip: bool = True
    ) -> Ruling:
        """Decide an odd round.

        Parameters
        ----------
        odd
            Why it is odd.
        measured
            The geometry of the n clients; or their updates, which are read again.
        policy
            ``skip``, ``keep`` or ``geometric-median``.
        may_skip
            Whether it may be skipped. If it may not, the geometric median weighs.
        """
        chosen = f"on_majority={policy}"
        if policy == "keep":
            said = f"{odd.recorded}: the weights are used all the same ({chosen})"
            return replace(self, accused=self.weights == 0, remarks=(said,))
        forgiving = replace(self, forgives=True)
        if policy == "skip" and may_skip:
            said = f"{odd.recorded}: the round is skipped ({chosen})"
            note = f"the round was skipped, because {odd.told}"
            nothing = torch.zeros_like(self.weights)
            return replace(forgiving, weights=nothing, skipped=said, note=note)
        spent = ", and enough rounds were skipped of late" if policy == "skip" else ""
        said = f"{odd.recorded}{spent}: weighed by geometric median ({chosen})"
        note = f"weighed by geometric median, because {odd.told}"
        return replace(forgiving, note=note, remarks=(said,)).by_median(measured)


def oddity_of(clients: Sequence[ClientId], ruling: Ruling) -> Oddity | None:
    """Return what is odd about a ruling, or None.

    Whom memory holds out does not count: nobody can make rounds odd for long by being caught.
    """
    judged = ~ruling.held
    suspects, count = int((ruling.accused & judged).sum()), int(judged.sum())
    if 2 * suspects > count or bool(ruling.accused.all()):
        of = f"{suspects} of {count}" if count else f"all {len(clients)}"
        said = (
            f"{of} clients would be suspected, so attackers are the majority or the rule is wrong"
        )
        return Oddity(said, "most of its clients would be suspected")
    largest = int(ruling.weights.argmax())
    if len(clients) >= _FEW and float(ruling.weights[largest]) > 0.5:
        share = f"{float(ruling.weights[largest]):.1%}"
        said = f"client {clients[largest]} would have {share} of the weight"
        return Oddity(said, "one client would have had most of the weight")
    return None
