"""What one reply holds: its arrays, its claim of samples, the names of its metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.flower.arrays import values_of
from fedimmune.flower.tables import one_line
from fedimmune.layers import shown

__all__ = ["Counting", "check_metrics", "odd_metrics", "samples_in", "state_in"]

_MOST_METRICS = 10_000
"""Numbers in the metrics of one reply, lists counted by their length. Training loops send tens."""


@dataclass(frozen=True)
class Counting:
    """What is made of the sample counts that clients claim.

    Parameters
    ----------
    key
        Name of the metric that has them.
    are_believed
        Whether they are used at all.
    most
        No client counts for more samples.
    """

    key: str
    are_believed: bool
    most: int


def state_in(content: RecordDict, model: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Read a reply's arrays.

    What `Updates` compares with the global model anyway (layers, shapes) is left to it.
    """
    records = list(content.array_records.values())
    if not records:
        raise InputError("sent no arrays")
    if len(records) > 1:
        raise InputError(f"sent {len(records)} sets of arrays, expected one")
    state: dict[str, NDArray[Any]] = {}
    for name, array in records[0].items():
        try:
            values = values_of(array)
        except InputError as error:
            raise InputError(f"layer {shown(name)} {error}") from error
        wanted = model.get(name)
        if wanted is not None and values.dtype != _numpy_dtype(wanted):
            expected = str(wanted.dtype).removeprefix("torch.")
            raise InputError(f"layer {shown(name)} holds {values.dtype}, expected {expected}")
        state[name] = values
    return state


def _numpy_dtype(tensor: Tensor) -> np.dtype[Any]:
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def samples_in(content: RecordDict, counting: Counting) -> float | None:
    """Read how many samples a client claims; None where that is not believed anyway."""
    if not counting.are_believed:
        return None
    claims = [r[counting.key] for r in content.metric_records.values() if counting.key in r]
    if not claims:
        raise InputError(f"sent no {counting.key}, by which clients are weighed")
    claim = claims[0]
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        raise InputError(f"its {counting.key} is no number")
    if not math.isfinite(claim) or claim < 1:
        raise InputError(f"its {counting.key} is not a number from 1 on: {one_line(claim, 40)}")
    return float(min(claim, counting.most))


def check_metrics(content: RecordDict) -> None:
    """Refuse a reply with more metrics than are read."""
    records = content.metric_records
    count = len(records) + sum(
        max(1, len(value)) if isinstance(value, list) else 1
        for record in records.values()
        for value in record.values()
    )
    if count > _MOST_METRICS:
        raise InputError(f"sent {count} metrics, of which at most {_MOST_METRICS} are read")


def odd_metrics(contents: Mapping[int, RecordDict]) -> dict[int, str]:
    """Name who sent other metrics than more than half did; without such a half, nobody.

    The majority decides, not whoever comes first: one odd client must not have all others rejected.
    """
    kinds = {node: _metric_names(content) for node, content in contents.items()}
    if not kinds:
        return {}
    usual, count = Counter(kinds.values()).most_common(1)[0]
    if 2 * count <= len(kinds):
        return {}
    return {node: _difference(kind, usual) for node, kind in kinds.items() if kind != usual}


def _metric_names(content: RecordDict) -> tuple[str, ...]:
    records: Sequence[Mapping[str, Any]] = list(content.metric_records.values())
    return tuple(sorted(name for record in records for name in record))


def _difference(kind: Sequence[str], usual: Sequence[str]) -> str:
    extra = list((Counter(kind) - Counter(usual)).elements())
    if extra:
        return f"sent a metric that the others did not: {shown(extra[0])}"
    missing = list((Counter(usual) - Counter(kind)).elements())
    return f"lacks the metric {shown(missing[0])}, which the others sent"
