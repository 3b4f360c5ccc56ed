"""Where data sets lie: a folder that the user names, or a cache of the user's."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_folder", "user_cache"]

_VARIABLE = "FEDIMMUNE_DATA"


def user_cache() -> Path:
    """The folder for what can be had again, as the operating system has it."""
    import pooch  # noqa: PLC0415 (slow to import)

    return Path(pooch.os_cache("fedimmune"))


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Find the folder of data sets: as given, else ``FEDIMMUNE_DATA``, else the user's cache."""
    named = given or os.environ.get(_VARIABLE)
    return Path(named) if named else user_cache() / "data"
