"""Memory: what is held against a client adds up over rounds, by id, and fades.

There are two ways to add it up.

- A defense of one model adds up *scores*, as evidence of this round: suspicion fades by a fifth per
  round, and behaving well first earns nothing.
- A universal defense adds up *log-odds*, as a sequential test does (Wald, *Sequential Tests of
  Statistical Hypotheses*, 1945): how much likelier honest than not a client is by all rounds
  together, older ones counting less. A single round often tells little, and ten of them a lot. The
  sum is bounded at both ends. Good rounds earn a little, so one doubtful round is held against
  nobody, but not enough for a round that is plainly an attack; and whoever stops attacking, or was
  wrongly accused, is heard again after a few rounds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor

from fedimmune._inputs import ClientId, savable_ids
from fedimmune.adaptive.history import History
from fedimmune.errors import InputError
from fedimmune.io import read_described, write_described
from fedimmune.untrusted import naming

__all__ = ["Case", "Memory"]

_FORMAT = "fedimmune-memory-5"
_HISTORY = "history."
"""Begins the names of tensors with inner products of earlier rounds."""
_KEPT = 0.8
"""Share of what is known that is kept from round to round."""
_LOG_ODDS_KEPT = 0.9
_MOST_AGAINST, _MOST_FOR = 8.0, 2.0
"""Bounds of log-odds that are remembered."""
_SKIPS, _WINDOW = 2, 10
"""No more than so many of so many rounds in a row are skipped."""
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
    """What is known of each client: a running mean of its scores, capped at 0, or log-odds.

    A value: `after` and its kin return a new one and leave the old as it is.

    Parameters
    ----------
    means
        By client id, from −1 on; 0 for a client that nothing is known of. Log-odds are in units of
        the most that is held against anybody.
    cases
        Of those who were suspected in the last round that they took part in.
    rounds
        How many there were.
    skipped
        Which of the last ten were skipped.
    history
        What a universal defense remembers of inner products.
    """

    means: Mapping[ClientId, float] = field(default_factory=dict)
    cases: Mapping[ClientId, Case] = field(default_factory=dict)
    rounds: int = 0
    skipped: tuple[int, ...] = ()
    history: History = field(default_factory=History, compare=False)

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
        return self._with(fresh, suspects or {})

    def log_odds(self, clients: Sequence[ClientId]) -> Tensor:
        """Return what a universal defense remembers of clients, in logits: 0 if nothing."""
        return _MOST_AGAINST * self.evidence(clients, 1.0)

    def after_log_odds(
        self,
        clients: Sequence[ClientId],
        log_odds: Tensor,
        suspects: Mapping[ClientId, Sequence[float]] | None = None,
    ) -> Memory:
        """Return the memory with one more round, adding up log-odds.

        Parameters
        ----------
        clients, log_odds
            Who took part, and how much likelier honest than not each is by this and all earlier
            rounds.
        suspects
            As in `after`.
        """
        kept = (_LOG_ODDS_KEPT * log_odds).clamp(-_MOST_AGAINST, _MOST_FOR) / _MOST_AGAINST
        return self._with(dict(zip(clients, kept.tolist(), strict=True)), suspects or {})

    def _with(
        self, fresh: Mapping[ClientId, float], suspects: Mapping[ClientId, Sequence[float]]
    ) -> Memory:
        number = self.rounds + 1
        cases = {client: case for client, case in self.cases.items() if client not in fresh}
        for client, kinds in suspects.items():
            case = self.cases.get(client, Case(since=number))
            cases[client] = case.with_round(kinds)
        recent = tuple(each for each in self.skipped if each > number - _WINDOW)
        return Memory({**self.means, **fresh}, cases, number, recent, self.history)

    def forgiving(self, worse: Memory, *, skipped: bool = False) -> Memory:
        """Return a memory of the same round in which nobody stands worse than before.

        Nor does anybody earn trust: what is held against a client may fade, and no more.

        Parameters
        ----------
        worse
            This memory after the round.
        skipped
            Whether the round was skipped.
        """
        before = {who: self.means.get(who, 0.0) for who in worse.means}
        means = {who: max(min(new, 0.0), before[who]) for who, new in worse.means.items()}
        skips = (*worse.skipped, worse.rounds) if skipped else worse.skipped
        return replace(worse, means=means, cases=self.cases, skipped=skips)

    @property
    def may_skip(self) -> bool:
        """Whether the next round may be skipped: only two of ten rounds in a row are."""
        return sum(each > self.rounds + 1 - _WINDOW for each in self.skipped) < _SKIPS

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it is replaced whole or not at all."""
        clients = savable_ids(list(self.means))
        values = torch.tensor(list(self.means.values()), dtype=torch.float64)
        known = [self.cases.get(client) for client in clients]
        cases = [None if case is None else case.model_dump() for case in known]
        about = {"clients": clients, "cases": cases, "rounds": self.rounds}
        about["skipped"] = list(self.skipped)
        found, about["history"] = self.history.to_tensors()
        tensors = {"means": values, **{f"{_HISTORY}{name}": t for name, t in found.items()}}
        write_described(tensors, path, format=_FORMAT, **about)

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
            skipped = _Skipped.validate_python(about.get("skipped", []))
            if len(cases) != len(clients):
                raise InputError("it does not say who was suspected of what")
            earlier = {
                name.removeprefix(_HISTORY): tensor
                for name, tensor in tensors.items()
                if name.startswith(_HISTORY)
            }
            history = History.from_tensors(earlier, about.get("history"))
        suspected = {
            who: case for who, case in zip(clients, cases, strict=True) if case is not None
        }
        means = dict(zip(clients, values.tolist(), strict=True))
        return cls(means, suspected, rounds, skipped, history)


_Round = Annotated[int, Field(ge=0, le=_MOST_ROUNDS, strict=True)]
_Rounds = TypeAdapter(_Round)
_Skipped = TypeAdapter(Annotated[tuple[_Round, ...], Field(max_length=_WINDOW)])
_Cases = TypeAdapter(list[Case | None])
