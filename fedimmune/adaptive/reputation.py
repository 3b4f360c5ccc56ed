"""Memory: what is held against a client adds up over rounds, by id, and fades.

Only suspicion is remembered: behaving well first earns nothing. It fades by a fifth per round, so
that an unlucky honest client soon counts again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor

from fedimmune._inputs import ClientId, savable_ids
from fedimmune.errors import InputError
from fedimmune.io import read_described, write_described
from fedimmune.untrusted import naming

__all__ = ["Case", "Memory"]

_FORMAT = "fedimmune-memory-3"
_KEPT = 0.8
"""Share of what is known that is kept from round to round."""
_MOST_ROUNDS = 10**9
_Logarithm = Annotated[float, Field(ge=-1e9, le=1e9)]
"""Of a probability, summed up."""


class Case(BaseModel):
    """What a client has been suspected of since it has been suspected in every round.

    Parameters
    ----------
    since
        The first round.
    evidence
        Sum over rounds of the logarithms of each kind's probability, older rounds counting less;
        empty if the defense knows no kinds.
    rounds
        Sum of the rounds' weights.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    since: int = Field(ge=1, le=_MOST_ROUNDS)
    evidence: tuple[_Logarithm, ...] = ()
    rounds: float = Field(0.0, ge=0, le=_MOST_ROUNDS)

    def with_round(self, kinds: Sequence[float]) -> Case:
        """Return the case with one more round, given its logarithms of probabilities."""
        if not kinds:
            return self
        past, counted = self.evidence, self.rounds
        if len(past) != len(kinds):  # another defense, which knows other kinds, starts anew
            past, counted = (0.0,) * len(kinds), 0.0
        evidence = tuple(_KEPT * old + new for old, new in zip(past, kinds, strict=True))
        return Case(since=self.since, evidence=evidence, rounds=_KEPT * counted + 1)

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Of each kind, by the rounds' geometric mean: rounds are too alike for a product."""
        logarithms = torch.tensor(self.evidence, dtype=torch.float64) / max(self.rounds, 1e-9)
        return tuple(torch.softmax(logarithms, -1).tolist())


@dataclass(frozen=True)
class Memory:
    """A running mean of each client's scores so far, capped at 0.

    A value: `after` returns a new one and leaves the old as it is.

    Parameters
    ----------
    means
        By client id, from −1 to 0; 0 for a client that nothing is held against, or never seen.
    cases
        Of those who were suspected in the last round that they took part in.
    rounds
        How many there were.
    """

    means: Mapping[ClientId, float] = field(default_factory=dict)
    cases: Mapping[ClientId, Case] = field(default_factory=dict)
    rounds: int = 0

    def evidence(self, clients: Sequence[ClientId], strength: float) -> Tensor:
        """Return what is added to each client's logit: 0, or less if it was suspected."""
        held = [self.means.get(client, 0.0) for client in clients]
        return strength * torch.tensor(held, dtype=torch.float64)

    def after(
        self,
        clients: Sequence[ClientId],
        scores: Tensor,
        suspects: Mapping[ClientId, Sequence[float]] | None = None,
    ) -> Memory:
        """Return the memory with one more round; clients that took no part keep theirs.

        Parameters
        ----------
        clients, scores
            Who took part, and how each was scored, from −1 to 1.
        suspects
            Those without weight, with logarithms of the probabilities of kinds, if they are known.
        """
        fresh = {
            client: min(0.0, _KEPT * self.means.get(client, 0.0) + (1 - _KEPT) * score)
            for client, score in zip(clients, scores.tolist(), strict=True)
        }
        number = self.rounds + 1
        cases = {client: case for client, case in self.cases.items() if client not in fresh}
        for client, kinds in (suspects or {}).items():
            case = self.cases.get(client, Case(since=number))
            cases[client] = case.with_round(kinds)
        return Memory({**self.means, **fresh}, cases, number)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it is replaced whole or not at all."""
        clients = savable_ids(list(self.means))
        values = torch.tensor(list(self.means.values()), dtype=torch.float64)
        found = [self.cases.get(client) for client in clients]
        cases = [None if case is None else case.model_dump() for case in found]
        about = {"clients": clients, "cases": cases, "rounds": self.rounds}
        write_described({"means": values}, path, format=_FORMAT, **about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Memory:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            There is no such file, or it is damaged, not a memory, or of an unknown version.
        """
        tensors, about = read_described(path, _FORMAT)
        with naming(f"the memory {path}"):
            clients, values = savable_ids(about.get("clients")), tensors.get("means")
            if values is None or values.shape != (len(clients),) or values.dtype != torch.float64:
                raise InputError("its clients and values disagree")
            if not bool((values.abs() <= 1).all()):
                raise InputError("it holds values that are not between −1 and 1")
            cases = _Cases.validate_python(about.get("cases"))
            rounds = _Rounds.validate_python(about.get("rounds"))
            if len(cases) != len(clients):
                raise InputError("it does not say who was suspected of what")
        suspected = {
            who: case for who, case in zip(clients, cases, strict=True) if case is not None
        }
        return cls(dict(zip(clients, values.tolist(), strict=True)), suspected, rounds)


_Rounds = TypeAdapter(Annotated[int, Field(ge=0, le=_MOST_ROUNDS, strict=True)])
_Cases = TypeAdapter(list[Case | None])
