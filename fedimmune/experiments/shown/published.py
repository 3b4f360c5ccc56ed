"""The figures that the paper prints, to stand beside ours.

They are those of the tables of Wan and Chen, *Robust Federated Learning with Attack-Adaptive
Aggregation*, 2021, as printed: ``published/ID.csv``, one file an artefact. Of the paper's plots no
numbers are known, and none are made up here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fedimmune.errors import InputError

__all__ = ["AVERAGE", "CLIENTS", "Published", "published"]

AVERAGE = "average"
"""Stands in the files for the number of attackers, where the paper has the mean of its four."""

CLIENTS = 10
"""So many there are wherever the paper prints figures."""

_PRINTED_ELSEWHERE = {
    "mnist-attackers": "mnist-backdoor",
    "cifar10-attackers": "cifar10-backdoor",
    "tiny-imagenet-attackers": "tiny-imagenet-backdoor",
}
"""The paper plots these, and prints the backdoor's part of the plot in a table of its appendix."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One line of a table of the paper, for one number of attackers.

    Parameters
    ----------
    artefact
        Which table, by the id of what makes it again.
    task, attack
        What was played.
    attackers
        How many of ten; None is the mean over 1 to 4, as printed.
    rule
        Who defended, by our name of it: the paper's FedAvg is ``mean``, its RFA
        ``geometric-median``, its Krum ``multi-krum``, and its own rule ``adaptive-paper``.
    trained
        Attacks that the paper's rule had learned from, with + between; empty where it does not say.
    accuracy, asr
        Per cent, as printed; None where it has none.
    """

    artefact: str
    task: str
    attack: str
    attackers: int | None
    rule: str
    trained: str
    accuracy: float | None
    asr: float | None


def published(artefact: str) -> list[Published]:
    """Give the paper's figures of an artefact; none where the paper prints none.

    Parameters
    ----------
    artefact
        Its id, such as ``cifar10-backdoor``.
    """
    return list(_read(_PRINTED_ELSEWHERE.get(artefact, artefact)))


@cache
def _read(artefact: str) -> tuple[Published, ...]:
    folder = resources.files("fedimmune.experiments.shown") / "published"
    # By the folder's own list: an id is never taken for a path.
    found = [file for file in folder.iterdir() if file.name == f"{artefact}.csv"]
    if not found:
        return ()
    with found[0].open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    try:
        return tuple(_figure(line) for line in lines)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{found[0]} is damaged ({error!r}): install fedimmune anew to have it back"
        ) from error


def _figure(line: dict[str, str]) -> Published:
    count = line["attackers"]
    return Published(
        artefact=line["artefact"],
        task=line["task"],
        attack=line["attack"],
        attackers=None if count == AVERAGE else int(count),
        rule=line["rule"],
        trained=line["trained"],
        accuracy=float(line["accuracy"]) if line["accuracy"] else None,
        asr=float(line["asr"]) if line["asr"] else None,
    )
