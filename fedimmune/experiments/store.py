"""Where an experiment's parts are kept, so that each is made once and shared."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Store"]


@dataclass(frozen=True)
class Store:
    """A folder of recordings, defences, runs and results.

    Parameters
    ----------
    folder
        Where it is, or will be.
    data
        Folder of data sets; None for the usual one.
    """

    folder: Path
    data: str | os.PathLike[str] | None = None

    @property
    def recordings(self) -> Path:
        """Rehearsals, one file each; their names hold a digest of what was rehearsed."""
        return self.folder / "recordings"

    @property
    def defences(self) -> Path:
        """Trained defences; their names hold a digest of what they were trained on, and how."""
        return self.folder / "defences"

    @property
    def runs(self) -> Path:
        """Run folders, as `fedimmune simulate --runs` has them."""
        return self.folder / "runs"

    def results(self, scale: str) -> Path:
        """Tables and figures of a scale."""
        return self.folder / "results" / scale
