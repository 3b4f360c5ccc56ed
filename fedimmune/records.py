"""What a run says about itself, round by round and client by client."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ClientData", "ClientRecord", "RoundRecord", "Seconds"]


_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class ClientData(_Record):
    """What one client has to train on.

    Parameters
    ----------
    id
        The client.
    attacks
        Whether it does; None where nobody knows.
    samples
        How many it has of each class.
    """

    id: int | str
    attacks: bool | None = None
    samples: tuple[_Count, ...]


class ClientRecord(_Record):
    """One client's part in a round.

    Parameters
    ----------
    id
        The client.
    attacks
        Whether it does; None where nobody knows, as in a real federation.
    verdict
        ``trusted``, ``unused``, ``suspected``, ``rejected``; or ``failed`` where it sent nothing,
        or ``late`` where it sent something too late.
    weight
        Its share of the new model; None where the rule has no weights.
    score
        What the rule measured.
    reason
        Why it was not used, in words.
    kind, confidence, since
        What it is suspected of (an attack's name, or ``unknown``), how sure the rule is of it from
        0 to 1, and the round since which it has been suspected; None where the rule cannot tell.
    """

    id: int | str
    attacks: bool | None = None
    verdict: str
    weight: float | None = None
    score: float | None = None
    reason: str | None = None
    kind: str | None = None
    confidence: float | None = None
    since: int | None = None


class Seconds(_Record):
    """Where the time of a round went."""

    training: float
    aggregating: float
    testing: float
    measuring: float = 0.0


class RoundRecord(_Record):
    """What there is to say about one round. Shares run from 0 to 1.

    Parameters
    ----------
    round
        From 1.
    accuracy, loss
        Of the new global model, on the server's test samples (ACC); None where it does not test.
    asr
        Share of all attacked test samples that are classified as the attacker wants (ASR), as the
        paper has it: a perfect model has the target class's own share. None without a target.
    asr_others
        The same without the samples that are of the target's class anyway: 0 for a perfect model.
    accuracy_without_success
        ACC · (1 − ASR), the paper's figure for both at once.
    precision
        Share of the accused (suspected or rejected) that attack; None where nobody is accused.
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
    error
        Why the global model stayed as it was, where it did.
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
    clients: tuple[ClientRecord, ...] = ()
    error: str | None = None
    seconds: Seconds
