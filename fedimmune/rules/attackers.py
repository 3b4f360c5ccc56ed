"""What rules share that are told how many clients may attack."""

from __future__ import annotations

from typing import Unpack

from fedimmune.rules.base import Common, Rule
from fedimmune.validation import check_int

__all__ = ["WithAttackers"]


class WithAttackers(Rule):
    """A rule for at most f attackers that needs a · f + b clients.

    Parameters
    ----------
    attackers
        How many clients may attack (f). By default as many as the number of clients admits.
    """

    symbols = {"attackers": "f"}
    clients_per_attacker: int = 2
    """a: by default an honest majority is enough."""
    clients_besides: int = 1
    """b."""
    attackers: int | None

    def __init__(self, *, attackers: int | None = None, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.attackers = (
            None if attackers is None else check_int(self.name, "attackers", attackers, 0)
        )

    @property
    def clients_needed(self) -> int:
        return self.clients_per_attacker * (self.attackers or 0) + self.clients_besides

    def attackers_of(self, n: int) -> int:
        """Return how many of n clients may attack."""
        if self.attackers is not None:
            return self.attackers
        return max(0, (n - self.clients_besides) // self.clients_per_attacker)

    def breakdown(self, n: int) -> int:
        return self.attackers_of(n)
