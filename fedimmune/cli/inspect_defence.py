"""What there is to see of a defence: where it is from, how good it is, what it looks at."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from fedimmune.adaptive.defence import Defence
from fedimmune.adaptive.importance import importance_of
from fedimmune.cli.defence_tables import bars, promises_table, validation_table
from fedimmune.cli.shown import Shown
from fedimmune.cli.sweep import searched_table

__all__ = ["look"]


def look(file: Path) -> Shown:
    """Look at a defence's file."""
    defence = Defence.load(file)
    importance = importance_of(defence)
    size, numbers = file.stat().st_size, sum(p.numel() for p in defence.form.parameters())
    facts = [
        ("file", f"{file} ({size / 1e3:.0f} kB, {numbers:,} numbers)"),
        ("digest", defence.digest),
        *defence.describe(),
    ]
    parts = [_facts(facts)]
    if defence.about.searched.keys() >= {"grid", "points", "best"}:
        parts.append(searched_table(defence.about.searched))
    if defence.about.validation:
        parts.append(validation_table(defence.about.validation))
        parts.append(promises_table(defence.about.validation))
    parts += [
        bars("Which layers it looks at", "layer", importance.by_layer),
        bars("What it looks at there", "feature", importance.by_kind),
    ]
    return Shown(
        facts={
            "file": str(file),
            "digest": defence.digest,
            "bytes": size,
            "parameters": numbers,
            "about": defence.about.model_dump(mode="json"),
            "importance": {
                "by_layer": dict(importance.by_layer),
                "by_kind": dict(importance.by_kind),
            },
        },
        parts=parts,
    )


def _facts(facts: list[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value))
    return table
