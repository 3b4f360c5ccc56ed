"""What a run says about itself, round by round and client by client."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)

from fedimmune import attacks
from fedimmune.results import OLDER, ClientResult

__all__ = ["ClientData", "RoundRecord", "Seconds"]


_Count = Annotated[int, Field(ge=0, lt=2**53)]


def _client(found: object) -> ClientResult:
    if isinstance(found, ClientResult):
        return found
    read = ClientResult.from_json(found)
    if read.suspicion is None:
        return read
    told = replace(read.suspicion, advice=attacks.advice(read.suspicion.kind))
    return replace(read, suspicion=told)


_Client = Annotated[ClientResult, PlainValidator(_client), PlainSerializer(ClientResult.to_json)]


class _Record(BaseModel):
    # Ids are text: many programs that read JSON round whole numbers of 64 bits.
    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


class ClientData(_Record):
    """What one client has to train on.

    Parameters
    ----------
    client
        Its id.
    is_attacker
        Whether it attacks; None if nobody knows.
    samples
        How many it has of each class.
    """

    client: str
    is_attacker: bool | None = None
    samples: tuple[_Count, ...]

    @model_validator(mode="before")
    @classmethod
    def _refuse_older(cls, found: Any) -> Any:
        if isinstance(found, dict) and "id" in found:
            raise ValueError(OLDER)
        return found


class Seconds(_Record):
    """Where the time of a round went."""

    training: float
    aggregating: float
    testing: float
    measuring: float = 0.0


class RoundRecord(_Record):
    """The record of one round. Shares run from 0 to 1.

    Parameters
    ----------
    round
        From 1.
    accuracy, loss
        Of the new global model, on the server's test samples (ACC); None if it is not tested.
    asr
        Share of all attacked test samples that are classified as the attacker wants (ASR), as the
        paper has it: a perfect model has the target class's own share. None without a target.
    asr_others
        The same without the samples that are of the target's class anyway: 0 for a perfect model.
    accuracy_without_success
        ACC · (1 − ASR), the paper's figure for both at once.
    precision
        Share of the accused (suspected or rejected) that attack; None if nobody is accused.
    recall
        Share of the attackers that are accused.
    auroc
        How often an attacker has less weight than an honest client, ties counted half.
    attacker_weight
        Share of the weight that went to attackers.
    distance
        Between the aggregated update and the robust mean, the mean of the honest clients' updates.
    robust_mean_norm
        Length of the robust mean, to compare the distance with.
    clients
        Everyone who took part.
    warnings
        What is odd about the round as a whole; see `Aggregation.warnings`.
    error
        Why the global model did not change; None if it did.
    defense
        Which defense the learned rule used; None for any other rule.
    kernels
        Which form of the hot loops the round was aggregated with, ``fused`` or ``plain``: they
        differ by rounding. None in records of before there were two.
    seconds
        Where the time went; the only part that differs between equal runs.
    """

    round: int
    accuracy: float | None = None
    loss: float | None = None
    asr: float | None = None
    asr_others: float | None = None
    accuracy_without_success: float | None = None
    precision: float | None = None
    recall: float | None = None
    auroc: float | None = None
    attacker_weight: float | None = None
    distance: float | None = None
    robust_mean_norm: float | None = None
    clients: tuple[_Client, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    defense: str | None = None
    kernels: str | None = None
    seconds: Seconds
