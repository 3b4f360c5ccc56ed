"""Experiments: what the paper shows, what has to be run to show it, and the list of all of them.

Wan and Chen, *Robust Federated Learning with Attack-Adaptive Aggregation*, 2021. Where the paper
leaves values open (which shifts and gaps of the pattern, which c and ε), those are ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import pandas as pd

from fedimmune.errors import InputError
from fedimmune.simulation import Scenario
from reproduction.figures import Chart, run_charts
from reproduction.jobs import Job, RunJob, Store, defense_job, run_job
from reproduction.layout import Layout, printed
from reproduction.methods import ABLATIONS, LEARNED, OURS, PAPER_FORMS, RULES, find_method
from reproduction.presets import SCALES, find_preset
from reproduction.rows import IDENTITY, as_frame, merge, read_rows
from reproduction.selection import Request
from reproduction.tables import counted, latex_of, markdown_of

__all__ = ["CHEAPEST", "RUN_TABLES", "Cell", "Experiment", "RunTable", "always"]


@dataclass(frozen=True)
class Experiment(ABC):
    """A table or a figure of the paper.

    Parameters
    ----------
    id, title
        Its names, for commands and for people.
    shows
        What it shows, in a sentence.
    source
        Where it is in the paper.
    tasks
        Tasks by scale; each has tables of its own.
    """

    id: str
    title: str
    shows: str
    source: str
    tasks: Mapping[str, tuple[str, ...]]

    def differences(self, scale: str) -> str:
        """Describe what differs from the paper; empty if nothing does."""
        tasks, papers = self.tasks[scale], self.tasks["paper"]
        found = {task: find_preset(task, scale).differences for task in tasks}
        several = len(tasks) > 1
        said = [f"on {task}, {text}" if several else text for task, text in found.items() if text]
        if scale != "smoke" and not {*tasks} & {*papers}:
            said.insert(0, f"{' and '.join(tasks)} instead of {' and '.join(papers)}")
        return "; ".join(said)

    def offers(self, request: Request) -> Mapping[str, Sequence[str]] | None:
        """Return what runs can be selected by: values by field; None if it is made as a whole."""
        return None

    @abstractmethod
    def jobs(self, request: Request) -> list[Job]:
        """List what has to be done; `reproduction.schedule.closure` adds what that needs."""

    @abstractmethod
    def frame(self, request: Request, store: Store) -> pd.DataFrame:
        """Return what is there, as a tidy frame: that is the experiment's CSV."""

    @abstractmethod
    def markdown(self, frame: pd.DataFrame) -> str:
        """Write the tables of a frame in Markdown."""

    @abstractmethod
    def latex(self, frame: pd.DataFrame, note: str) -> str:
        """Write the tables of a frame in LaTeX."""

    @abstractmethod
    def charts(self, frame: pd.DataFrame, request: Request, store: Store) -> dict[str, Chart]:
        """Describe the figures: the main one under "", details under their names."""

    def shown(self, frame: pd.DataFrame, request: Request, store: Store) -> int:
        """Count the jobs asked for whose results are in a frame."""
        return sum(job.is_done(store) for job in self.jobs(request))

    def scenarios(self, request: Request, store: Store) -> list[dict[str, Any]]:
        """List what was run, in full."""
        runs = [job for job in self.jobs(request) if isinstance(job, RunJob) and job.is_done(store)]
        return [job.scenario_in(store).model_dump() for job in runs]

    def with_published(
        self, frame: pd.DataFrame, request: Request, store: Store, file: Path
    ) -> tuple[pd.DataFrame, int]:
        """Add what a published table has.

        Returns
        -------
        frame
            To be published in its place.
        carried
            How many of its rows were not made by any job asked for.

        Raises
        ------
        InputError
            Something that is published would get lost.
        """
        jobs = self.jobs(request)
        done = sum(job.is_done(store) for job in jobs)
        if file.exists() and done < len(jobs):
            raise InputError(
                f"{file} would get lost: only {done} of {len(jobs)} jobs of {self.id} are done. Do "
                "the others first, or move that table away"
            )
        return frame, 0

    def check_published(self, request: Request, file: Path) -> None:  # noqa: B027 (a whole has no rows)
        """Check, before anything is run, that a published table can be added to."""


