"""Turn formulas into MathML when the site is built: browsers draw it without any script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["as_mathml", "on_page_content"]

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
_PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<m([io])>(&#x02032;|′)</m\2></msup>")
"""A prime as a superscript: the sign is raised already, and would be twice."""
_REPLACED = {
    "\\ln ": "\\,\\ln\\, ",
    "\\tanh ": "\\,\\tanh\\, ",
    "\\Bigl\\lVert": "\\left\\lVert",
    "\\Bigr\\rVert": "\\right\\rVert",
}
"""What the converter does not know, or sets too closely."""


def on_page_content(content: str, **_: Any) -> str:
    """Replace what the Markdown extension marked as formulas; MkDocs calls this for every page."""
    content = _INLINE.sub(lambda found: as_mathml(found[1], "inline"), content)
    return _BLOCK.sub(lambda found: as_mathml(found[1], "block"), content)


def as_mathml(escaped: str, display: str) -> str:
    """Convert one formula, as it stands in HTML."""
    source = html.unescape(escaped).strip()
    for known, better in _REPLACED.items():
        source = source.replace(known, better)
    converted: str = convert(source, display=display)
    left = re.search(r"\\[A-Za-z]+", converted)
    if left is not None:
        raise ValueError(f"{left[0]} was not understood in the formula {source}")
    return _PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">\3</mo></mrow>', converted)
