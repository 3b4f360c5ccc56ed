"""Memory: what is held against a client adds up over rounds, by id, and fades.

Only suspicion is remembered. A client that was trusted before has no credit to spend, so behaving
well first does not pay; and suspicion fades by a fifth each round, so that an honest client that
was unlucky is soon heard again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.files import described, load_mapped, read_description, write_atomically
from fedimmune.updates import ClientId

__all__ = ["Memory"]

_FORMAT = "fedimmune-memory-1"
_KEPT = 0.8
"""How much of what is known is kept from round to round."""


@dataclass(frozen=True)
class Memory:
    """A running mean of each client's scores so far, as far as it is against the client.

    A value: `after` gives a new one and leaves the old as it is.

    Parameters
    ----------
    means
        By client id, from −1 to 0; 0 for a client that nothing is held against, or never seen.
    """

    means: Mapping[ClientId, float] = field(default_factory=dict)

    def evidence(self, clients: Sequence[ClientId], strength: float) -> Tensor:
        """What is added to each client's part in the softmax: 0, or less where it is suspected."""
        held = [self.means.get(client, 0.0) for client in clients]
        return strength * torch.tensor(held, dtype=torch.float64)

    def after(self, clients: Sequence[ClientId], scores: Tensor) -> Memory:
        """Give the memory with one more round; clients that took no part keep theirs."""
        fresh = {
            client: min(0.0, _KEPT * self.means.get(client, 0.0) + (1 - _KEPT) * score)
            for client, score in zip(clients, scores.tolist(), strict=True)
        }
        return Memory({**self.means, **fresh})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it is replaced whole or not at all."""
        for client in self.means:
            if not isinstance(client, str | int):
                raise InputError(
                    f"only text and whole numbers can be saved as client ids, not {client!r}"
                )
        values = torch.tensor(list(self.means.values()), dtype=torch.float64)
        about = described(format=_FORMAT, clients=list(self.means))
        write_atomically({"means": values}, path, about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Memory:
        """Read what `save` wrote."""
        try:
            values = load_mapped(path).get("means")
        except InputError as error:
            raise InputError(f"the memory {error}") from error
        description = read_description(path)
        if description.get("format") != _FORMAT or values is None:
            raise InputError(f"{path} is no memory file of this version ({_FORMAT})")
        clients = description.get("clients")
        if not isinstance(clients, list) or not all(isinstance(c, str | int) for c in clients):
            raise InputError(f"{path} is damaged: it does not say whose values it has")
        if values.shape != (len(clients),) or not bool(torch.isfinite(values).all()):
            raise InputError(f"{path} is damaged: its clients and values disagree")
        return cls(dict(zip(clients, values.tolist(), strict=True)))
