"""Experiments that are not tables of runs: search, partition, synthetic sets, traits; all by id."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.explanation import importance_of
from fedimmune.errors import ParameterError
from reproduction.experiments import CHEAPEST, RUN_TABLES, Experiment, always
from reproduction.figures import (
    Chart,
    partition_chart,
    search_chart,
    synthetic_chart,
    traits_chart,
)
from reproduction.jobs import (
    FIGURES,
    DefenseJob,
    Job,
    PartitionJob,
    RunJob,
    SearchJob,
    Store,
    SyntheticJob,
    defense_job,
    run_job,
)
from reproduction.presets import find_preset
from reproduction.selection import Request
from reproduction.synthetic import demonstrate
from reproduction.tables import plain_latex, plain_markdown

__all__ = ["EXPERIMENTS", "Partition", "Search", "Synthetic", "Traits", "find_experiment"]


class _Study(Experiment):
    """An experiment whose table is a view of its frame."""

    def view(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return what the table shows of the frame."""
        return frame

    def markdown(self, frame: pd.DataFrame) -> str:
        return plain_markdown(self.view(frame))

    def latex(self, frame: pd.DataFrame, note: str) -> str:
        return plain_latex(self.view(frame))


class Search(_Study):
    """Settings searched, one defense per point."""

    def jobs(self, request: Request) -> list[Job]:
        (task,) = self.tasks[request.scale]
        # Of the form that holds: the search is to tell c and ε apart, not signs or data.
        usual = defense_job(
            task, request.scale, "adaptive-paper-clients", ("backdoor",), request.device
        )
        grid = _TWO_POINTS if request.scale == "smoke" else _GRID
        points = [
            tuple(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())
        ]
        return [SearchJob(usual.recordings, each, usual.epochs, usual.seconds) for each in points]

    def frame(self, request: Request, store: Store) -> pd.DataFrame:
        jobs = [job for job in self.jobs(request) if isinstance(job, SearchJob)]
        found = [job.result(store) for job in jobs if job.is_done(store)]
        frame = pd.DataFrame(found, columns=[*_GRID, *FIGURES])
        return frame.astype(dict.fromkeys(FIGURES, "float64")).assign(
            **{name: frame[name].map("{:g}".format) for name in _GRID}
        )

    def view(self, frame: pd.DataFrame) -> pd.DataFrame:
        shown = {name: frame[name].astype(str) for name in _GRID}
        return pd.DataFrame(
            shown
            | {
                f"{title} %": frame[name].map(
                    lambda share: None if pd.isna(share) else f"{100 * share:.1f}"
                )
                for name, title in _FIGURE_TITLES.items()
            }
        )

    def charts(self, frame: pd.DataFrame, request: Request, store: Store) -> dict[str, Chart]:
        if len(frame) < len(self.jobs(request)):
            return {}  # a heat map has no holes
        return {"": search_chart(frame)}


_GRID: Mapping[str, tuple[float, ...]] = {"c": (1, 2, 5, 10, 20), "eps": (0, 0.25, 0.5, 0.75)}
_TWO_POINTS: Mapping[str, tuple[float, ...]] = {"c": (1, 10), "eps": (0.5,)}
_FIGURE_TITLES = {
    "accuracy": "clients judged rightly",
    "exact": "rounds without an error",
    "benign_kept": "honest kept",
    "attacker_weight": "weight on attackers",
}


class Partition(_Study):
    """Samples by client and class."""

    def differences(self, scale: str) -> str:
        return "bundled digits" if scale == "smoke" else ""  # nothing is trained

    def jobs(self, request: Request) -> list[Job]:
        (task,) = self.tasks[request.scale]
        fields = json.dumps({"task": find_preset(task, request.scale).fields["task"]})
        return [PartitionJob(fields, clients) for clients in (10, 100)]

    def frame(self, request: Request, store: Store) -> pd.DataFrame:
        jobs = [job for job in self.jobs(request) if isinstance(job, PartitionJob)]
        found = [
            (job.clients, client, label, count)
            for job in jobs
            if job.is_done(store)
            for client, classes in enumerate(job.result(store))
            for label, count in enumerate(classes)
        ]
        return pd.DataFrame(found, columns=["clients", "client", "class", "samples"], dtype=int)

    def view(self, frame: pd.DataFrame) -> pd.DataFrame:
        sizes = frame.groupby(["clients", "client"])["samples"].sum().groupby("clients")
        found = sizes.agg(smallest="min", median="median", largest="max").reset_index()
        return found.assign(median=found["median"].map("{:g}".format))

    def charts(self, frame: pd.DataFrame, request: Request, store: Store) -> dict[str, Chart]:
        return {"": partition_chart(frame)} if len(frame) else {}


