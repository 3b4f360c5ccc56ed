"""ByzFL, a library with the same rules, to measure beside: never needed, never copied from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import Tensor

__all__ = ["Peer", "load_peers"]

Peer = tuple[str, Callable[[int], Callable[[Tensor], object]]]
"""What to call it, and what makes it for n clients."""


def load_peers() -> dict[str, Peer] | str:
    """Give ByzFL's counterparts by our names, or one sentence saying why there are none."""
    try:
        spec = find_spec("byzfl")  # finds a package without running it
        if spec is None or spec.submodule_search_locations is None:
            return "ByzFL is not installed: its column stays empty."
        with _stand_ins(list(spec.submodule_search_locations)):
            aggregators: Any = importlib.import_module("byzfl.aggregators.aggregators")
        return _counterparts(aggregators)
    except Exception as error:  # noqa: BLE001, RUF100 - whatever a peer does wrong is no reason to stop
        return f"ByzFL cannot be used ({type(error).__name__}: {error}): its column stays empty."


def _counterparts(byzfl: Any) -> dict[str, Peer]:
    return {
        "mean": ("ByzFL Average", lambda _: byzfl.Average()),
        "median": ("ByzFL Median", lambda _: byzfl.Median()),
        "trimmed-mean": ("ByzFL TrMean", lambda n: byzfl.TrMean(f=n // 3)),
        "geometric-median": ("ByzFL GeometricMedian", lambda _: byzfl.GeometricMedian()),
        "krum": ("ByzFL Krum", lambda n: byzfl.Krum(f=(n - 3) // 2)),
        "caf": ("ByzFL CAF", lambda n: byzfl.CAF(f=(n - 1) // 2)),
        "centered-clipping": ("ByzFL CenteredClipping", lambda _: byzfl.CenteredClipping()),
        "mda": ("ByzFL MDA", lambda n: byzfl.MDA(f=(n - 1) // 2)),
        "meamed": ("ByzFL Meamed", lambda n: byzfl.Meamed(f=(n - 1) // 2)),
        "monna": ("ByzFL MoNNA", lambda n: byzfl.MoNNA(f=(n - 1) // 2)),
        "smea": ("ByzFL SMEA", lambda n: byzfl.SMEA(f=(n - 1) // 2)),
        "multi-krum": ("ByzFL MultiKrum", lambda n: byzfl.MultiKrum(f=(n - 3) // 2)),
    }


@contextmanager
def _stand_ins(folders: list[str]) -> Iterator[None]:
    """Let ByzFL's aggregators be imported without what the rest of ByzFL needs.

    Importing the package runs its `__init__`, which wants torchvision; an empty package with the
    same folders does not. The aggregators take distances between numpy arrays from SciPy, between
    tensors from PyTorch; only tensors are measured, so an absent SciPy may be an empty one.
    """
    modules = {"byzfl": ModuleType("byzfl")}
    modules["byzfl"].__path__ = folders
    if find_spec("scipy") is None:
        modules |= {"scipy": ModuleType("scipy"), "scipy.spatial": ModuleType("scipy.spatial")}
        modules["scipy.spatial"].__dict__["distance"] = None
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
