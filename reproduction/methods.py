"""The methods that experiments compare: rules, the learned rule in both forms, its ablations."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedimmune.errors import ParameterError

__all__ = [
    "ABLATIONS",
    "LEARNED",
    "METHODS",
    "ORACLE",
    "OURS",
    "PAPER_FORMS",
    "RULES",
    "UNIVERSAL",
    "Method",
    "Training",
]
__all__ += ["color_of", "defense_of", "find_method", "method_of", "place_of", "remark_of"]

ORACLE = "oracle"
"""The rule that is told who attacks: an upper limit, not a competitor."""
UNIVERSAL = "universal"
"""What published rows call the defense that ships with the package."""


@dataclass(frozen=True)
class Training:
    """How a method's defense is trained.

    Parameters
    ----------
    form, settings
        The model, ``relational`` or ``paper``, and its settings.
    as_in_paper
        Whether it rehearses as in the paper, or as the shipped rule does.
    data
        Whose data it rehearses with.
    kinds
        Whether it learns to tell kinds of attack apart.
    """

    form: str
    as_in_paper: bool
    data: Literal["server", "clients"] = "server"
    settings: Mapping[str, Any] = field(default_factory=dict)
    kinds: bool = False


@dataclass(frozen=True)
class Method:
    """A line of a table.

    Parameters
    ----------
    key
        As commands and tables name it.
    rule
        In the registry.
    defense
        What published rows call its defense, next to the rule; empty if the rule takes none.
    remark
        The paper's name of it, or what tells it from others; may be empty.
    color
        In figures; of Paul Tol's schemes *muted* and *vibrant*, which the color-blind can tell
        apart. Ablations share colors with baselines that never appear with them.
    training
        How its defense is trained, if that has to be done first.
    """

    key: str
    rule: str
    remark: str = ""
    color: str = ""
    training: Training | None = None
    defense: str = ""


def _paper(
    key: str,
    remark: str,
    color: str,
    data: Literal["server", "clients"] = "server",
    **settings: Any,
) -> Method:
    # `orient` is spelled out so that a job's key tells the literal form from the usual one.
    chosen = {"orient": True, **settings}
    training = Training("paper", as_in_paper=True, data=data, settings=chosen)
    defense = key.removeprefix("adaptive-") if key.startswith("adaptive-") else f"paper-{key}"
    return Method(key, "adaptive", remark, color, training, defense)


_BASELINES = (
    Method("mean", "mean", "FedAvg", "#777777"),
    Method("median", "median", "", "#88ccee"),
    Method("trimmed-mean", "trimmed-mean", "", "#44aa99"),
    Method("geometric-median", "geometric-median", "RFA", "#332288"),
    Method("krum", "krum", "", "#ddcc77"),
    Method("multi-krum", "multi-krum", "Krum in the paper", "#999933"),
    Method("foolsgold", "foolsgold", "", "#117733"),
    Method("residual", "residual", "residual-based", "#882255"),
)
_LEARNED = (
    # Parts are taken out of the form that holds, which has rehearsed on the clients' data.
    _paper("mlp", "no attention", "#332288", data="clients", attention=False),
    _paper("without-c", "w/o c", "#ddcc77", data="clients", c=1.0),
    _paper("without-eps", "w/o ε", "#44aa99", data="clients", eps=0.0),
    _paper(
        "adaptive-paper-literal", "the paper's form, axes as they come", "#b98a6e", orient=False
    ),
    _paper("adaptive-paper", "the paper's form", "#cc6677"),
    _paper(
        "adaptive-paper-clients",
        "the paper's form, rehearsed on clients' data",
        "#aa4499",
        data="clients",
    ),
    Method(
        "adaptive",
        "adaptive",
        "its own defense",
        "#d40055",
        Training("relational", as_in_paper=False, kinds=True),
        "own",
    ),
    Method(
        "adaptive-universal", "adaptive", "the defense that ships", "#ee7733", defense=UNIVERSAL
    ),
)
METHODS = {
    each.key: each
    for each in (*_BASELINES, *_LEARNED, Method(ORACLE, ORACLE, "told who attacks", "#000000"))
}
"""By key, in the order of tables."""

PAPER_FORMS = ("adaptive-paper-literal", "adaptive-paper", "adaptive-paper-clients")
OURS = ("adaptive", "adaptive-universal")
"""The learned rule with a defense of the task's own, and with the one that ships."""
RULES = (*(each.key for each in _BASELINES), *PAPER_FORMS, *OURS, ORACLE)
"""What the paper compares, plain Krum and the trimmed mean, the learned rule in the paper's form
(axes as they come; signs settled; rehearsed on the clients' data) and in ours, and the limit."""
LEARNED = ("mean", "adaptive-paper", *OURS, ORACLE)
"""Those that show what a defense transfers to."""
ABLATIONS = (
    *("mean", "mlp", "without-c", "without-eps"),
    *(*PAPER_FORMS, *OURS, ORACLE),
)
_BY_DEFENSE = {(each.rule, each.defense): each.key for each in METHODS.values()}
_OTHER_COLORS = ("#6e3b5e", "#5f6b73", "#0072b2", "#b97f00")
"""For rules of the user's own."""


def find_method(key: str) -> Method:
    """Return a method.

    Raises
    ------
    ParameterError
        There is none of that name.
    """
    try:
        return METHODS[key]
    except KeyError:
        known = ", ".join(METHODS)
        raise ParameterError(f"no method is called {key!r}; there are {known}") from None


def defense_of(key: str) -> tuple[str, str]:
    """Return a method's rule and defense, as published rows have them; others are rules."""
    return (METHODS[key].rule, METHODS[key].defense) if key in METHODS else (key, "")


def method_of(rule: str, defense: str) -> str:
    """Return the key of the method that published rows call so.

    Raises
    ------
    ParameterError
        No method has such a defense.
    """
    if (rule, defense) in _BY_DEFENSE:
        return _BY_DEFENSE[rule, defense]
    known = [each for name, each in _BY_DEFENSE if name == rule and each]
    if defense or known:
        there = f"there are {', '.join(known)}" if known else "it takes none"
        raise ParameterError(f"rule {rule!r} with defense {defense!r}: {there}")
    return rule


def remark_of(key: str) -> str:
    """Return what the paper calls a method, or what tells it from others; may be empty."""
    return METHODS[key].remark if key in METHODS else ""


def color_of(key: str) -> str:
    """Return a method's color, the same in all figures."""
    if key in METHODS:
        return METHODS[key].color
    return _OTHER_COLORS[zlib.crc32(key.encode()) % len(_OTHER_COLORS)]


def place_of(key: str) -> int:
    """Return a method's place: baselines first, then unknown ones, learned ones, the oracle."""
    if key not in METHODS:
        return len(_BASELINES)
    place = list(METHODS).index(key)
    return place + (place >= len(_BASELINES))
