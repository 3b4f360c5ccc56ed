"""Layers: what a model is made of, which of its tensors rules may look at, and in what order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from math import prod

import torch
from torch import Tensor

__all__ = [
    "BUFFER_NAMES",
    "FLOATS",
    "Kind",
    "Layer",
    "common_layers",
    "is_variance",
    "layers_of",
    "mismatch",
    "shown",
]

BUFFER_NAMES = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names under which PyTorch's normalization layers keep what is not trained."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Kind(Enum):
    """What a tensor of a model is to an aggregation rule."""

    PARAMETER = "parameter"
    """Trained; the only kind that rules measure."""
    BUFFER = "buffer"
    """Floating point, not trained; follows the weights that the parameters earned."""
    COUNTER = "counter"
    """Integer; takes the lower median of the clients that count, and stays an integer."""


@dataclass(frozen=True)
class Layer:
    """One named tensor of the model.

    Parameters
    ----------
    name, shape, dtype
        As in the model's state dict.
    kind
        What rules may do with it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What rules compute in: half precision is widened, nothing is narrowed."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


def is_variance(name: str) -> bool:
    """Whether a buffer of that name holds variances, which never fall below 0."""
    return fnmatchcase(name, "*running_var")


def layers_of(state: Mapping[str, Tensor], buffers: Iterable[str] = ()) -> tuple[Layer, ...]:
    """Describe the layers of a state dict.

    Parameters
    ----------
    state
        Tensors by name.
    buffers
        Patterns (``*`` and ``?``) of further names that are buffers, besides `BUFFER_NAMES`.
    """
    patterns = (*BUFFER_NAMES, *buffers)
    return tuple(
        Layer(name, tuple(tensor.shape), tensor.dtype, _kind(name, tensor.dtype, patterns))
        for name, tensor in state.items()
    )


def _kind(name: str, dtype: torch.dtype, buffers: Sequence[str]) -> Kind:
    if dtype not in FLOATS:
        return Kind.COUNTER
    return Kind.BUFFER if any(fnmatchcase(name, glob) for glob in buffers) else Kind.PARAMETER


def common_layers(
    states: Sequence[Mapping[str, Tensor]], buffers: Iterable[str] = ()
) -> tuple[Layer, ...]:
    """Find the layers that most clients sent, where no global model says what they should be.

    The majority decides, not whoever comes first: one odd client must not be able to have all
    the others rejected.
    """
    usable = [state for state in states if state]
    if not usable:
        return ()
    outlines = [_outline(state) for state in usable]
    common = Counter(outlines).most_common(1)[0][0]
    agreeing = [s for s, outline in zip(usable, outlines, strict=True) if outline == common]
    layers = layers_of(agreeing[0], buffers)
    return tuple(
        Layer(layer.name, layer.shape, _common_dtype(agreeing, layer.name), layer.kind)
        for layer in layers
    )


def _outline(state: Mapping[str, Tensor]) -> frozenset[tuple[str, tuple[int, ...], bool]]:
    return frozenset((name, tuple(t.shape), t.dtype in FLOATS) for name, t in state.items())


def _common_dtype(states: Sequence[Mapping[str, Tensor]], name: str) -> torch.dtype:
    return Counter(state[name].dtype for state in states).most_common(1)[0][0]


def mismatch(state: Mapping[str, Tensor], layers: Sequence[Layer]) -> str | None:
    """Describe how a client's layers differ from the expected ones; None where they do not.

    Another floating-point width is no mismatch: it is converted. Floats for integers are.
    """
    if not state:
        return "is empty: it holds no layers"
    expected = {layer.name for layer in layers}
    extra = [name for name in state if name not in expected]
    if extra:
        return f"has a layer that the model has not: {shown(extra[0])}{_and_more(extra)}"
    missing = [layer.name for layer in layers if layer.name not in state]
    if missing:
        return f"lacks layer {shown(missing[0])}{_and_more(missing)}"
    for layer in layers:
        tensor, name = state[layer.name], shown(layer.name)
        if tuple(tensor.shape) != layer.shape:
            return f"layer {name} has shape {tuple(tensor.shape)}, expected {layer.shape}"
        is_float, wants_float = tensor.dtype in FLOATS, layer.dtype in FLOATS
        found, wanted = _dtype_name(tensor.dtype), _dtype_name(layer.dtype)
        if is_float != wants_float:
            return f"layer {name} holds {found}, expected {wanted}"
        if not is_float and tensor.dtype not in _INTEGERS:
            return f"layer {name} holds {found}, which cannot be aggregated"
    if not any(layer.size for layer in layers):
        return "is empty: its layers hold no values"
    return None


def shown(name: object) -> str:
    """Show a layer's name in a reason of one line: a client may have sent any text."""
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:77]}…'"


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
