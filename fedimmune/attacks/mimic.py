"""Mimicry: all attackers send a copy of one honest client's update.

Karimireddy, He, Jaggi, *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, ICLR
2022. If clients' data differ, one of them then speaks for many, and the others are not heard. No
rule can tell the copies from the original by what they look like.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedimmune.attacks.base import Attack, Context
from fedimmune.geometry import measure
from fedimmune.updates import Updates
from fedimmune.validation import check_choice

__all__ = ["Mimic"]


class Mimic(Attack):
    """Copy one honest client, all attackers the same one.

    Parameters
    ----------
    whom
        ``first``: the honest client with the lowest number, the same in every round that it takes
        part in. ``farthest``: the one that lies farthest along the direction in which the honest
        updates of the round differ most, at either end. The authors' program follows this direction
        through a number of rounds by power iteration, takes the client with the largest product,
        and keeps to that client afterwards; here it is found exactly and anew in every round.

    Notes
    -----
    If clients' data are alike, a copy is as good as the original, and no rule is harmed.
    """

    name = "mimic"
    summary = "sends a copy of one honest client's update"
    paper = "Karimireddy et al. 2022"
    knowledge = "everyone"
    needs_training = False
    advice = "check that nobody else has your data: copies of one client speak with many voices"

    def __init__(self, *, whom: str = "first") -> None:
        self.whom = check_choice(self.name, "whom", whom, ("first", "farthest"))

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Updates:
        honest = visible.only(set(visible.clients) - set(attackers.clients))
        if not len(honest):
            return attackers
        row = 0 if self.whom == "first" else _farthest(measure(honest).gram())
        copied = honest.state(honest.clients[row])
        return Updates.from_states(dict.fromkeys(attackers.clients, copied))


def _farthest(gram: Tensor) -> int:
    """Find the row that lies farthest along the principal direction of all rows.

    The centered rows' Gram matrix has the same leading eigenvector as their covariance, up to its
    sign: rows lie along that direction as its entries say.
    """
    centered = gram - gram.mean(0)
    centered = centered - centered.mean(1, keepdim=True)
    along = torch.linalg.eigh(centered).eigenvectors[:, -1]
    return int(along.abs().argmax())
