"""What a malicious client does: to its data, or to its update."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedimmune.registry import Named
from fedimmune.tasks import Facts

__all__ = ["Attack", "Trial"]


@dataclass(frozen=True)
class Trial:
    """Samples on which an attack wants the model to say `target`.

    Parameters
    ----------
    inputs
        The samples as the attacker shows them to the model.
    target
        What the attacker wants to hear.
    is_target
        Which samples truly are of the target's class: a perfect model says `target` there too.
    """

    inputs: Tensor
    target: int
    is_target: Tensor


class Attack(Named, ABC):
    """What attackers do; all attackers of a scenario do the same.

    An attacker sees its own data and its own update and nothing of other clients. Parameters are
    keyword-only and checked at construction; what depends on the data is checked by `check`.
    """

    acts_on: ClassVar[Literal["nothing", "data", "update"]]
    paper: ClassVar[str]
    """Where the attack is from."""

    def check(self, facts: Facts) -> None:
        """Refuse a data set that the attack does not fit.

        Raises
        ------
        ParameterError
            For example, a pattern that lies outside of the image.
        """

    def poison(self, inputs: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        """Give what an attacker trains on instead of one of its batches; the batch may be changed.

        The batch is in random order. By default it is left alone.
        """
        return inputs, labels

    def corrupt(self, update: Mapping[str, Tensor]) -> None:
        """Change, in place, the update that an attacker is about to send. By default left alone.

        Parameters
        ----------
        update
            The change of every layer, by name.
        """

    def trial(self, inputs: Tensor, labels: Tensor, facts: Facts) -> Trial | None:
        """Give the samples on which the attack's success is measured, out of test samples.

        None where the attack has no target and only wants the model to be bad.
        """
        return None
