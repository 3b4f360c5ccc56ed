"""One line of an artefact's table: a finished run, or a defence's outcome, as plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

__all__ = ["FIELDS", "MEASURED", "Row"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a run came to, by its last round. Shares are from 0 to 1.

    Parameters
    ----------
    task, attack, attackers, clients
        What was played.
    rule
        Who defended, by the key of a contender: a rule's name; ``adaptive`` is the learned rule as
        shipped, ``adaptive-paper`` in the paper's form, ``adaptive-paper-literal`` with axes as
        they come, ``adaptive-paper-clients`` rehearsed with the clients' data; ``mlp``,
        ``without-c`` and ``without-eps`` are its ablations.
    trained
        Attacks that a learned rule had rehearsed, with + between; empty for other rules.
    varied, value
        The parameter of the attack that an artefact varies, such as ``shift_y``, and what it was;
        empty and 0 where none is.
    seed, rounds
        Of the run.
    accuracy
        Of the model, on the server's samples.
    asr, asr_others
        The attack's success, over all samples and over those of other classes than the target;
        None where the attack has no pattern.
    attackers_weight
        Share of the weight that attackers had, mean over rounds; None where a rule gives no
        weights or nobody attacks.
    honest_accused
        Share of the honest clients' rounds in which they were left out; None as above.
    run
        Name of the run's folder.
    scale
        Of the table that the row stands in; the same run, by its key, may belong to several.
    key
        Stands for all of what was played, the defence's training included.
    """

    task: str
    attack: str
    attackers: int
    rule: str
    seed: int
    accuracy: float
    asr: float | None = None
    asr_others: float | None = None
    clients: int = 10
    trained: str = ""
    varied: str = ""
    value: int = 0
    rounds: int = 0
    attackers_weight: float | None = None
    honest_accused: float | None = None
    run: str = ""
    scale: str = ""
    key: str = ""


FIELDS = tuple(each.name for each in dataclasses.fields(Row))
"""Columns of the CSV, in order."""
MEASURED = frozenset({"accuracy", "asr", "asr_others", "attackers_weight", "honest_accused", "run"})
"""Columns that are known only once a run is finished."""
