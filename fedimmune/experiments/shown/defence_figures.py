"""Pictures that the package has already, of a search, of a demonstration and of updates, on paper.

They are described and drawn in `fedimmune.report`; here they become PNG and PDF.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedimmune.errors import InputError
from fedimmune.experiments.shown.saving import save_both
from fedimmune.experiments.shown.styles import printable
from fedimmune.report.drawing import require_matplotlib

if TYPE_CHECKING:
    from fedimmune.synthetic import Demonstration

__all__ = ["draw_sweep", "draw_synthetic_sheet", "draw_traits_of"]


def draw_sweep(searched: Mapping[str, Any], stem: Path) -> list[Path]:
    """Draw what a search over settings came to, such as c × ε: a heat map with its values.

    Parameters
    ----------
    searched
        As a defence keeps it, see `fedimmune.adaptive.outcomes.described_search`.
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
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    from fedimmune.report.sweep_map import sweep_grid  # noqa: PLC0415

    grid = sweep_grid(searched)
    values = [[cell.value if cell else None for cell in row.cells] for row in grid.rows]
    known = [value for row in values for value in row if value is not None]
    shades = [[float("nan") if value is None else value for value in row] for row in values]
    size = (1.4 + 0.75 * len(grid.columns), 1.0 + 0.42 * len(grid.rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shades, cmap="Blues", aspect="auto", interpolation="nearest")
    dark = min(known) + 0.6 * (max(known) - min(known))
    for y, row in enumerate(grid.rows):
        for x, cell in enumerate(row.cells):
            if cell is None or cell.value is None:
                continue
            ink = "white" if cell.value > dark else "black"
            axes.text(x, y, f"{cell.value:.1%}", ha="center", va="center", fontsize=7, color=ink)
            if cell.verdict:  # the one that was chosen
                axes.add_patch(
                    Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, ec="#c2410c", lw=1.8)
                )
    axes.set_xticks(range(len(grid.columns)), [printable(each.label) for each in grid.columns])
    axes.set_yticks(range(len(grid.rows)), [printable(each.label) for each in grid.rows])
    axes.set_xlabel(printable(grid.column_word), fontsize=8)
    axes.set_ylabel(printable(grid.row_word), fontsize=8)
    axes.tick_params(labelsize=7, length=0)
    axes.spines[:].set_visible(False)
    return save_both(figure, stem)


def draw_synthetic_sheet(demonstration: Demonstration, stem: Path) -> list[Path]:
    """Draw the synthetic demonstration's four pictures on one sheet.

    Parameters
    ----------
    demonstration
        From `fedimmune.synthetic.demonstrate`.
    stem
        Where the picture goes, but for the ending.

    Raises
    ------
    InputError
        Matplotlib is missing, or nothing can be written there.
    """
    require_matplotlib()
    from fedimmune.report.synthetic import sheet_of  # noqa: PLC0415

    return save_both(sheet_of(demonstration), stem)


def draw_traits_of(runs: Iterable[str | os.PathLike[str]], stem: Path) -> list[Path]:
    """Draw what clients sent in one layer, round by round, FedAvg beside the learned rule.

    Parameters
    ----------
    runs
        Run folders that differ in their rules, or folders of such, with a layer's updates kept.
    stem
        Where the picture goes, but for the ending.

    Raises
    ------
    InputError
        Matplotlib is missing, a run cannot be read or kept no layer, or nothing can be written
        there.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415

    from fedimmune.report.grouping import settings_of  # noqa: PLC0415
    from fedimmune.report.reading import read_runs  # noqa: PLC0415
    from fedimmune.report.traits import traits_of  # noqa: PLC0415
    from fedimmune.report.traits_drawn import draw_traits_in, figure_size  # noqa: PLC0415

    pictures = [p for setting in settings_of(read_runs(runs)) for p in traits_of(setting, 1)[0]]
    if not pictures:
        raise InputError(
            "no run has kept the updates of a layer: run `fedimmune simulate` with --keep LAYER"
        )
    chart = pictures[0]
    figure = Figure(figsize=figure_size(chart), layout="constrained")
    axes = figure.subplots()
    draw_traits_in(chart, axes)
    axes.set_title(printable(chart.title), fontsize=9)
    axes.tick_params(labelsize=8)
    return save_both(figure, stem)
