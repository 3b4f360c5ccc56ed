"""The four pictures of the synthetic demonstration, one by one and on one sheet."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedimmune.report.drawing import folder_for_figures, require_matplotlib, save_figure
from fedimmune.synthetic import FEATURES, SAMPLES, THIRD, Demonstration, principal_plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_synthetic", "sheet_of"]

# Colours that the colour-blind can tell apart.
_GOOD, _BAD, _QUIET = "#0072b2", "#c2410c", "#5f6b73"
_DPI = 130


def draw_synthetic(
    demonstration: Demonstration, folder: str | os.PathLike[str], *, only_sheet: bool = False
) -> list[Path]:
    """Draw the pictures that the paper has of its synthetic demonstration.

    Parameters
    ----------
    demonstration
        From `fedimmune.synthetic.demonstrate`.
    folder
        Where they go; it is made where there is none.
    only_sheet
        Leave the single pictures out.

    Returns
    -------
    list of Path
        ``synthetic.png``, all on one sheet; ``set.png``, ``pca.png``, ``weights.png`` and
        ``importance.png``.

    Raises
    ------
    InputError
        Matplotlib is missing, or nothing can be written there.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415

    place = folder_for_figures(folder)
    written = [save_figure(sheet_of(demonstration), place / "synthetic.png", "png", _DPI)]
    single: dict[str, tuple[Callable[[Axes, Demonstration], None], tuple[float, float]]] = {
        "set": (_set, (6.4, 3.2)),
        "pca": (_plane, (4.2, 3.8)),
        "weights": (_weights, (3.2, 3.2)),
        "importance": (_importance, (6.4, 1.3)),
    }
    for name, (draw, size) in () if only_sheet else single.items():
        figure = Figure(figsize=size, facecolor="white", layout="constrained")
        draw(figure.subplots(), demonstration)
        written.append(save_figure(figure, place / f"{name}.png", "png", _DPI))
    return written


