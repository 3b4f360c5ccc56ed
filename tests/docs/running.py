"""A page's blocks, run in order in a folder of their own."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from fedimmune.cli import app
from tests.docs.pages import ROOT, Block

__all__ = ["Reader", "commands_in", "figures_aside"]

_FIGURE = re.compile(r"[-+−]?\d+(\.\d+)?(e[-+]?\d+)?")


class Reader:
    """Somebody who follows a page: types what it shows, and compares what comes out.

    Parameters
    ----------
    folder
        Where they are; the current directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.why_not or not block.language:
            return
        if block.title:
            (self.folder / block.title).write_text(block.body, encoding="utf-8")
        elif block.remark.startswith("printed"):
            self._compare(block)
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "sh":
            self.printed = "".join(self._run(words, block) for words in commands_in(block.body))
        else:
            raise AssertionError(f"{block}: what is to be done with {block.language!r}?")

    def _compare(self, block: Block) -> None:
        shown, printed = block.body, self.printed
        if "figures aside" in block.remark:
            shown, printed = figures_aside(shown), figures_aside(printed)
        assert _lines(shown) == _lines(printed), f"{block} shows something else than is printed"

    def _run_python(self, block: Block) -> None:
        name = f"<{block}>"
        # For whoever asks where a class was written, and for tracebacks.
        linecache.cache[name] = (len(block.body), None, block.body.splitlines(True), name)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block.body, name, "exec"), self.names)
        self.printed = output.getvalue()

    def _run(self, words: list[str], block: Block) -> str:
        if words[0] == "fedimmune":
            result = CliRunner().invoke(app, list(_expanded(words[1:], self.folder)))
            assert result.exit_code == 0, (str(block), words, result.output, result.exception)
            return result.stdout
        done = subprocess.run(
            ["bash", "-c", shlex.join(words)],
            cwd=self.folder,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (str(block), words, done.stdout, done.stderr)
        return done.stdout


def commands_in(text: str) -> Iterator[list[str]]:
    """Give the words of every command of a block, with continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def figures_aside(text: str) -> str:
    """Put a sign in the place of every number, and one blank for many, as columns may shift."""
    return "\n".join(" ".join(_FIGURE.sub("#", line).split()) for line in text.splitlines())


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _expanded(words: list[str], folder: Path) -> Iterator[str]:
    for word in words:
        found = folder.glob(word) if "*" in word else ()
        yield from sorted(str(file.relative_to(folder)) for file in found) or [word]


def link_repository(folder: Path) -> None:
    """Let commands that name files of the repository find them."""
    for name in ("examples", "reproduction"):
        (folder / name).symlink_to(ROOT / name)