# -------------------------------------------------------------------- tables of runs


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is run once for every seed.

    Parameters
    ----------
    rule
        A method's key.
    learned_on
        The task whose defense is used, if it is another one.
    rehearsed
        What a learned method has rehearsed; None for the usual: ours all attacks of the task, the
        paper's form the one that is run.
    varied, value
        The attack's parameter that is varied, and what it is.
    """

    task: str
    attack: str
    attackers: int
    rule: str
    clients: int = 10
    learned_on: str | None = None
    rehearsed: tuple[str, ...] | None = None
    varied: str = ""
    value: int = 0

    def known(self, scale: str) -> dict[str, Any]:
        """Return the fields that it can be selected by."""
        names = ("task", "attack", "attackers", "rule", "clients", "varied", "value")
        known = {name: getattr(self, name) for name in names}
        return {**known, "trained": "+".join(self.training(scale))}

    def row(self, scale: str) -> dict[str, Any]:
        """Return its fields in rows, where the task is the one that was really run."""
        return {**self.known(scale), "task": _task_label(self.task, scale)}

    def training(self, scale: str) -> tuple[str, ...]:
        """Return what a learned method has rehearsed; nothing for others."""
        training = find_method(self.rule).training
        if training is None:
            return ()
        if self.rehearsed is not None:
            return self.rehearsed
        usual = find_preset(self.learned_on or self.task, scale).attacks
        if not training.as_in_paper:
            return usual
        # The paper puts its runs without attack next to those of the omniscient attack.
        return (self.attack,) if self.attack in usual else ("omniscient",)

    def job(self, seed: int, request: Request) -> RunJob:
        """Return the run of a seed."""
        attack: Any = self.attack
        if self.varied:
            # With a wider gap, as in the paper: a moved pattern is never the one rehearsed.
            gap = {} if self.varied == "gap" else {"gap": 1}
            attack = {"name": self.attack, **gap, self.varied: self.value}
        fields = {
            "attack": attack,
            "attackers": self.attackers,
            "clients": self.clients,
            "seed": seed,
        }
        scale, device, heard = request.scale, request.device, self.training(request.scale)
        home = self.learned_on or self.task
        defense = defense_job(home, scale, self.rule, heard, device) if heard else None
        return run_job(self.task, scale, self.rule, fields, defense=defense, device=device)


@dataclass(frozen=True)
class RunTable(Experiment):
    """A table of runs: its cells by scale, its layout, and remarks by scale."""

    cells: Callable[[str], Sequence[Cell]]
    layout: Layout
    remarks: Mapping[str, str] = field(default_factory=dict)

    def differences(self, scale: str) -> str:
        return "; ".join(filter(None, (super().differences(scale), self.remarks.get(scale, ""))))

    def jobs(self, request: Request) -> list[Job]:
        return [job for _, _, job in self._selected(request)]

    def offers(self, request: Request) -> Mapping[str, Sequence[str]]:
        every = [cell.known(request.scale) for cell in self.cells(request.scale)]
        found = {name: [str(each[name]) for each in every] for name in every[0]}
        found["seed"] = [str(seed) for each in every for seed in request.seeds_of(**each)]
        return {name: tuple(dict.fromkeys(values)) for name, values in found.items()}

    def frame(self, request: Request, store: Store) -> pd.DataFrame:
        return as_frame(
            [
                _row(cell, seed, job, request.scale, store)
                for cell, seed, job in self._selected(request)
                if job.is_done(store)
            ]
        )

    def markdown(self, frame: pd.DataFrame) -> str:
        return markdown_of(self.layout, frame, printed(self.id))

    def latex(self, frame: pd.DataFrame, note: str) -> str:
        return latex_of(self.layout, frame, printed(self.id), title=self.title, note=note)

    def charts(self, frame: pd.DataFrame, request: Request, store: Store) -> dict[str, Chart]:
        return run_charts(self.layout, frame, printed(self.id))

    def shown(self, frame: pd.DataFrame, request: Request, store: Store) -> int:
        there = {*frame[IDENTITY].itertuples(index=False, name=None)}
        rows = [
            {**cell.row(request.scale), "seed": seed} for cell, seed, _ in self._selected(request)
        ]
        return sum(tuple(row[name] for name in IDENTITY) in there for row in rows)

    def check_published(self, request: Request, file: Path) -> None:
        keys = {job.key.removeprefix("runs/") for job in self.jobs(request)}
        rows = read_rows(file)
        other = rows[~rows["key"].isin(keys) & (rows["scale"] != request.scale)]
        if len(other):
            raise InputError(
                f"{file} has {counted(len(other), 'row')} of scale {other['scale'].iloc[0]}, which "
                f"cannot be shown with scale {request.scale}: publish elsewhere, or move it away"
            )

    def with_published(
        self, frame: pd.DataFrame, request: Request, store: Store, file: Path
    ) -> tuple[pd.DataFrame, int]:
        self.check_published(request, file)
        published = read_rows(file)
        keys = {job.key.removeprefix("runs/") for job in self.jobs(request)}
        # The same run belongs to several scales: what one has measured is good for the other.
        published.loc[published["key"].isin(keys), "scale"] = request.scale
        cells = [cell.row(request.scale) for cell in self.cells(request.scale)]
        merged = merge(published, frame, cells)
        return merged, int((~merged["key"].isin(keys)).sum())

    def _selected(self, request: Request) -> list[tuple[Cell, int, RunJob]]:
        return [
            (cell, seed, cell.job(seed, request))
            for cell in self.cells(request.scale)
            if request.admits(**(known := cell.known(request.scale)))
            for seed in request.seeds_of(**known)
            if request.admits(seed=seed)
        ]


@cache
def _task_label(task: str, scale: str) -> str:
    return Scenario(**find_preset(task, scale).fields).task.label


def _row(cell: Cell, seed: int, job: RunJob, scale: str, store: Store) -> dict[str, Any]:
    """Sum up a run: its last round, and what attackers and honest clients got in all of them."""
    records = job.records(store)
    last = records[-1]
    weights = [each.attacker_weight for each in records if each.attacker_weight is not None]
    honest = [c.verdict for each in records for c in each.clients if not c.is_attacker]
    weighed = any(c.weight is not None for c in last.clients)
    accused = fmean(verdict == "suspected" for verdict in honest) if honest and weighed else None
    return {
        **cell.row(scale),
        "seed": seed,
        "accuracy": last.accuracy,
        "asr": last.asr,
        "asr_others": last.asr_others,
        "rounds": job.scenario.rounds,
        "attackers_weight": fmean(weights) if weights and weighed and cell.attackers else None,
        "honest_accused": accused,
        "run": job.folder(store).path.name,
        "scale": scale,
        "key": job.key.removeprefix("runs/"),
    }


# -------------------------------------------------------------------- the paper's tables of runs


_Value = TypeVar("_Value")
_Tasks = Mapping[str, tuple[str, ...]]


def _by_scale(smoke: _Value, cpu: _Value, paper: _Value) -> dict[str, _Value]:
    """Use for ``authors`` what ``paper`` has: they differ only in the protocol."""
    return {"smoke": smoke, "cpu": cpu, "paper": paper, "authors": paper}


_ATTACKERS = _by_scale((4,), (1, 2, 3, 4), (1, 2, 3, 4))
_SHIFTS = _by_scale((6,), (0, 12, 24), (0, 4, 8, 12, 16, 20, 24))
_GAPS = _by_scale((1,), (0, 2, 4), (0, 1, 2, 3, 4))
_METHODS = _by_scale(LEARNED, RULES, RULES)
_CARRYING_OVER = ("mean", *PAPER_FORMS, *OURS, "oracle")
_PATTERN_METHODS = _by_scale(LEARNED, _CARRYING_OVER, _CARRYING_OVER)
_FOR_MANY = tuple(rule for rule in RULES if rule != "residual")
"""Residual-based reweighting compares all pairs of clients value by value: with 100 it takes
hours."""
_TRAININGS = (("backdoor",), ("omniscient",), ("backdoor", "omniscient"))


def always(task: str) -> _Tasks:
    """Return the same task at every scale."""
    return dict.fromkeys(SCALES, (task,))


CHEAPEST: _Tasks = _by_scale(("cifar10",), ("mnist",), ("cifar10",))
"""For what the paper shows on CIFAR-10 and a CPU can show on MNIST."""
_CHEAPEST_AND_OWN: _Tasks = {**CHEAPEST, "cpu": ("mnist", "cifar10")}


def _backdoored(
    tasks: _Tasks, methods: Mapping[str, Sequence[str]] = _METHODS, **others: Any
) -> Callable[[str], list[Cell]]:
    """List cells of 1 to 4 attackers of 10, or of as many times more."""
    times = others.get("clients", 10) // 10
    return lambda scale: [
        Cell(task=task, attack="backdoor", attackers=count * times, rule=rule, **others)
        for task in tasks[scale]
        for count in _ATTACKERS[scale]
        for rule in methods[scale]
    ]


def _trained_on(scale: str) -> list[Cell]:
    (task,) = CHEAPEST[scale]
    both = _TRAININGS[-1]
    untrained = [
        Cell(task=task, attack=attack, attackers=count, rule=rule)
        for rule in ("oracle", "adaptive-universal")
        for attack in both
        for count in _ATTACKERS[scale]
    ]
    return untrained + [
        Cell(task=task, attack=attack, attackers=count, rule=rule, rehearsed=rehearsed)
        for attack in both
        for rehearsed in _TRAININGS
        for count in _ATTACKERS[scale]
        for rule in (*PAPER_FORMS, "adaptive")
    ]


def _patterns(scale: str) -> list[Cell]:
    return [
        Cell(task=task, attack="backdoor", attackers=count, rule=rule, varied=name, value=value)
        for task in _CHEAPEST_AND_OWN[scale]
        for name, values in (("shift_y", _SHIFTS), ("shift_x", _SHIFTS), ("gap", _GAPS))
        for value in values[scale]
        for count in _ATTACKERS[scale]
        for rule in _PATTERN_METHODS[scale]
    ]


def _attackers(id: str, task: str, name: str, source: str) -> RunTable:  # noqa: A002
    def cells(scale: str) -> list[Cell]:
        quiet = [Cell(task=task, attack="none", attackers=0, rule=rule) for rule in _METHODS[scale]]
        return quiet + [
            Cell(task=task, attack=attack, attackers=count, rule=rule)
            for attack in find_preset(task, scale).attacks
            for count in _ATTACKERS[scale]
            for rule in _METHODS[scale]
        ]

    attack = "label-flip" if task == "imdb" else "backdoor"
    return RunTable(
        id,
        f"{name}: accuracy against the number of attackers",
        f"How rules hold on {name} with 0 to 4 attackers of 10, under every attack.",
        source,
        always(task),
        cells,
        Layout(
            methods=RULES,
            attacks=("omniscient", attack),
            with_none=("omniscient",),  # as in the paper's plots
        ),
    )


def _backdoor(id: str, task: str, name: str, source: str) -> RunTable:  # noqa: A002
    return RunTable(
        id,
        f"{name} under the backdoor attack",
        f"Accuracy and attack success on {name} with 1 to 4 attackers of 10.",
        source,
        always(task),
        _backdoored(always(task)),
        Layout(methods=RULES, average=True, bars=True),
    )


RUN_TABLES = (
    _attackers("mnist-attackers", "mnist", "MNIST", "figure 2, top"),
    _attackers("cifar10-attackers", "cifar10", "CIFAR-10", "figure 2, middle"),
    _attackers("tiny-imagenet-attackers", "tiny-imagenet", "Tiny-ImageNet", "figure 2, bottom"),
    _attackers("imdb-attackers", "imdb", "IMDb", "figure 3"),
    _backdoor("mnist-backdoor", "mnist", "MNIST", "table 2"),
    _backdoor("cifar10-backdoor", "cifar10", "CIFAR-10", "table 3"),
    _backdoor("tiny-imagenet-backdoor", "tiny-imagenet", "Tiny-ImageNet", "table 4"),
    RunTable(
        "ablation",
        "What each part of the network is good for",
        "Attack success without attention (MLP), without the scale c, without truncation by ε.",
        "table 1",
        CHEAPEST,
        _backdoored(CHEAPEST, dict.fromkeys(SCALES, ABLATIONS)),
        Layout(methods=ABLATIONS, measures=("asr", "accuracy"), average=True, bars=True),
    ),
    RunTable(
        "transfer-cifar100",
        "A defense of CIFAR-10 on CIFAR-100",
        "Whether a defense transfers to another task with the same layers.",
        "figure 4, left",
        always("cifar100"),
        _backdoored(always("cifar100"), learned_on="cifar10"),
        Layout(methods=RULES),
    ),
    RunTable(
        "transfer-100-clients",
        "A defense of 10 clients among 100",
        "Whether a defense transfers to another number of clients.",
        "figure 4, right",
        always("cifar10"),
        _backdoored(
            always("cifar10"),
            {s: [rule for rule in _METHODS[s] if rule in _FOR_MANY] for s in SCALES},
            clients=100,
        ),
        Layout(methods=_FOR_MANY, columns=(10, 20, 30, 40)),
        dict.fromkeys(SCALES, "without residual-based weights, too slow for so many clients"),
    ),
    RunTable(
        "transfer-patterns",
        "A defense against patterns that it has not rehearsed",
        "Attack success against the pattern's place (shift_y, shift_x) and gap: averages, and by "
        "number of attackers. A gap of 0 is the pattern that was rehearsed.",
        "figures 5 and 11",
        _CHEAPEST_AND_OWN,
        _patterns,
        Layout(methods=_CARRYING_OVER, varied=("shift_y", "shift_x", "gap")),
        {"cpu": "shifts of 0, 12 and 24 pixels, gaps of 0, 2 and 4"},
    ),
    RunTable(
        "training-attacks",
        "Trained on the backdoor (B), the omniscient attack (O), or both",
        "What rehearsing several attacks at once costs, and what is seen of attacks that were not "
        "rehearsed.",
        "tables 5 and 6",
        CHEAPEST,
        _trained_on,
        Layout(
            methods=(*PAPER_FORMS, *OURS, "oracle"),
            attacks=("backdoor", "omniscient"),
            trainings=tuple("+".join(each) for each in _TRAININGS),
            average=True,
            bars=True,
        ),
    ),
)
