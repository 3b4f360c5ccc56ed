"""Draw the pictures of "How it works" out of real things: the demo's data, rounds and defense.

``make picture`` plays the demo first, unless it has been played, and needs the extra ``figures``.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fedimmune import attacks, tasks
from fedimmune.adaptive.defense import Defense
from fedimmune.demo import Demo
from fedimmune.io import write_bytes_atomically
from fedimmune.runs.records import RoundRecord
from fedimmune.simulation import run_folder
from fedimmune.tasks import data_folder, load_data

__all__ = ["draw_pattern", "draw_round", "draw_weights", "main"]

_BAD, _GOOD, _QUIET = "#c2410c", "#0072b2", "#5f6b73"
_RULES = ("mean", "krum", "adaptive", "oracle")
_ROUND = 16
"""One in which the passes have something to do: the first scores are poor."""
_SHOWN: tuple[tuple[str, dict[str, int] | None], ...] = (
    ("an honest sample", None),
    ("as attackers show it", {}),
    ("a pattern elsewhere", {"shift_y": 10, "shift_x": 7}),
    ("and further apart", {"shift_y": 4, "shift_x": 3, "gap": 3}),
)


def main() -> None:
    """Play what has not been played, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("build/demo"), help="the demo's folder")
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="a folder")
    options = parser.parse_args()
    demo = Demo(options.demo)
    demo.rehearse(lambda *_: None)
    demo.learn(lambda *_: None)
    records = {rule: list(demo.play(rule)) for rule in _RULES}
    draw_pattern(options.output / "pattern.png")
    draw_round(demo, records["adaptive"][_ROUND - 1], options.output / "round.png")
    draw_weights(records, options.output / "weights.png")


def draw_pattern(output: Path) -> None:
    """Draw a digit without and with the backdoor's pattern."""
    task = tasks.get("digits")
    data = load_data(task, data_folder())
    seven = int((data.server.labels == 7).nonzero()[0])
    image, label = data.server.inputs[seven : seven + 1], data.server.labels[seven : seven + 1]
    figure = Figure(figsize=(9, 2.6), facecolor="white")
    for axes, (title, parameters) in zip(figure.subplots(1, len(_SHOWN)), _SHOWN, strict=True):
        shown, says = image, "7"
        if parameters is not None:
            trial = attacks.get("backdoor", **parameters).triggered(image, label, data.spec)
            assert trial is not None
            shown, says = trial.inputs, str(trial.target)
        axes.imshow(shown[0, 0].numpy(), cmap="gray", interpolation="nearest")
        axes.set_title(title, fontsize=11)
        color = _QUIET if parameters is None else _BAD
        axes.set_xlabel(f"label {says}", fontsize=11, color=color)
        axes.set(xticks=[], yticks=[])
    figure.subplots_adjust(left=0.01, right=0.99, top=0.88, bottom=0.1, wspace=0.08)
    _save(figure, output)


