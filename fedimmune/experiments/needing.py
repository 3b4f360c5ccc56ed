"""What an experiment needs of the machine, looked at before anything is begun."""

from __future__ import annotations

from collections.abc import Iterable

from fedimmune.experiments.parts import Part
from fedimmune.experiments.store import Store
from fedimmune.tasks import data_folder, load_data

__all__ = ["check_data"]


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
