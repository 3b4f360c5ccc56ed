"""How help looks: commands in groups, and closing texts that keep their lines.

Contexts and formatters have any type here: Click's up to Typer 0.25, later Typer's own.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["ENDING", "PANELS", "Command", "Group", "examples", "panel_of"]

PANELS = {
    "Start here": ("demo",),
    "Simulate and defend": ("simulate", "rehearse", "train", "patch", "aggregate"),
    "Look": ("report", "inspect"),
    "What there is": ("rules", "attacks", "tasks", "data"),
}
"""The groups of commands, in the order of the page."""

ENDING = """\
Examples:
  fedimmune demo
  fedimmune simulate --rule krum --attack backdoor --attackers 4
  fedimmune report runs -o report.html
  fedimmune COMMAND --help

Exit codes:
  0    done
  1    a problem with a file, the data or the disk: one line says which
  2    wrong usage: an unknown command, option or name, or a value out of range
  130  stopped by Ctrl-C: one line says what is kept and how to resume
  143  stopped by SIGTERM (129: by SIGHUP): likewise

Results go to standard output, progress and remarks to standard error.
NO_COLOR=1 turns colors off. FEDIMMUNE_DATA names the folder of data sets.
Documentation: README.md and docs/; the command line: docs/command-line.md
"""


def examples(*commands: str) -> str:
    """Put examples under a heading, one per line."""
    return "Examples:\n" + "".join(f"  {command}\n" for command in commands)


def panel_of(command: str) -> str:
    """Return the group that a command is shown in."""
    return next(panel for panel, names in PANELS.items() if command in names)


class _Ending:
    """Help that ends with its epilog as it stands."""

    def __init__(self, *arguments: Any, epilog: str | None = None, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.ending = epilog

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)  # type: ignore[misc]
        # Without panels Typer escapes brackets all the same, for a markup that nobody reads.
        formatter.buffer = [text.replace("\\[", "[") for text in formatter.buffer]
        # Typer would run the lines of an epilog into one paragraph. In panels or not, what is in
        # the formatter comes last.
        formatter.write(f"\n{self.ending}" if self.ending else "")


class Command(_Ending, TyperCommand):
    """A command of the program."""


class Group(_Ending, TyperGroup):
    """The program: commands in the order of `PANELS`, each with its whole first sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in PANELS.values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without panels; Typer's own list would cut sentences short."""
        for panel, names in PANELS.items():
            with formatter.section(panel):
                found = [(name, self.commands[name].help or "") for name in names]
                formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in found])
