"""Pages of the documentation, read for what is in them: blocks, links, headings.

What a page says to this reader stands in comments that nobody else sees, before a block::

    <!-- not run: why it cannot be -->      the block is shown, and not run
    <!-- printed -->                        the block is what the block before it prints
    <!-- printed, figures aside -->         the same, but numbers may differ

A block with ``title="NAME"`` is a file: it is written, not run. Blocks without a language are
pictures made of letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "ROOT", "Block", "blocks_of", "headings_of", "links_of", "pages", "slug"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_REMARK = re.compile(r"<!-- *((?:(?!-->).)*?) *-->\s*\Z", re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Parameters
    ----------
    page
        Where it is.
    line
        On which line it begins.
    language
        As it says after the fence; empty where it says nothing.
    body
        What is in it.
    title
        The file that it is, where it is one.
    remark
        The comment right before it, or nothing.
    """

    page: Path
    line: int
    language: str
    body: str
    title: str
    remark: str

    @property
    def why_not(self) -> str:
        """Why it is not run; empty where it is."""
        _, said, reason = self.remark.partition("not run: ")
        return " ".join(reason.split()) if said else ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """List all pages, the README first."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Read the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        before = text[: match.start()]
        remark = _REMARK.search(before)
        title = _TITLE.search(match["info"])
        found.append(
            Block(
                page=page,
                line=before.count("\n") + 1,
                language=match["language"],
                body=match["body"],
                title=title[1] if title else "",
                remark=remark[1] if remark else "",
            )
        )
    return found


def prose_of(page: Path) -> str:
    """Give a page without its blocks, comments and code."""
    text = _COMMENT.sub("", _BLOCK.sub("", page.read_text(encoding="utf-8")))
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", " ", code[0]), text)


def links_of(page: Path) -> Iterator[str]:
    """List where the links and pictures of a page lead."""
    yield from re.findall(r"\]\(\s*([^)\s]+)", prose_of(page))


def headings_of(page: Path) -> set[str]:
    """List the anchors of a page's headings."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)}


def slug(heading: str) -> str:
    """Make a heading's anchor, as the site does and as GitHub does where both agree."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    plain = re.sub(r"[^\w\s-]", "", plain).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)