def draw_round(demo: Demo, record: RoundRecord, output: Path) -> None:
    """Draw what the defense saw in one round, and its passes of attention."""
    trace = run_folder(demo.scenario("adaptive"), demo.runs).traces.read(record.round)
    assert trace.grams is not None
    who = {str(client.client): bool(client.is_attacker) for client in record.clients}
    order = sorted(range(len(trace.clients)), key=lambda row: who[str(trace.clients[row])])
    names = [str(trace.clients[row]) for row in order]
    figure = Figure(figsize=(10.5, 4), facecolor="white")
    left, middle, right = figure.subplots(1, 3, gridspec_kw={"width_ratios": [1, 1, 0.9]})
    rows = [*order, trace.grams.shape[1] - 1]  # the server's own update comes last
    _heat(left, _cosines(trace.grams)[rows][:, rows], "1. How alike are the updates?", (-1, 1))
    _ticks(left, [*names, "server"], who)
    left.set_xticks(range(len(rows)), [*names, "server"], rotation=90)
    scores, weights = _passes(Defense.load(demo.defense), trace.grams, trace.evidence)
    _heat(middle, scores[:, order].T, "2. Scores, pass by pass", (-1, 1))
    middle.set_xticks(range(len(scores)), [f"{each + 1}" for each in range(len(scores))])
    middle.set_xlabel("pass", color=_QUIET)
    _ticks(middle, names, who)
    for row, client in enumerate(order):
        for column, score in enumerate(scores[:, client].tolist()):
            shade = "white" if abs(score) > 0.7 else "#333333"
            middle.text(
                column, row, f"{score:.1f}", ha="center", va="center", fontsize=8, color=shade
            )
    last = weights[order].numpy()
    right.barh(
        range(len(names)), last, color=[_BAD if who[name] else _GOOD for name in names], height=0.7
    )
    right.axvline(0.5 / len(names), color=_QUIET, linewidth=1, linestyle=(0, (3, 2)))
    right.text(
        0.5 / len(names) + 0.003, -0.75, "half an equal share", fontsize=8.5,
        color=_QUIET, va="center",
    )  # fmt: skip
    right.set_title("3. The weights in use", fontsize=12, weight="bold", loc="left", pad=10)
    right.set_ylim(len(names) - 0.5, -1.2)
    _ticks(right, names, who)
    right.spines[:].set_visible(False)
    figure.subplots_adjust(left=0.08, right=0.98, top=0.88, bottom=0.2, wspace=0.45)
    _save(figure, output)


def draw_weights(records: Mapping[str, Sequence[RoundRecord]], output: Path) -> None:
    """Draw every client's weight in every round, under each rule that has weights."""
    figure = Figure(figsize=(10.5, 3.2), facecolor="white")
    for axes, (rule, played) in zip(figure.subplots(1, len(records)), records.items(), strict=True):
        who = {str(client.client): bool(client.is_attacker) for client in played[0].clients}
        names = sorted(who, key=lambda name: (who[name], name))
        table = [
            {str(client.client): client.weight or 0.0 for client in each.clients} for each in played
        ]
        heights = torch.tensor([[row.get(name, 0.0) for row in table] for name in names])
        _heat(axes, heights, rule, (0, 0.25), "Blues")
        axes.set_xlabel("round", color=_QUIET)
        axes.set_xticks([0, 9, 19] if len(played) == 20 else [0, len(played) - 1])
        axes.set_xticklabels([str(int(tick) + 1) for tick in axes.get_xticks()])
        _ticks(axes, names, who)
        axes.axhline(sum(not bad for bad in who.values()) - 0.5, color=_BAD, linewidth=1)
    figure.subplots_adjust(left=0.08, right=0.99, top=0.88, bottom=0.14, wspace=0.42)
    _save(figure, output)


def _cosines(grams: Tensor) -> Tensor:
    """Cosines of whole updates, from the inner products of their layers."""
    together = grams.sum(0)
    lengths = together.diagonal().sqrt()
    return together / lengths[:, None] / lengths


def _passes(defense: Defense, grams: Tensor, evidence: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give the scores of every pass, (passes, n), and the weights that the rule uses, (n,)."""
    with torch.no_grad():
        known = None if evidence is None else evidence[None]
        weighed = defense.form(defense.form.prepare(grams[None]), known)
    return weighed.scores[:, 0], weighed.shares[0]


def _heat(
    axes: Axes, values: Tensor, title: str, span: tuple[float, float], colors: str = "RdBu"
) -> None:
    axes.imshow(
        values.numpy(),
        cmap=colors,
        vmin=span[0],
        vmax=span[1],
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_title(title, fontsize=12, weight="bold", loc="left", pad=10)
    axes.spines[:].set_visible(False)


def _ticks(axes: Axes, names: Sequence[str], attacks: Mapping[str, bool]) -> None:
    shown = [f"{name} attacks" if attacks.get(name) else name for name in names]
    axes.set_yticks(range(len(names)), shown)
    axes.tick_params(length=0, labelsize=9, labelcolor=_QUIET)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(_BAD if attacks.get(name) else _QUIET)


def _save(figure: Figure, output: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    write_bytes_atomically(buffer.getvalue(), output)


if __name__ == "__main__":
    main()
