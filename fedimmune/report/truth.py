"""Who attacked, known after the run: what a federation's own records cannot say.

A real federation's server writes verdicts and knows no truth. Where somebody has learned it since
and written it down (``is_attacker`` in the run's ``partition.json``), the report judges by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedimmune.records import ClientData, RoundRecord
from fedimmune.results import ACCUSING, ClientResult

__all__ = ["with_truth"]

_ABSENT = ("failed", "late")


def with_truth(
    records: Iterable[RoundRecord], partition: Sequence[ClientData] | None
) -> tuple[RoundRecord, ...]:
    """Add to records who attacked, and how well attackers were found out.

    Parameters
    ----------
    records
        Of a run; what they say themselves stays.
    partition
        Who attacks, by id; None where that is not known.
    """
    truth = {c.client: c.is_attacker for c in partition or () if c.is_attacker is not None}
    if not truth:
        return tuple(records)
    return tuple(_judged(record, truth) for record in records)


def _judged(record: RoundRecord, truth: dict[str, bool]) -> RoundRecord:
    if any(client.is_attacker is not None for client in record.clients):
        return record
    clients = tuple(
        replace(client, is_attacker=truth.get(client.client)) for client in record.clients
    )
    found: dict[str, object] = {"clients": clients}
    present = [c for c in clients if c.is_attacker is not None and c.verdict not in _ABSENT]
    if record.error is None:
        found |= _figures(present)
    return record.model_copy(update=found)


def _figures(clients: Sequence[ClientResult]) -> dict[str, float | None]:
    """Give precision, recall and the attackers' weight, as a simulation's records have them."""
    attackers = [client for client in clients if client.is_attacker]
    accused = [client for client in clients if client.verdict in ACCUSING]
    weights = [client.weight for client in attackers if client.weight is not None]
    has_weights = any(client.weight is not None for client in clients)
    if not has_weights and not accused:
        return {}  # a rule of coordinates judges nobody
    right = sum(bool(client.is_attacker) for client in accused)
    return {
        "attacker_weight": math.fsum(weights) if has_weights and attackers else None,
        "precision": right / len(accused) if accused else None,
        "recall": right / len(attackers) if attackers else None,
    }
