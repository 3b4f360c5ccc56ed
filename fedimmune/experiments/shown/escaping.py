"""Anybody's words, made safe for Markdown and LaTeX: rules and tasks may be the user's own."""

from __future__ import annotations

import re

__all__ = ["code_in_markdown", "latex", "markdown"]

_MARKS = re.compile(r"([\\`*_{}\[\]<>|#~&])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "−": "$-$",
    "ε": r"$\varepsilon$",
    "×": r"$\times$",
}


def markdown(text: str) -> str:
    """Write text so that Markdown shows it as it is."""
    return _MARKS.sub(r"\\\1", _one_line(text))


def code_in_markdown(text: str) -> str:
    """Write a name as code, also in a table."""
    return f"`{_one_line(text).replace('`', chr(39)).replace('|', '&#124;')}`"


def latex(text: str) -> str:
    """Write text so that LaTeX prints it as it is."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _one_line(text: str) -> str:
    """Leave out line ends, which end a row, and what no font has."""
    return "".join(c if c.isprintable() else "?" for c in text)
