"""Whole rounds in Flower's simulation: how much of one is the strategy's, how much transport.

The app is ``benchmarks/flower_app``: ten clients that train nothing send a model of ResNet-18's
size back. Strategies take turns within one run, so that they share what else the machine is doing.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.clients import Clients
from benchmarks.resnet18 import resnet18
from fedimmune.io import write_atomically

__all__ = ["in_simulation"]

_ROOT = Path(__file__).resolve().parents[1]
_APP = _ROOT / "benchmarks" / "flower_app"
_PHASES = ("preparing", "waiting", "aggregating", "clients")


def in_simulation(folder: Path, clients: int, attackers: int, rounds: int) -> dict[str, Any]:
    """Have Flower play the rounds, and give the medians of their seconds by strategy.

    Parameters
    ----------
    folder
        For logs and files, made anew.
    clients
        How many nodes there are.
    attackers
        That Krum reckons with.
    rounds
        Of each strategy.

    Returns
    -------
    dict
        By strategy: seconds of *preparing* messages, of *waiting* for replies (transport and the
        clients), of *aggregating*, of all *clients* together; and the strategy's own *share* of
        the round: what is not waiting.
    """
    # What starts and stops Flower is the example's.
    sys.path.insert(0, str(_ROOT / "examples" / "flower"))
    from deploy.simulation import Simulation  # noqa: PLC0415

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_atomically(Clients(1, resnet18()).state(0), folder / "model.safetensors")
    found = folder / "seconds.json"
    settings: dict[str, str | int] = {
        "model": str(folder / "model.safetensors"),
        "attackers": attackers,
        "rounds": rounds,
        "found": str(found),
    }
    with Simulation(folder) as flower:
        log = flower.run(_APP, "run", settings, clients)
    if not found.is_file():
        raise RuntimeError(f"the run did not come to its end: see {log}")
    rows = json.loads(found.read_text())
    return {name: _summed_up(rows, name) for name in dict.fromkeys(r["strategy"] for r in rows)}


def _summed_up(rows: list[dict[str, Any]], strategy: str) -> dict[str, float]:
    own = [row for row in rows if row["strategy"] == strategy]
    spent = {phase: median(row[phase] for row in own) for phase in _PHASES}
    return {**spent, "share": median(_share(row) for row in own)}


def _share(row: dict[str, Any]) -> float:
    strategys = float(row["preparing"] + row["aggregating"])
    return strategys / (strategys + float(row["waiting"]))