class Synthetic(_Study):
    """The demonstration on drawn sets."""

    def differences(self, scale: str) -> str:
        ours = "the distribution of the sets is ours, because the paper does not give its own"
        return f"128 sets to learn from instead of 2048; {ours}" if scale == "smoke" else ours

    def jobs(self, request: Request) -> list[Job]:
        sets, epochs = (128, 2) if request.scale == "smoke" else (2048, 20)
        return [SyntheticJob(seed, sets, epochs) for seed in request.seeds]

    def frame(self, request: Request, store: Store) -> pd.DataFrame:
        found = [{"seed": job.seed, **job.result(store)} for job in self._done(request, store)]
        return pd.DataFrame(found, columns=None if found else ["seed", *_SYNTHETIC_TITLES])

    def view(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[["seed", *_SYNTHETIC_TITLES]].rename(columns=_SYNTHETIC_TITLES)

    def charts(self, frame: pd.DataFrame, request: Request, store: Store) -> dict[str, Chart]:
        for job in self._done(request, store)[:1]:  # the same as the job's, because it is seeded
            again = demonstrate(seed=job.seed, sets=job.sets, epochs=job.epochs)
            return {"": synthetic_chart(again)}
        return {}

    def _done(self, request: Request, store: Store) -> list[SyntheticJob]:
        jobs = [job for job in self.jobs(request) if isinstance(job, SyntheticJob)]
        return [job for job in jobs if job.is_done(store)]


_SYNTHETIC_TITLES = {
    "attacker_weight": "outliers' weight",
    "benign_kept": "inliers kept",
    "exact": "sets told exactly",
    "auroc": "AUROC of the weights",
    "median_auroc": "of the distance from the median",
    "plane_auroc": "of the distance in PCA's plane",
    "important": "of the ten most important features, among the first ten",
}


class Traits(_Study):
    """What a defense looks at, and what attackers send there."""

    def jobs(self, request: Request) -> list[Job]:
        return [*self._runs(request), self._defenses(request)["adaptive-paper"]]

    def frame(self, request: Request, store: Store) -> pd.DataFrame:
        found: list[tuple[Any, ...]] = []
        for key, job in self._defenses(request).items():
            if job.is_done(store):
                by_layer = importance_of(Defense.load(job.file(store))).by_layer
                total = sum(by_layer.values())
                ranked = sorted(by_layer.items(), key=lambda item: -item[1])
                found += [(key, i, name, v / total) for i, (name, v) in enumerate(ranked, start=1)]
        return pd.DataFrame(found, columns=["rule", "rank", "layer", "share of the importance"])

    def view(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["rank"].astype(int) <= _TOP]

    def charts(self, frame: pd.DataFrame, request: Request, store: Store) -> dict[str, Chart]:
        done = [job for job in self._runs(request) if job.is_done(store)]
        if not done:
            return {}
        folders = {job.method.key: job.folder(store).path for job in done}
        return {"": traits_chart(folders, done[0].layers[0])}

    def _defenses(self, request: Request) -> dict[str, DefenseJob]:
        (task,) = self.tasks[request.scale]
        heard = {
            "adaptive-paper": ("backdoor",),
            "adaptive": find_preset(task, request.scale).attacks,
        }
        return {
            key: defense_job(task, request.scale, key, attacks, request.device)
            for key, attacks in heard.items()
        }

    def _runs(self, request: Request) -> list[RunJob]:
        (task,) = self.tasks[request.scale]
        fields = {"attack": "backdoor", "attackers": 4, "clients": 10, "seed": 1}
        by = {"mean": None, "adaptive": self._defenses(request)["adaptive"]}
        layers = (find_preset(task, request.scale).traits,)
        where = {"device": request.device, "layers": layers}
        return [
            run_job(task, request.scale, key, fields, defense=defense, **where)  # type: ignore[arg-type]
            for key, defense in by.items()
        ]


_TOP = 5

EXPERIMENTS: Mapping[str, Experiment] = {
    each.id: each
    for each in (
        *RUN_TABLES,
        Search(
            "sweep",
            "The search for c and ε",
            "How well defenses tell attackers on rehearsals held out, by c and ε.",
            "section 4.3",
            CHEAPEST,
        ),
        Partition(
            "partition",
            "Who has how many samples of which class",
            "Data split among 10 and among 100 clients by a Dirichlet distribution.",
            "figure 6",
            always("cifar10"),
        ),
        Synthetic(
            "synthetic",
            "Outliers that attention finds and PCA does not show",
            "The paper's demonstration on drawn sets.",
            "figures 7 and 8",
            always("synthetic"),
        ),
        Traits(
            "traits",
            "The traits of an attack",
            "Which layers a defense looks at, and one layer's updates over rounds under FedAvg and "
            "under the learned rule.",
            "figure 9",
            always("cifar10"),
        ),
    )
}
"""By id, in the order of the list."""


def find_experiment(id: str) -> Experiment:  # noqa: A002
    """Return an experiment.

    Raises
    ------
    ParameterError
        There is none of that id.
    """
    try:
        return EXPERIMENTS[id]
    except KeyError:
        raise ParameterError(
            f"there is no experiment {id!r}; there are {', '.join(EXPERIMENTS)}"
        ) from None
