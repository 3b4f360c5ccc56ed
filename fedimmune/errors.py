"""What can go wrong, each with a message that says what, where, and what to do."""

from __future__ import annotations

__all__ = ["FedimmuneError", "InputError", "NotEnoughClientsError", "ParameterError"]


class FedimmuneError(Exception):
    """Base of every error that fedimmune raises on purpose."""


class InputError(FedimmuneError, ValueError):
    """A whole round, file or argument cannot be used (one bad client is rejected instead)."""


class ParameterError(FedimmuneError, ValueError):
    """A rule does not exist, has no such parameter, or was given a value out of range."""


class NotEnoughClientsError(FedimmuneError, ValueError):
    """Fewer valid clients than the rule needs; nothing has been changed.

    Parameters
    ----------
    rule
        Name of the rule.
    valid
        How many valid clients there were.
    needed
        How many the rule needs.
    rejected
        Why the others were turned away, by client.
    made
        If the rule does not see the clients, but fewer rows: what makes how many of them.
    """

    def __init__(
        self,
        rule: str,
        valid: int,
        needed: int,
        rejected: dict[object, str] | None = None,
        *,
        made: str = "",
    ) -> None:
        self.rule, self.valid, self.needed = rule, valid, needed
        self.rejected = dict(rejected or {})
        clients = "client" if needed == 1 else "clients"
        message = f"{rule} needs at least {needed} valid {clients}; there were {valid}"
        if made:
            message = f"{rule} needs at least {needed} rows; {made} of {valid} valid clients"
        if self.rejected:
            shown = [f"{client}: {reason}" for client, reason in list(self.rejected.items())[:3]]
            more = len(self.rejected) - len(shown)
            tail = f"; and {more} more" if more > 0 else ""
            message += f" ({len(self.rejected)} rejected: {'; '.join(shown)}{tail})"
        super().__init__(message)
