"""A picture in both kinds of file, each whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedimmune.report.drawing import folder_for_figures, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save_both"]


def save_both(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem.png`` and ``stem.pdf``.

    Raises
    ------
    InputError
        Nothing can be written there.
    """
    folder = folder_for_figures(stem.parent)
    written = [save_figure(figure, folder / f"{stem.name}.png", "png")]
    figure.set_layout_engine("none")  # it is laid out now: no need to do that again
    return [*written, save_figure(figure, folder / f"{stem.name}.pdf", "pdf")]
