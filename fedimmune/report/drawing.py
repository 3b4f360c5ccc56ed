"""What all pictures by matplotlib share: asking for it, a folder for them, files without dates."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedimmune.errors import InputError
from fedimmune.io import write_bytes_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["folder_for_figures", "require_matplotlib", "save_figure"]


def require_matplotlib() -> None:
    """Say what to install where matplotlib is missing.

    Raises
    ------
    InputError
        It is missing.
    """
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError as error:
        raise InputError("figures need an extra: pip install 'fedimmune[figures]'") from error


def folder_for_figures(folder: str | os.PathLike[str]) -> Path:
    """Make a folder, where there is none.

    Raises
    ------
    InputError
        It cannot be made.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write figures to {place}: {error.strerror}") from error
    return place


def save_figure(figure: Figure, path: Path, kind: str, dpi: int = 200) -> Path:
    """Write a figure as ``png`` or ``pdf``, whole or not at all."""
    buffer = io.BytesIO()
    # No date: equal runs have equal files.
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    write_bytes_atomically(buffer.getvalue(), path)
    return path
