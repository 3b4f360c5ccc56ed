"""What an experiment needs of the machine, looked at before anything is begun."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from fedimmune.errors import InputError
from fedimmune.experiments.parts import Part
from fedimmune.experiments.store import Store
from fedimmune.tasks import data_folder, load_data

__all__ = ["check_data", "check_writable"]


def check_data(parts: Iterable[Part], store: Store) -> None:
    """Load the data of all tasks once: what is missing is said, or downloaded, or prepared, now.

    Parameters
    ----------
    parts
        What is to be made.
    store
        Where data are.

    Raises
    ------
    InputError
        A data set is not there, or damaged; the message says what to do.
    """
    played = [part.played for part in parts if part.played is not None]
    tasks = {each.task.model_dump_json(): each for each in played}
    for _, one in sorted(tasks.items()):
        load_data(one.make_task(), data_folder(store.data))


def check_writable(folder: Path) -> None:
    """Make a folder where there is none, and see that files can be written there.

    Raises
    ------
    InputError
        They cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