def sheet_of(shown: Demonstration) -> Figure:
    """Put weights beside the samples that have them, and importance below the features."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(13, 5.2), facecolor="white")
    grid = figure.add_gridspec(
        *(2, 3),
        width_ratios=[2.2, 0.8, 1.45],
        height_ratios=[10, 1],
        wspace=0.2,
        hspace=0.62,
        left=0.072,
        right=0.985,
        top=0.72,
        bottom=0.1,
    )
    title = "Ten samples, three of them outliers. Noise hides them from PCA, not from attention."
    figure.text(0.012, 0.945, title, fontsize=17, weight="bold")
    under = (
        "The network has seen other sets and who the outliers were. It learned which features "
        "tell them: the first ten."
    )
    figure.text(0.012, 0.89, under, fontsize=11, color=_QUIET)
    above = figure.add_subplot(grid[0, 0])
    _set(above, shown)
    above.set(xticks=[], xlabel="")  # they are named below, at the importance
    _weights(figure.add_subplot(grid[0, 1]), shown)
    _plane(figure.add_subplot(grid[:, 2]), shown)
    _importance(figure.add_subplot(grid[1, 0]), shown)
    return figure


# -------------------------------------------------------------------- the four pictures


def _set(axes: Axes, shown: Demonstration) -> None:
    _entitle(axes, "The set", "values of 30 features; the last ten are noise")
    features = shown.sets.inputs["features"][shown.shown]
    axes.imshow(
        features.numpy(), cmap="PuOr_r", vmin=-3, vmax=3, aspect="auto", interpolation="nearest"
    )
    _part(axes)
    _name_features(axes)
    _name_samples(axes, shown)


def _plane(axes: Axes, shown: Demonstration) -> None:
    _entitle(axes, "What PCA shows", f"by distance: {_auroc(shown, 'plane_auroc')}")
    which = shown.shown
    points = principal_plane(shown.sets.inputs["features"][which : which + 1])[0].tolist()
    for number, ((x, y), bad) in enumerate(zip(points, _outliers(shown), strict=True)):
        axes.scatter(
            *(x, y),
            s=90,
            color=_BAD if bad else _GOOD,
            marker="^" if bad else "o",
            edgecolor="white",
            zorder=2 + bad,
        )
        # Outliers are named on the left, inliers on the right: two in one place can be read.
        axes.annotate(
            f"{number}",
            (x, y),
            xytext=(-7 if bad else 7, 0),
            textcoords="offset points",
            color=_BAD if bad else _GOOD,
            fontsize=9.5,
            weight="bold",
            ha="right" if bad else "left",
            va="center",
        )
    axes.margins(0.12)
    axes.locator_params(nbins=6, integer=True)
    axes.axhline(0, color="#dde2e6", linewidth=0.8, zorder=0)
    axes.axvline(0, color="#dde2e6", linewidth=0.8, zorder=0)
    axes.set_xlabel("first component", fontsize=9, color=_QUIET)
    axes.set_ylabel("second component", fontsize=9, color=_QUIET)
    _quieten(axes)


def _weights(axes: Axes, shown: Demonstration) -> None:
    _entitle(axes, "The weights", _auroc(shown, "auroc"))
    for number, (weight, bad) in enumerate(
        zip(shown.weights[shown.shown].tolist(), _outliers(shown), strict=True)
    ):
        axes.barh(number, weight, height=0.72, color=_BAD if bad else _GOOD)
        if weight == 0:
            axes.text(0.003, number, "0", color=_BAD if bad else _GOOD, fontsize=9, va="center")
    axes.set_ylim(SAMPLES - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="x", color="#dde2e6", linewidth=0.8)
    axes.set_axisbelow(True)
    _name_samples(axes, shown)


def _importance(axes: Axes, shown: Demonstration) -> None:
    first = f"{shown.figures['important']:.0f} of the ten most important are among the first ten"
    _entitle(axes, "The importance of each feature", f"the darker, the more; {first}")
    axes.imshow(
        shown.importance[None].numpy(), cmap="Blues", vmin=0, aspect="auto", interpolation="nearest"
    )
    _part(axes)
    axes.set_yticks([])
    _name_features(axes)


# -------------------------------------------------------------------- what they share


def _auroc(shown: Demonstration, name: str) -> str:
    return f"AUROC {shown.figures[name]:.3f} over {len(shown.sets)} sets"


def _outliers(shown: Demonstration) -> list[bool]:
    found: list[bool] = shown.sets.attackers[shown.shown].tolist()
    return found


def _entitle(axes: Axes, title: str, subtitle: str) -> None:
    for text, height, size, weight, colour in (
        (title, 22, 13, "bold", "black"),
        (subtitle, 7, 9.5, "normal", _QUIET),
    ):
        axes.annotate(
            text,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, height),
            textcoords="offset points",
            fontsize=size,
            weight=weight,
            color=colour,
        )


def _part(axes: Axes) -> None:
    for border in (THIRD, 2 * THIRD):
        axes.axvline(border - 0.5, color="white", linewidth=4)


def _name_samples(axes: Axes, shown: Demonstration) -> None:
    bad = _outliers(shown)
    names = [f"outlier {number}" if bad[number] else f"{number}" for number in range(SAMPLES)]
    axes.set_yticks(range(SAMPLES), names)
    _quieten(axes)
    for label, is_outlier in zip(axes.get_yticklabels(), bad, strict=True):
        label.set_color(_BAD if is_outlier else _QUIET)


def _name_features(axes: Axes) -> None:
    shown = [0, THIRD, 2 * THIRD, FEATURES - 1]
    axes.set_xticks(shown, [f"{number}" for number in shown])
    axes.set_xlabel("feature", fontsize=9, color=_QUIET)
    _quieten(axes)


def _quieten(axes: Axes) -> None:
    axes.tick_params(length=0, labelsize=9, labelcolor=_QUIET)
    axes.spines[:].set_visible(False)
