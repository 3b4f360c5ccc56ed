"""Files as an attacker would write them: valid ones, changed where it may hurt."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from fedimmune.io import DESCRIPTION, described

__all__ = ["changed_bytes", "changed_json", "changed_tensors", "changed_text"]

Draw = Callable[[st.SearchStrategy[Any]], Any]

_DEEP = "nested, to be put in"
_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e308, -1e308, 1e-320, 2**31, 2**53, 2**62),
    *(2**63, 2**64, -(2**63), 10**30, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "nan",
        "0",
        "true",
        "none",
        "\x1b[2J\x07",
        "\u202eabc",
        "\ud800",
        "a" * 5000,
        "[/]",
        "../x",
    ),
    *([], {}, [[]], [None], {"": {}}, [1, "a", None], {"name": "evil:X"}, _DEEP),
]
odd = st.sampled_from(_ODD)


def changed_bytes(draw: Draw, content: bytes) -> bytes:
    """Flip, cut, repeat or insert some bytes."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(found) - 1)))
        how = draw(st.sampled_from(["flip", "cut", "insert", "drop", "repeat"]))
        if how == "flip" and found:
            found[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del found[place:]
        elif how == "drop":
            del found[place : place + draw(st.integers(1, 9))]
        elif how == "insert":
            found[place:place] = draw(st.binary(min_size=1, max_size=9))
        else:
            found[place:place] = found[place : place + draw(st.integers(1, 200))]
    return bytes(found)


def changed_json(draw: Draw, value: Any) -> Any:
    """Replace, remove or add something anywhere within a value."""
    found = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        found = _changed_within(draw, found)
    return found


def _changed_within(draw: Draw, value: Any) -> Any:
    """Go down to some part, each time with a chance to stay."""
    inner = value if isinstance(value, dict | list) else None
    if not inner or draw(st.integers(0, 9)) == 0:
        return copy.deepcopy(draw(odd))
    keys = sorted(inner, key=str) if isinstance(inner, dict) else range(len(inner))
    key = draw(st.sampled_from(list(keys)))
    how = draw(st.sampled_from(["within", "within", "within", "remove", "add"]))
    if how == "remove":
        del inner[key]
    elif how == "add" and isinstance(inner, dict):
        inner[draw(st.sampled_from(["more", "", "\x1b", "name"]))] = copy.deepcopy(draw(odd))
    elif how == "add" and isinstance(inner, list):
        inner.insert(key, copy.deepcopy(draw(st.one_of(odd, st.just(inner[key])))))
    else:
        inner[key] = _changed_within(draw, inner[key])
    return inner


def changed_text(draw: Draw, value: Any) -> bytes:
    """Give a changed value as JSON, as lenient writers write it: with NaN, and nested deeply."""
    text = json.dumps(changed_json(draw, value))
    depth = draw(st.sampled_from([20, 500, 100_000]))
    nested = draw(st.sampled_from(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth]))
    if draw(st.integers(0, 9)) == 0 and text.startswith("{"):
        text = '{"round": 1, "round": 2,' + text[1:]
    return text.replace(json.dumps(_DEEP), nested).encode()


def changed_tensors(draw: Draw, content: bytes) -> bytes:
    """Change a safetensors file: its bytes, its header, what it says of itself, or its tensors."""
    how = draw(st.sampled_from(["bytes", "header", "description", "about", "about", "tensors"]))
    if how == "bytes":
        return changed_bytes(draw, content)
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = header.get("__metadata__", {})
    about = json.loads(metadata.get(DESCRIPTION, "{}"))
    if how == "header":
        return _framed(changed_text(draw, header), data)
    if how == "description":  # whose digest is then wrong, if it is still JSON
        metadata = {DESCRIPTION: changed_text(draw, about).decode(errors="replace")}
        return _framed(json.dumps({**header, "__metadata__": metadata}).encode(), data)
    tensors = load(content)
    about.pop("digest", None)
    if how == "about":
        about = changed_json(draw, about)
    if how == "tensors" or draw(st.integers(0, 4)) == 0:
        for _ in range(draw(st.integers(1, 2))):
            _change_a_tensor(draw, tensors)
    if not isinstance(about, dict) or not metadata:
        return save(tensors, None)
    return save(tensors, described(tensors, **about))  # as whoever knows how would do it


def _framed(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _change_a_tensor(draw: Draw, tensors: dict[str, Tensor]) -> None:
    if not tensors:
        return
    name = draw(st.sampled_from(sorted(tensors)))
    tensor = tensors.pop(name)
    changes: list[Callable[[Tensor], Tensor]] = [
        *(lambda t, to=to: t.to(to) for to in _DTYPES),
        *(
            lambda t, by=by: (t.double() * by).to(t.dtype)
            for by in (0, -1, 1e300, 1e-320, float("nan"), float("inf"))
        ),
        lambda t: t.flatten(),
        lambda t: t.flatten()[0] if t.numel() else t,
        lambda t: t[:0] if t.ndim else t[None][:0],
        lambda t: t[..., :0] if t.ndim else t,
        lambda t: torch.cat([t, t]) if t.ndim else t[None],
        lambda t: t[None],
        lambda t: t.new_zeros(0, 15_000),
        lambda t: t.to(torch.uint8) * 0 + 200,
    ]
    how = draw(st.integers(-2, len(changes) - 1))
    if how == -2:
        return  # it is gone
    if how == -1:
        tensors[draw(st.sampled_from([name + "x", "", "kinds/mean", "\x1b[31m"]))] = tensor
        return
    tensors[name] = changes[how](tensor).contiguous().clone()


_DTYPES = (
    *(torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.bool, torch.uint8, torch.float8_e4m3fn),
)
