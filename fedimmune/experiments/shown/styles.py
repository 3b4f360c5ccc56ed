"""What a rule looks like: one colour and one marker each, the same in all pictures.

The colours are of Paul Tol's scheme *muted*, which the colour-blind can tell apart, and markers
differ too. The ablations have colours of baselines that never stand beside them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from fedimmune.experiments.shown.naming import Line, initials, remark

__all__ = ["CLASSES", "Style", "label_of", "printable", "style_of"]


@dataclass(frozen=True)
class Style:
    """A look.

    Parameters
    ----------
    colour, marker
        Of its points, bars and line.
    dash
        Of its line.
    width
        Of its line: ours is to be found at once.
    hatch
        Of its bars.
    """

    colour: str
    marker: str
    dash: Any = "-"
    width: float = 1.2
    hatch: str = ""


_DOTTED, _DASHED = (0, (1.5, 1.2)), (0, (5, 2))
_STYLES = {
    "mean": Style("#777777", "o"),
    "median": Style("#88ccee", "s"),
    "trimmed-mean": Style("#44aa99", "X"),
    "geometric-median": Style("#332288", "^"),
    "krum": Style("#ddcc77", "v"),
    "multi-krum": Style("#999933", "D"),
    "foolsgold": Style("#117733", "P"),
    "residual": Style("#882255", "h"),
    "mlp": Style("#332288", "<", _DOTTED),
    "without-c": Style("#ddcc77", ">", _DOTTED),
    "without-eps": Style("#44aa99", "d", _DOTTED),
    "adaptive-paper-literal": Style("#b98a6e", "8", _DOTTED),
    "adaptive-paper-clients": Style("#aa4499", "H", _DASHED, 1.6),
    "adaptive-paper": Style("#cc6677", "p", _DASHED, 1.6),
    "adaptive": Style("#d40055", "*", width=2.0),
    "oracle": Style("#000000", "", _DASHED, 1.0),
}
_OTHERS = ("#6e3b5e", "#5f6b73", "#0072b2", "#b97f00")
"""For rules of the user's own."""
_HATCHES = ("", "////", "xxxx", "....", "\\\\\\\\")

CLASSES = (
    *("#332288", "#88ccee", "#44aa99", "#117733", "#999933"),
    *("#ddcc77", "#cc6677", "#882255", "#aa4499", "#bbbbbb"),
)
"""For up to ten classes of samples."""


def style_of(line: Line, trainings: tuple[str, ...] = ()) -> Style:
    """Say what a line looks like.

    Parameters
    ----------
    line
        Whose.
    trainings
        All that lines of the picture were trained on: their bars differ by hatching.
    """
    number = zlib.crc32(line.rule.encode())  # the same in every process, unlike hash()
    style = _STYLES.get(line.rule) or Style(_OTHERS[number % len(_OTHERS)], "8", _DOTTED)
    if line.trained not in trainings:
        return style
    place = trainings.index(line.trained)
    dash = ("-", _DASHED, _DOTTED)[place % 3]
    hatch = _HATCHES[place % len(_HATCHES)]
    return Style(style.colour, style.marker, dash, style.width, hatch)


def label_of(line: Line) -> str:
    """Name a line in a legend."""
    said = remark(line.rule)
    label = printable(line.rule) + (f" ({said})" if said else "")
    return f"{label}, {printable(initials(line.trained))}" if line.trained else label


def printable(text: str) -> str:
    """Keep dollars from being taken for formulas, and leave out what no font has."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")
