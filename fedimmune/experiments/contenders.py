"""Who defends in an experiment: rules, the learned rule in both forms, and its ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedimmune.errors import ParameterError

__all__ = ["ABLATIONS", "LEARNED", "RULES", "Contender", "Learned", "contender"]


@dataclass(frozen=True)
class Learned:
    """How a defence is trained; see `fedimmune.adaptive.making.train`.

    Parameters
    ----------
    form
        ``relational`` or ``paper``.
    to_the_letter
        Whether it rehearses as the paper does, or as we do.
    on
        Whose data it rehearses with.
    settings
        Of the form.
    kinds
        Whether it learns to tell kinds of attack apart.
    """

    form: str
    to_the_letter: bool
    on: Literal["server", "clients"] = "server"
    settings: Mapping[str, Any] = field(default_factory=dict)
    kinds: bool = False


@dataclass(frozen=True)
class Contender:
    """A line of a table.

    Parameters
    ----------
    key
        As rows name it.
    rule
        In the registry.
    learned
        How its defence is trained, where it needs one.
    """

    key: str
    rule: str
    learned: Learned | None = None


def _by_rule(*names: str) -> list[Contender]:
    return [Contender(name, name) for name in names]


def _in_the_papers_form(
    key: str, *, on: Literal["server", "clients"] = "server", **settings: Any
) -> Contender:
    # Said in so many words, so that a part's key tells the literal form from the usual one.
    chosen = {"orient": True, **settings}
    return Contender(key, "adaptive", Learned("paper", to_the_letter=True, on=on, settings=chosen))


_SHIPPED = Contender("adaptive", "adaptive", Learned("relational", to_the_letter=False, kinds=True))
_PAPERS = _in_the_papers_form("adaptive-paper")
_NAMES = (
    "mean",
    "median",
    "trimmed-mean",
    "geometric-median",
    "krum",
    "multi-krum",
    "foolsgold",
    "residual",
)
_CONTENDERS = {
    each.key: each
    for each in (
        *_by_rule(*_NAMES),
        _PAPERS,
        _in_the_papers_form("adaptive-paper-literal", orient=False),
        _in_the_papers_form("adaptive-paper-clients", on="clients"),
        _SHIPPED,
        *_by_rule("oracle"),
        _in_the_papers_form("mlp", attention=False),
        _in_the_papers_form("without-c", c=1.0),
        _in_the_papers_form("without-eps", eps=0.0),
    )
}

_IN_THE_PAPERS_FORM = ("adaptive-paper-literal", "adaptive-paper", "adaptive-paper-clients")
RULES = (*_NAMES, *_IN_THE_PAPERS_FORM, "adaptive", "oracle")
"""Everyone, in the order of tables: what the paper compares, plain Krum and the trimmed mean, the
learned rule in the paper's form (with axes as they come, with signs settled, and rehearsed with the
clients' data) and as shipped, and the limit."""
LEARNED = ("mean", "adaptive-paper", "adaptive", "oracle")
"""Those that show what a defence carries over to."""
ABLATIONS = (
    *("mean", "mlp", "without-c", "without-eps", "adaptive-paper-literal", "adaptive-paper"),
    *("adaptive", "oracle"),
)


def contender(key: str) -> Contender:
    """Give a contender.

    Raises
    ------
    ParameterError
        There is none of that name.
    """
    try:
        return _CONTENDERS[key]
    except KeyError:
        known = ", ".join(_CONTENDERS)
        raise ParameterError(
            f"no rule is called {key!r} in experiments; there are {known}"
        ) from None
