"""Rows, made up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from reproduction.experiments import RUN_TABLES
from reproduction.methods import ABLATIONS, LEARNED, PAPER_FORMS, RULES
from reproduction.rows import as_frame

__all__ = ["LAYOUTS", "Row", "any_rows", "frame_of", "grid_of", "made_up", "rows_of"]

ATTACKERS = (1, 2, 3, 4)
LAYOUTS = {each.id: each.layout for each in RUN_TABLES}
TRAININGS = ("backdoor", "omniscient", "backdoor+omniscient")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a frame."""

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


def frame_of(rows: Iterable[Row]) -> pd.DataFrame:
    return as_frame([asdict(row) for row in rows])


def grid_of(experiment: str) -> list[dict[str, Any]]:
    """List what an experiment plays, but for the seeds."""
    if experiment.endswith("-attackers"):
        task = experiment.removesuffix("-attackers")
        second = "label-flip" if task == "imdb" else "backdoor"
        quiet = [{"attack": "none", "attackers": 0}]
        loud = [{"attack": a, "attackers": m} for a in ("omniscient", second) for m in ATTACKERS]
        return [{"task": task, "rule": rule, **each} for rule in RULES for each in quiet + loud]
    if experiment == "training-attacks":
        who = [{"rule": "oracle"}, {"rule": "adaptive-universal"}]
        who += [{"rule": r, "trained": t} for r in (*PAPER_FORMS, "adaptive") for t in TRAININGS]
        return [
            {"task": "cifar10", "attack": attack, "attackers": m, **each}
            for attack in ("backdoor", "omniscient")
            for m in ATTACKERS
            for each in who
        ]
    if experiment == "transfer-patterns":
        values = {"shift_y": (0, 12, 24), "shift_x": (0, 12), "gap": (0, 2, 4)}
        return [
            {"task": "cifar10", "attack": "backdoor", "attackers": m, "rule": rule}
            | {"varied": name, "value": value}
            for name, some in values.items()
            for value in some
            for m in ATTACKERS
            for rule in LEARNED
        ]
    task, clients = "cifar10", 10
    rules: tuple[str, ...] = RULES
    if experiment == "ablation":
        rules = ABLATIONS
    elif experiment == "transfer-cifar100":
        task = "cifar100"
    elif experiment == "transfer-100-clients":
        clients = 100
    else:
        task = experiment.removesuffix("-backdoor")
    return [
        {"task": task, "attack": "backdoor", "rule": rule, "clients": clients}
        | {"attackers": m * clients // 10}
        for rule in rules
        for m in ATTACKERS
    ]


_SHARES = st.integers(0, 10_000).map(lambda n: n / 10_000)


def made_up(
    experiment: str, kept: float = 1.0, chance: int = 1, seeds: Sequence[int] = (1, 2, 3)
) -> list[Row]:
    """Make up some of an experiment's rows, in any order.

    Parameters
    ----------
    experiment
        Its id.
    kept
        About which share of all.
    chance
        Which ones, and what they say.
    seeds
        Of the runs.
    """
    random = Random(chance)
    every = [each | {"seed": seed} for each in grid_of(experiment) for seed in seeds]
    some = [each for each in every if random.random() < kept]
    random.shuffle(some)
    return [
        Row(
            **each,
            accuracy=random.randrange(10_001) / 10_000,
            asr=random.randrange(10_001) / 10_000 if each["attack"] == "backdoor" else None,
            rounds=3,
        )
        for each in some
    ]


def rows_of(experiment: str) -> st.SearchStrategy[list[Row]]:
    """Draw rows of an experiment: all, none, or some."""
    # One number stands for all shares: drawing each by itself would take long.
    return st.builds(
        made_up,
        st.just(experiment),
        st.sampled_from([0.0, 0.3, 0.9, 1.0]),
        st.integers(0, 10_000),
        st.sampled_from([(1,), (1, 2), (1, 2, 3)]),
    )


def any_rows(text: st.SearchStrategy[str], most: int = 12) -> st.SearchStrategy[list[Row]]:
    """Up to `most` rows that may say anything, no two of which are the same run."""
    words = st.one_of(text, st.sampled_from(["none", "backdoor", "omniscient", "mean", "adaptive"]))
    row = st.builds(
        Row,
        task=words,
        attack=words,
        attackers=st.integers(0, 5),
        rule=words,
        seed=st.integers(0, 3),
        accuracy=_SHARES,
        asr=st.none() | _SHARES,
        asr_others=st.none() | _SHARES,
        clients=st.sampled_from([10, 100]),
        trained=st.sampled_from(["", "backdoor", "omniscient+backdoor", "backdoor+omniscient"]),
        varied=st.one_of(st.just(""), words),
        value=st.integers(-2, 3),
        rounds=st.integers(0, 3),
        attackers_weight=st.none() | _SHARES,
        honest_accused=st.none() | _SHARES,
        run=text,
    )
    return st.lists(row, max_size=most).map(_without_repeats)


def _without_repeats(rows: Iterable[Row]) -> list[Row]:
    found = {}
    for row in rows:
        trained = tuple(sorted(row.trained.split("+")))
        what = (row.task, row.attack, row.attackers, row.rule, row.seed, row.clients)
        found[*what, trained, row.varied, row.value] = row
    return list(found.values())
