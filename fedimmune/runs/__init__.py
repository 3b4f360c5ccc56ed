"""Run folders: what a run says about itself, kept crash-safe, and read again as tables."""

from fedimmune.runs.folder import Checkpoint, RunFolder, finish_round
from fedimmune.runs.records import ClientData, RoundRecord, Seconds
from fedimmune.runs.traces import Trace, Traces

__all__ = [
    "Checkpoint",
    "ClientData",
    "RoundRecord",
    "RunFolder",
    "Seconds",
    "Trace",
    "Traces",
    "finish_round",
]
