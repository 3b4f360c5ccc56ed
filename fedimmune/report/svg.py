"""Elements of a page, made so that nothing in them can be taken for markup."""

from __future__ import annotations

import json
import math
from typing import Any

from markupsafe import Markup, escape

__all__ = ["element", "joined", "number", "packed", "picture", "rounded"]


def element(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """Make an element; text and attributes are escaped, elements are taken as they are.

    An attribute's underscores stand for hyphens, one at its end for nothing; None leaves it out.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), value)
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, joined(*children))


def picture(title: str, reading: str, *parts: str | Markup, **attributes: object) -> Markup:
    """Make a picture that says in words what is to be seen."""
    return element("svg", *parts, **attributes, role="img", aria_label=f"{title}. {reading}")


def joined(*parts: str | Markup) -> Markup:
    """Put parts behind each other."""
    return Markup("").join(escape(part) for part in parts)


def number(value: float) -> str:
    """Write a coordinate."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rounded(value: float | None) -> float | None:
    """Keep four digits of what hovering shows; None where there is no finite number."""
    found = math.nan if value is None else float(f"{value:.4g}")
    return found if math.isfinite(found) else None


def packed(value: Any) -> str:
    """Write what the page's script reads, to be put into an attribute."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
