"""What callers pass in, read as tensors without a copy, or refused with a reason."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedimmune._layers import FLOATS, Layer, shown
from fedimmune.errors import InputError

__all__ = [
    "VECTOR_LAYER",
    "ClientId",
    "InputKind",
    "State",
    "as_float_tensor",
    "by_client",
    "client_ids",
    "global_tensors",
    "is_finite",
    "is_model",
    "kind_of",
    "sample_counts",
    "savable_ids",
    "state_tensors",
    "vector_states",
    "without_repeats",
]

ClientId: TypeAlias = Any
"""Anything hashable: text, a number, a tuple. (`Hashable` would spoil users' own mappings.)"""
State: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""A model: values by layer name, or arrays in the order of the layers."""

VECTOR_LAYER = "update"
"""Name of the one layer of an update that came as a vector."""


class InputKind(Enum):
    """What kind of thing the caller passed in, and gets back."""

    STATE = "state dict"
    TENSOR = "tensor"
    ARRAY = "numpy array"
    TENSORS = "list of tensors"
    ARRAYS = "list of numpy arrays"

    @property
    def has_layers(self) -> bool:
        """Whether it is a model layer by layer, and not one vector."""
        return self not in {InputKind.TENSOR, InputKind.ARRAY}


def kind_of(given: Sequence[Any], layers: Sequence[Layer]) -> InputKind:
    """Return the kind in which most clients sent their models."""
    lists = [state for state in given if _is_list_of_arrays(state)]
    are_named = {layer.name for layer in layers} != set(map(str, range(len(layers))))
    if 2 * len(lists) <= len(given) or are_named:
        return InputKind.STATE
    tensors = sum(isinstance(state[0], Tensor) for state in lists)
    return InputKind.TENSORS if 2 * tensors > len(lists) else InputKind.ARRAYS


def by_client(
    given: Mapping[Any, Any] | Iterable[Any], clients: Sequence[ClientId] | None
) -> tuple[Sequence[ClientId] | None, list[Any]]:
    """Split what may be a mapping by client into ids and members."""
    if not isinstance(given, Mapping):
        return clients, list(given)
    if clients is not None:
        raise InputError("a mapping already names its clients: leave out clients=")
    return list(given.keys()), list(given.values())


def client_ids(clients: Sequence[ClientId] | None, count: int) -> list[ClientId]:
    """Read client ids, which are 0, 1, 2 and so on by default."""
    ids: list[ClientId] = [*range(count)] if clients is None else [*clients]
    if len(ids) != count:
        raise InputError(f"{len(ids)} client ids for {count} updates")
    for client in ids:
        if not isinstance(client, Hashable):
            raise InputError(
                f"a client's id must be hashable, such as a string or an int: {client}"
            )
    return ids


def savable_ids(clients: object) -> list[ClientId]:
    """Read client ids that are to be saved, or were."""
    if not isinstance(clients, list):
        raise InputError("it does not say whose values it has")
    for client in clients:
        if not isinstance(client, str | int):
            raise InputError(
                f"only text and whole numbers can be saved as client ids, not {client!r}"
            )
    if len(set(clients)) < len(clients):
        raise InputError("a client is there twice")
    return clients


def without_repeats(
    ids: Sequence[ClientId], reasons: Sequence[str | None]
) -> tuple[list[int], dict[ClientId, str]]:
    """Return the rows of valid clients, each id once, and why the others are rejected."""
    kept: list[int] = []
    rejected: dict[ClientId, str] = {}
    seen: set[ClientId] = set()
    for row, (client, reason) in enumerate(zip(ids, reasons, strict=True)):
        if client in seen:
            first = f"{rejected[client]}; besides, " if client in rejected else ""
            rejected[client] = f"{first}its id is there twice; only the first is counted"
        elif reason is not None:
            rejected[client] = reason
        else:
            kept.append(row)
        seen.add(client)
    return kept, rejected


def sample_counts(
    samples: Mapping[Any, float] | Sequence[float] | None, ids: Sequence[ClientId]
) -> Mapping[Any, float] | None:
    """Read sample counts as a mapping by client id; of an id that is there twice, the first."""
    if samples is None or isinstance(samples, Mapping):
        return samples
    if len(samples) != len(ids):
        raise InputError(f"{len(samples)} sample counts for {len(ids)} updates")
    counts: dict[ClientId, float] = {}
    for client, count in zip(ids, samples, strict=True):
        counts.setdefault(client, count)
    return counts


def global_tensors(model: Any) -> dict[str, Tensor]:
    """Read the global model, which has to be whole and finite."""
    tensors, problem = state_tensors(model)
    if problem is not None or not tensors:
        raise InputError(f"the global model {problem or 'is empty: it holds no layers'}")
    for name, tensor in tensors.items():
        if tensor.dtype in FLOATS and not is_finite(tensor):
            raise InputError(f"the global model's layer {name!r} holds NaN or infinite values")
    return tensors


def is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite.

    A finite sum proves it, in one read and without a tensor of answers; one that is not may only be
    too large.
    """
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def state_tensors(state: Any) -> tuple[dict[str, Tensor], str | None]:
    """Read a client's state dict as tensors, without a copy; or return why that is impossible."""
    if isinstance(state, torch.nn.Module):
        state = state.state_dict()
    if _is_list_of_arrays(state):
        state = {str(place): value for place, value in enumerate(state)}
    if not isinstance(state, Mapping):
        return {}, f"is not a state dict but {type(state).__name__}"
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        if not isinstance(name, str):
            return {}, f"has a layer whose name is not text: {shown(name)}"
        try:
            tensors[name] = _as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            return {}, f"layer {shown(name)} is not a dense tensor but {type(value).__name__}"
    return tensors, None


def is_model(given: Any) -> bool:
    """Whether something is a model layer by layer, and not one vector."""
    return isinstance(given, Mapping | torch.nn.Module) or _is_list_of_arrays(given)


def _is_list_of_arrays(given: Any) -> bool:
    """Whether a model is a list of its arrays in order, as Flower's NumPy clients send it.

    Numbers, and arrays of one number each, are a vector instead.
    """
    return (
        isinstance(given, list | tuple)
        and all(isinstance(value, np.ndarray | Tensor) for value in given)
        and any(value.ndim for value in given)
    )


def vector_states(
    vectors: Iterable[Any],
) -> tuple[list[dict[str, Tensor]], list[str | None]]:
    """Read vectors as state dicts of one layer; or return for each why that is impossible."""
    states: list[dict[str, Tensor]] = []
    reasons: list[str | None] = []
    for vector in vectors:
        try:
            flat = as_float_tensor(vector)
            problem = None if flat.ndim == 1 else f"has shape {tuple(flat.shape)}, not (d,)"
        except (TypeError, ValueError, RuntimeError):
            flat, problem = torch.empty(0), f"is not a vector but {type(vector).__name__}"
        states.append({} if problem else {VECTOR_LAYER: flat})
        reasons.append(problem)
    return states, reasons


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            raise TypeError("only plain dense tensors can be aggregated")
        return value.detach()
    array = np.asarray(value)
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        # PyTorch warns of read-only arrays; nothing here writes to them.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def as_float_tensor(value: Any) -> Tensor:
    """Read an array, tensor or list of numbers; integers as floating-point numbers."""
    tensor = _as_tensor(value)
    if tensor.dtype in FLOATS:
        return tensor
    if tensor.is_complex():
        raise InputError("complex updates cannot be aggregated")
    wide = torch.get_default_dtype() if isinstance(value, Tensor) else torch.float64
    return tensor.to(wide)
