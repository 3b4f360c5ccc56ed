"""Draw the README's picture: the demo's five runs, and whom the learned rule trusted.

``make picture`` plays the demo first, unless it has been played, and needs the extra ``figures``.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedimmune.demo import RULES, Demo
from fedimmune.io import write_bytes_atomically
from fedimmune.runs.records import RoundRecord

__all__ = ["draw", "main"]

Records = Mapping[str, Sequence[RoundRecord]]

# Colors that the color-blind can tell apart; the learned rule is the one to look at.
_COLORS = {
    "mean": "#d55e00",
    "median": "#b97f00",
    "krum": "#b0588a",
    "adaptive": "#0072b2",
    "oracle": "#333333",
}
_TRUSTED, _BAD, _EMPTY, _QUIET = "#0072b2", "#c2410c", "#eceff1", "#5f6b73"
_LABEL_GAP = 0.058
"""Least distance of two labels at the ends of lines, as a share of the axis."""


def main() -> None:
    """Play what has not been played, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("build/demo"), help="the demo's folder")
    parser.add_argument("--output", type=Path, default=Path("docs/images/story.png"))
    options = parser.parse_args()
    demo = Demo(options.demo)
    demo.rehearse(lambda *_: None)
    demo.learn(lambda *_: None)
    draw({rule: list(demo.play(rule)) for rule in RULES}, options.output)


def draw(records: Records, output: Path) -> None:
    """Draw the runs of the demo's rules into a PNG file."""
    figure = Figure(figsize=(13, 4.7), facecolor="white")
    left, middle, right = figure.subplots(
        1, 3, gridspec_kw={"width_ratios": [1, 1, 1.05], "wspace": 0.58}
    )
    figure.subplots_adjust(left=0.045, right=0.985, top=0.69, bottom=0.12)
    figure.text(
        0.012,
        0.93,
        "Ten clients train one model. Four of them plant a backdoor in it.",
        fontsize=17,
        weight="bold",
    )
    figure.text(
        0.012,
        0.86,
        "fedimmune demo: the same federation under five rules. oracle is told who attacks; "
        "adaptive has learned it from rehearsals.",
        fontsize=11,
        color=_QUIET,
    )
    _lines(
        left,
        "Does the backdoor work?",
        "attacked images classified as wanted (ASR)",
        {rule: [each.asr or 0.0 for each in played] for rule, played in records.items()},
    )
    _explain(left, records["oracle"][-1].asr or 0.0)
    _lines(
        middle,
        "Is the model still good?",
        "clean images classified rightly (ACC)",
        {rule: [each.accuracy or 0.0 for each in played] for rule, played in records.items()},
    )
    _trust(right, records["adaptive"])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    write_bytes_atomically(buffer.getvalue(), output)


def _entitle(axes: Axes, title: str, subtitle: str) -> None:
    axes.text(0, 1.12, title, transform=axes.transAxes, fontsize=13, weight="bold")
    axes.text(0, 1.045, subtitle, transform=axes.transAxes, fontsize=9.5, color=_QUIET)


def _lines(axes: Axes, title: str, subtitle: str, series: Mapping[str, Sequence[float]]) -> None:
    _entitle(axes, title, subtitle)
    rounds = max(len(values) for values in series.values())
    for rule, values in series.items():
        axes.plot(
            range(1, len(values) + 1),
            values,
            color=_COLORS[rule],
            linewidth=3 if rule == "adaptive" else 1.8,
            linestyle=(0, (4, 2)) if rule == "oracle" else "-",
            zorder=3 if rule == "oracle" else 2,
            clip_on=False,
        )
    for rule, height in _apart({rule: values[-1] for rule, values in series.items()}).items():
        axes.text(
            1.03,
            height,
            f"{rule} {series[rule][-1]:.0%}",
            transform=axes.get_yaxis_transform(),
            color=_COLORS[rule],
            fontsize=10,
            weight="bold" if rule == "adaptive" else "normal",
            va="center",
        )
    axes.set(xlim=(1, rounds), ylim=(0, 1), xlabel="round")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_xticks([1, *range(5, rounds + 1, 5)])
    axes.grid(axis="y", color="#dde2e6", linewidth=0.8)
    axes.tick_params(length=0, labelsize=9, labelcolor=_QUIET)
    axes.xaxis.label.set_color(_QUIET)
    axes.spines[:].set_visible(False)


def _explain(axes: Axes, floor: float) -> None:
    axes.text(
        0.98,
        floor + 0.2,
        f"{floor:.0%} without any backdoor: so many\nimages show the attackers' digit anyway",
        transform=axes.transAxes,
        fontsize=8.5,
        color=_QUIET,
        ha="right",
        va="center",
    )


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Spread labels that would lie on each other evenly about their middle."""
    stacks: list[list[str]] = []
    for rule in sorted(heights, key=lambda name: heights[name]):
        stacks.append([rule])
        while len(stacks) > 1 and _bottom(stacks[-1], heights) < _top(stacks[-2], heights):
            stacks[-2:] = [stacks[-2] + stacks[-1]]
    return {
        rule: _bottom(stack, heights) + (place + 0.5) * _LABEL_GAP
        for stack in stacks
        for place, rule in enumerate(stack)
    }


def _bottom(stack: Sequence[str], heights: Mapping[str, float]) -> float:
    middle = sum(heights[rule] for rule in stack) / len(stack)
    half = len(stack) * _LABEL_GAP / 2
    return min(middle, 1.0 + _LABEL_GAP / 2 - half) - half


def _top(stack: Sequence[str], heights: Mapping[str, float]) -> float:
    return _bottom(stack, heights) + len(stack) * _LABEL_GAP


def _trust(axes: Axes, records: Sequence[RoundRecord]) -> None:
    _entitle(axes, "Whom does adaptive trust?", "weight of each client, round by round")
    attacks = {
        client.client: bool(client.is_attacker) for each in records for client in each.clients
    }
    order = sorted(attacks, key=lambda client: (attacks[client], str(client)))
    rows = {client: row + 0.35 * attacks[client] for row, client in enumerate(order)}
    fair = 1 / (len(order) - sum(attacks.values()))
    for each in records:
        for client in each.clients:
            share = min(1.0, (client.weight or 0.0) / fair)
            place = (each.round - 0.46, rows[client.client] - 0.44)
            axes.add_patch(Rectangle(place, 0.92, 0.88, color=_EMPTY, linewidth=0))
            color = _BAD if client.is_attacker else _TRUSTED
            axes.add_patch(Rectangle(place, 0.92, 0.88, color=color, alpha=share, linewidth=0))
    axes.set(xlim=(0.5, len(records) + 0.5), ylim=(len(order) - 0.1, -0.5), xlabel="round")
    axes.set_yticks(
        list(rows.values()), [f"{each} attacks" if attacks[each] else f"{each}" for each in order]
    )
    axes.set_xticks([1, *range(5, len(records) + 1, 5)])
    axes.tick_params(length=0, labelsize=9, labelcolor=_QUIET)
    for label, who in zip(axes.get_yticklabels(), order, strict=True):
        label.set_color(_BAD if attacks[who] else _QUIET)
    axes.xaxis.label.set_color(_QUIET)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    main()
