"""Data sets that are folders of many small files."""

from __future__ import annotations

import os
from pathlib import Path

from fedimmune.tasks.base import SourceFile

__all__ = ["count_verdict", "files_in"]


def files_in(folder: Path, suffix: str) -> list[Path]:
    """List the files of a folder that end in `suffix`, by name; none where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.name.endswith(suffix)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def count_verdict(folder: Path, files: int, published: int) -> SourceFile:
    """Judge a folder by how many files it has: their checksums were not published."""
    if not folder.is_dir():
        return SourceFile(folder, "missing")
    detail = f"{files:,} of {published:,} files"
    return SourceFile(folder, "unknown" if files == published else "differs", detail)
