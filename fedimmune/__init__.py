"""fedimmune: an immune system for federated learning.

>>> import fedimmune
>>> fedimmune.rules.get("median")([[0.0, 1.0], [2.0, 3.0], [100.0, -100.0]])
array([2., 1.])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedimmune import attacks as attacks
    from fedimmune import rules as rules
    from fedimmune import tasks as tasks
    from fedimmune.aggregation import Aggregation as Aggregation
    from fedimmune.aggregation import aggregate_files as aggregate_files
    from fedimmune.errors import FedimmuneError as FedimmuneError
    from fedimmune.geometry import Geometry as Geometry
    from fedimmune.geometry import measure as measure
    from fedimmune.hierarchy import Hierarchy as Hierarchy
    from fedimmune.results import ClientResult as ClientResult
    from fedimmune.results import Verdict as Verdict
    from fedimmune.rules import Rule as Rule
    from fedimmune.runs.folder import RunFolder as RunFolder
    from fedimmune.runs.records import RoundRecord as RoundRecord
    from fedimmune.runs.results import Results as Results
    from fedimmune.runs.results import load_runs as load_runs
    from fedimmune.simulation import Scenario as Scenario
    from fedimmune.simulation import simulate as simulate
    from fedimmune.tasks import Data as Data
    from fedimmune.tasks import Samples as Samples
    from fedimmune.tasks import Task as Task
    from fedimmune.tasks import TrainingConfig as TrainingConfig
    from fedimmune.updates import Updates as Updates

__version__ = "0.2.0"

_HOMES = {
    "Aggregation": "fedimmune.aggregation",
    "ClientResult": "fedimmune.results",
    "Data": "fedimmune.tasks",
    "FedimmuneError": "fedimmune.errors",
    "Geometry": "fedimmune.geometry",
    "Hierarchy": "fedimmune.hierarchy",
    "TrainingConfig": "fedimmune.tasks",
    "Results": "fedimmune.runs.results",
    "RoundRecord": "fedimmune.runs.records",
    "Rule": "fedimmune.rules",
    "RunFolder": "fedimmune.runs.folder",
    "Samples": "fedimmune.tasks",
    "Scenario": "fedimmune.simulation",
    "Task": "fedimmune.tasks",
    "Updates": "fedimmune.updates",
    "Verdict": "fedimmune.results",
    "aggregate_files": "fedimmune.aggregation",
    "load_runs": "fedimmune.runs.results",
    "measure": "fedimmune.geometry",
    "simulate": "fedimmune.simulation",
}

_ROOMS = ("attacks", "rules", "tasks")

__all__ = [*_HOMES, *_ROOMS, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import what is asked for, and PyTorch with it, only when it is asked for."""
    if name in _ROOMS:
        return import_module(f"fedimmune.{name}")
    if name[:1].isupper() or name in _HOMES:  # a rule's class, if it is nothing else
        return getattr(import_module(_HOMES.get(name, "fedimmune.rules")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
