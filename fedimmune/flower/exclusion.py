"""Who is no longer asked, and for how long."""

from __future__ import annotations

from collections.abc import Iterable

from fedimmune.checks import whole
from fedimmune.errors import ParameterError

__all__ = ["Exclusion"]


class Exclusion:
    """Leaves clients out that were suspected often of late, and tries them again later.

    Parameters
    ----------
    often, rounds
        Whoever was suspected in `often` of the last `rounds` rounds is not asked in the next
        `rounds` rounds. After that it is asked again, with a clean slate.
    """

    def __init__(self, often: int, rounds: int) -> None:
        self.often = whole("exclude", "the first number", often, 1)
        self.rounds = whole("exclude", "the second number", rounds, 1)
        if self.often > self.rounds:
            raise ParameterError(
                f"exclude: nobody can be suspected in {often} of the last {rounds} rounds; give "
                "the smaller number first"
            )
        self._suspected: dict[str, list[int]] = {}
        self._until: dict[str, int] = {}

    def note(self, number: int, suspects: Iterable[str]) -> None:
        """Take note of who was suspected in a round."""
        for client in suspects:
            before = self._suspected.get(client, [])
            recent = [*(past for past in before if past > number - self.rounds), number]
            if len(recent) >= self.often:
                self._until[client] = number + self.rounds
                recent = []
            self._suspected[client] = recent

    def left_out(self, number: int) -> frozenset[str]:
        """Who is not to be asked in a round."""
        return frozenset(client for client, last in self._until.items() if number <= last)

    def forget(self) -> None:
        """Begin anew, with nobody suspected."""
        self._suspected.clear()
        self._until.clear()
