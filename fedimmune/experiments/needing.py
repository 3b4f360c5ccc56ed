"""What an experiment needs of the machine, looked at before anything is begun."""

from __future__ import annotations

from collections.abc import Sequence

from fedimmune.experiments.artefact import Artefact
from fedimmune.experiments.asking import Ask
from fedimmune.experiments.scales import setting_of
from fedimmune.experiments.store import Store
from fedimmune.federation import Scenario
from fedimmune.tasks import data_folder, load_data

__all__ = ["check_data"]


def check_data(artefacts: Sequence[Artefact], ask: Ask, store: Store) -> None:
    """Load the data of all tasks once: what is missing is said, or downloaded, or prepared, now.

    Raises
    ------
    InputError
        A data set is not there, or damaged; the message says what to do.
    """
    tasks = {each.tasks[ask.scale] for each in artefacts} - {"synthetic"}
    if "cifar100" in tasks:
        tasks.add("cifar10")  # whose defence is used
    for task in sorted(tasks):
        setting = setting_of(task, ask.scale)
        made = Scenario(task=setting.fields["task"]).make_task()
        load_data(made, data_folder(store.data))
