"""Who has which data, as the paper draws it: a bar a client, coloured by class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedimmune.experiments.shown.captions import counted
from fedimmune.experiments.shown.saving import save_both
from fedimmune.experiments.shown.styles import CLASSES
from fedimmune.report.drawing import require_matplotlib

__all__ = ["draw_partition"]

_NAMED = 20
"""So many classes have names in the legend; of more, colours alone are shown."""
_EDGES = 30
"""With more clients, bars touch."""


def draw_partition(partitions: Sequence[Sequence[Sequence[int]]], stem: Path) -> list[Path]:
    """Draw partitions side by side, clients sorted by size.

    Parameters
    ----------
    partitions
        For each client of each, how many samples of each class it has.
    stem
        Where the picture goes, but for the ending.

    Returns
    -------
    list of Path
        ``stem.png`` and ``stem.pdf``.

    Raises
    ------
    InputError
        Matplotlib is missing, or nothing can be written there.
    """
    require_matplotlib()
    import numpy as np  # noqa: PLC0415
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    across = max(len(partitions), 1)
    figure = Figure(figsize=(0.4 + 3.4 * across, 2.9), layout="constrained")
    axes = figure.subplots(1, across, squeeze=False)[0]
    classes = max((len(c) for clients in partitions for c in clients), default=0)
    colours: list[Any] = list(CLASSES[:classes])
    if classes > len(CLASSES):
        colours = [colormaps["viridis"](k / (classes - 1)) for k in range(classes)]
    for here, clients in zip(axes, partitions, strict=False):
        counts = np.zeros((len(clients), classes))
        for i, client in enumerate(sorted(clients, key=sum)):
            counts[i, : len(client)] = client
        below = np.cumsum(counts, axis=1) - counts
        for k in range(classes):
            here.bar(
                np.arange(len(clients)),
                counts[:, k],
                width=0.86 if len(clients) <= _EDGES else 1.0,
                bottom=below[:, k],
                color=colours[k],
                linewidth=0,
            )
        here.set_title(counted(len(clients), "client"), fontsize=8)
        here.set_xlabel("clients, sorted by size", fontsize=8)
        here.set_xticks([])
        here.set_xlim(-0.6, len(clients) - 0.4)
        here.set_ylabel("samples", fontsize=8)
        here.tick_params(labelsize=7)
    if 0 < classes <= _NAMED:
        figure.legend(
            [Patch(color=colour) for colour in colours],
            [f"{k}" for k in range(classes)],
            title="class",
            title_fontsize=7,
            loc="outside lower center",
            ncols=min(classes, 10),
            fontsize=7,
            columnspacing=1.2,
            handlelength=1.0,
            frameon=False,
        )
    return save_both(figure, stem)
