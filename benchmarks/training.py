"""How long a defense takes to train; run as ``python -m benchmarks.training``.

1,000 made-up rounds of 10 clients and an anchor, batches of 32, one thread: LeNet in the
shipped form, and ResNet-18's 62 layers (620 features) in the paper's. Epochs take equally long, so
some are timed (``--epochs``) and 500 follow from them; each epoch includes validating on 500
rounds. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch

from fedimmune.adaptive.defense import make_form
from fedimmune.adaptive.training import PRESETS, Examples, fit

_CLIENTS, _COLUMNS = 10, 40
_WHOLE = 500
_SUBJECTS: tuple[tuple[str, str, dict[str, Any], float | None], ...] = (
    ("shipped form, LeNet", "relational", {"layers": 10, "anchor": True}, 3),
    ("shipped form, ResNet-18", "relational", {"layers": 62, "anchor": True}, None),
    ("paper's form, LeNet", "paper", {"layers": 10}, None),
    ("paper's form, ResNet-18", "paper", {"layers": 62}, 20),
    ("paper's form as the authors', ResNet-18", "paper", {"layers": 62, **PRESETS["authors"]}, 20),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"| {given.rounds} rounds | minutes for {_WHOLE} epochs | at most |\n|---|---|---|")
    for title, form, settings, bar in _SUBJECTS:
        seconds = _seconds(form, settings, given.rounds, given.epochs)
        limit = "–" if bar is None else f"{bar:g}"
        print(f"| {title} | {seconds * _WHOLE / 60:.1f} | {limit} |", flush=True)


def _seconds(name: str, settings: dict[str, Any], rounds: int, epochs: int) -> float:
    """Seconds an epoch."""
    torch.manual_seed(1)
    form = make_form(name, settings)
    rows = _CLIENTS + bool(settings.get("anchor"))
    updates = 1 + torch.randn(rounds, settings["layers"], rows, _COLUMNS, dtype=torch.float64)
    attackers = torch.rand(rounds, _CLIENTS) < 0.3
    attackers[:, 0] = False
    updates[:, :, :_CLIENTS] *= torch.where(attackers, -1.0, 1.0)[:, None, :, None]
    whole = Examples(form.prepare(updates @ updates.mT), attackers)
    apart = whole.take(torch.arange(rounds // 2))
    fit(form, [apart], [apart], epochs=1)  # what is done once in a process is not counted
    began = time.perf_counter()
    fit(form, [whole], [apart], epochs=epochs)
    return (time.perf_counter() - began) / epochs


if __name__ == "__main__":
    main()
