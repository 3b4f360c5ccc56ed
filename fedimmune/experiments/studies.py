"""Artefacts that are no tables of runs: the search, the partition, synthetic sets, the traits."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from fedimmune.adaptive.defence import Defence
from fedimmune.adaptive.importance import importance_of
from fedimmune.adaptive.outcomes import FIGURES, described_search
from fedimmune.adaptive.sweeping import GRID, points_of
from fedimmune.errors import InputError
from fedimmune.experiments.artefact import Artefact, Results
from fedimmune.experiments.asking import Ask
from fedimmune.experiments.contenders import contender
from fedimmune.experiments.learned_parts import Trained, trained
from fedimmune.experiments.other_parts import Dealt, Demonstrated, Searched
from fedimmune.experiments.parts import Part
from fedimmune.experiments.played_parts import Played, run_seconds
from fedimmune.experiments.scales import setting_of
from fedimmune.experiments.shown.escaping import latex, markdown
from fedimmune.experiments.shown.figures import (
    draw_partition,
    draw_sweep,
    draw_synthetic_sheet,
    draw_traits_of,
)
from fedimmune.experiments.store import Store
from fedimmune.federation.protocols import with_protocol

__all__ = ["Partition", "Sweep", "Synthetic", "Traits"]


class Sweep(Artefact):
    """Settings searched, one defence a point."""

    def parts(self, ask: Ask) -> list[Part]:
        (task,) = self.tasks[ask.scale]
        recorded = trained(task, ask.scale, "adaptive-paper", ("backdoor",), ask.device)
        return [
            Searched(recorded.recordings, tuple(point.items()), recorded.epochs, recorded.seconds)
            for point in points_of(GRID if ask.scale != "smoke" else _TWO_POINTS)
        ]

    def results(self, ask: Ask, store: Store, earlier: Path | None = None) -> Results:
        made = [part for part in self.parts(ask) if part.is_made(store)]
        outcomes = [part.outcome(store) for part in made if isinstance(part, Searched)]
        points = [[f"{value:g}" for value in one.settings.values()] for one in outcomes]
        figures = [[getattr(one, name) for name in FIGURES] for one in outcomes]
        searched = GRID if outcomes else ()
        whole = len(made) == len(self.parts(ask))

        def draw(stem: Path) -> list[Path]:
            if not whole:
                return []  # a heat map has no holes
            grid = {name: sorted({one.settings[name] for one in outcomes}) for name in GRID}
            return draw_sweep(described_search(grid, outcomes), stem)

        found = _tabled(
            [*searched, *(f"{_IN_WORDS[name]} %" for name in FIGURES)],
            [[*point, *map(_per_cent, own)] for point, own in zip(points, figures, strict=True)],
            draw,
            shown=len(made),
            wanted=len(self.parts(ask)),
        )
        lines = [[*point, *own] for point, own in zip(points, figures, strict=True)]
        return replace(found, csv=_csv([*searched, *FIGURES], lines))


_TWO_POINTS = {"c": (1, 10), "eps": (0.5,)}
_IN_WORDS = {
    "accuracy": "clients judged rightly",
    "exact": "rounds without an error",
    "benign_kept": "honest kept",
    "attacker_weight": "weight on attackers",
}


def _per_cent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f}"


class Partition(Artefact):
    """Samples by client and class."""

    def reduced(self, scale: str) -> str:
        return "bundled digits" if scale == "smoke" else ""  # nothing is trained

    def parts(self, ask: Ask) -> list[Part]:
        (task,) = self.tasks[ask.scale]
        setting = setting_of(task, ask.scale)
        fields = {name: value for name, value in setting.fields.items() if name == "task"}
        return [Dealt(json.dumps(fields), clients) for clients in (10, 100)]

    def results(self, ask: Ask, store: Store, earlier: Path | None = None) -> Results:
        made = [part for part in self.parts(ask) if part.is_made(store)]
        dealt = {part.clients: part.counts(store) for part in made if isinstance(part, Dealt)}
        every = [
            [clients, client, label, count]
            for clients, counts in dealt.items()
            for client, classes in enumerate(counts)
            for label, count in enumerate(classes)
        ]
        sizes = {clients: sorted(map(sum, counts)) for clients, counts in dealt.items()}
        found = _tabled(
            ["clients", "smallest", "median", "largest"],
            [[n, each[0], f"{median(each):g}", each[-1]] for n, each in sizes.items()],
            lambda stem: draw_partition(list(dealt.values()), stem) if dealt else [],
            shown=len(made),
            wanted=len(self.parts(ask)),
        )
        return replace(found, csv=_csv(["clients", "client", "class", "samples"], every))


class Synthetic(Artefact):
    """The demonstration on drawn sets."""

    def reduced(self, scale: str) -> str:
        ours = "the distribution of the sets is ours, for the paper does not give its own"
        return f"128 sets to learn from instead of 2048; {ours}" if scale == "smoke" else ours

    def parts(self, ask: Ask) -> list[Part]:
        sets, epochs = (128, 2) if ask.scale == "smoke" else (2048, 20)
        return [Demonstrated(seed, sets, epochs) for seed in ask.seeds]

    def results(self, ask: Ask, store: Store, earlier: Path | None = None) -> Results:
        made = [
            part
            for part in self.parts(ask)
            if isinstance(part, Demonstrated) and part.is_made(store)
        ]
        figures = {part.seed: part.figures(store) for part in made}
        names = list(figures[made[0].seed]) if made else []
        shown = _tabled(
            ["seed", *_TOLD.values()],
            [[seed, *(found[name] for name in _TOLD)] for seed, found in figures.items()],
            lambda stem: draw_synthetic_sheet(made[0].demonstration(), stem) if made else [],
            shown=len(made),
            wanted=len(self.parts(ask)),
        )
        return replace(
            shown,
            csv=_csv(
                ["seed", *names], ([seed, *found.values()] for seed, found in figures.items())
            ),
        )


_TOLD = {
    "attacker_weight": "outliers' weight",
    "benign_kept": "inliers kept",
    "exact": "sets told exactly",
    "auroc": "AUROC of the weights",
    "median_auroc": "of the distance from the median",
    "plane_auroc": "of the distance in PCA's plane",
    "important": "of the ten most important features, among the first ten",
}


class Traits(Artefact):
    """What a defence looks at, and what attackers send there."""

    def parts(self, ask: Ask) -> list[Part]:
        return [*self._runs(ask), self._papers(ask)]

    def results(self, ask: Ask, store: Store, earlier: Path | None = None) -> Results:
        lines: list[list[Any]] = []
        for part in (self._papers(ask), self._shipped(ask)):
            if part.is_made(store):
                by_layer = importance_of(Defence.load(part.file(store))).by_layer
                total = sum(by_layer.values())
                ranked = sorted(by_layer.items(), key=lambda item: -item[1])
                lines += [
                    [part.contender.key, place, name, value / total]
                    for place, (name, value) in enumerate(ranked, start=1)
                ]
        runs = [part for part in self._runs(ask) if part.is_made(store)]
        folders = [part.folder(store).path for part in runs]
        top = [line for line in lines if line[1] <= _TOP]
        head = ["rule", "rank", "layer", "share of the importance"]
        shown = _tabled(
            head,
            top,
            lambda stem: draw_traits_of(folders, stem) if folders else [],
            shown=sum(part.is_made(store) for part in self.parts(ask)),
            wanted=len(self.parts(ask)),
        )
        played = tuple(part.scenario(store).model_dump() for part in runs)
        return replace(shown, csv=_csv(head, lines), scenarios=played)

    def _papers(self, ask: Ask) -> Trained:
        (task,) = self.tasks[ask.scale]
        return trained(task, ask.scale, "adaptive-paper", ("backdoor",), ask.device)

    def _shipped(self, ask: Ask) -> Trained:
        (task,) = self.tasks[ask.scale]
        return trained(task, ask.scale, "adaptive", setting_of(task, ask.scale).attacks, ask.device)

    def _runs(self, ask: Ask) -> list[Played]:
        (task,) = self.tasks[ask.scale]
        setting = setting_of(task, ask.scale)
        fields: dict[str, Any] = {
            **setting.fields,
            "attack": "backdoor",
            "attackers": 4,
            "clients": 10,
            "seed": 1,
        }
        fields = with_protocol(setting.protocol, fields)
        if ask.device != "cpu":
            fields["device"] = ask.device
        seconds = run_seconds(setting, rounds=setting.rounds)
        by = {"mean": None, "adaptive": self._shipped(ask)}
        return [
            Played(fields, contender(key), defence, seconds, keep=(setting.traits,))
            for key, defence in by.items()
        ]


_TOP = 5


# -------------------------------------------------------------------- plain tables


def _tabled(
    head: Sequence[str],
    lines: Sequence[Sequence[Any]],
    draw: Callable[[Path], list[Path]],
    *,
    shown: int,
    wanted: int,
) -> Results:
    """Put the same values into CSV, Markdown and LaTeX."""
    said = [[_said(value) for value in line] for line in lines]
    return Results(
        csv=_csv(head, lines),
        markdown=_in_markdown(head, said),
        latex=_in_latex(head, said),
        draw=draw,
        shown=shown,
        wanted=wanted,
    )


def _said(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _csv(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(["" if value is None else value for value in line] for line in lines)
    return buffer.getvalue()


def _in_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not head:
        raise InputError("a table needs columns")
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(map(_escaped, row)) + " |\n" for row in rows)


def _escaped(cell: str) -> str:
    return cell if set(cell) == {"-"} else markdown(cell)


def _in_latex(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [" & ".join(latex(cell) for cell in line) + r" \\" for line in lines]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            rf"\begin{{tabular}}{{{'l' * len(head)}}}",
            r"\toprule",
            " & ".join(latex(cell) for cell in head) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )
