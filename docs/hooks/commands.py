"""Put every command of the program, with its options and examples, into the command-line page.

They are read from the program itself whenever the site is built, so that they cannot go stale.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from fedimmune.cli import app
from fedimmune.cli.help import PANELS

__all__ = ["MARK", "describe", "on_page_markdown", "reference"]

MARK = "<!-- generated: every command -->"
"""What the page has in the place of the reference."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the reference where a page asks for it; MkDocs calls this for every page."""
    return markdown.replace(MARK, reference()) if MARK in markdown else markdown


def reference() -> str:
    """Describe all commands, in the order of the program's own help."""
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    return "\n".join(
        describe(program.commands[name], name) for names in PANELS.values() for name in names
    )


def describe(command: Any, name: str) -> str:
    """Describe one command in Markdown: what it does, its usage, its options, its examples."""
    context = command.make_context(f"fedimmune {name}", [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    text = (command.help or "").replace("\f", "").strip()
    lines = [f"### `{name}` {{ #{name} }}", "", text, "", "```text", " ".join(usage.split()), "```"]
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [(_plain(names), _plain(meaning)) for names, meaning in filter(None, records)]
    if rows:
        lines += ["", "| option | meaning |", "|---|---|"]
        lines += [f"| `{names}` | {_cell(meaning)} |" for names, meaning in rows]
    if command.ending:
        shown = "\n".join(line.removeprefix("  ") for line in command.ending.splitlines()[1:])
        lines += ["", "```sh", shown, "```"]
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Undo the escapes that Typer puts before brackets, and the line breaks."""
    return " ".join(text.replace("\\[", "[").split())


def _cell(text: str) -> str:
    """Keep Markdown from taking signs for more than they are; what is between backticks is safe."""
    parts = text.replace("|", "\\|").split("`")
    for place in range(0, len(parts), 2):
        for sign in "<*[":
            parts[place] = parts[place].replace(sign, f"&#{ord(sign)};")
    return "`".join(parts)
