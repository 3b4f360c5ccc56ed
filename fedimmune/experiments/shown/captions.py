"""What is said above and below a table, in plain text; who writes it down escapes it."""

from __future__ import annotations

from collections.abc import Sequence

from fedimmune.experiments.shown.laid_out import Table
from fedimmune.experiments.shown.naming import attack_name, initials, task_name

__all__ = ["column_name", "heading", "notes"]


def heading(table: Table) -> str:
    """Say what a table is about."""
    said = [task_name(table.task)] if table.task else []
    said.append(attack_name(table.attack))
    if table.clients != 10:
        said.append(f"{table.clients} clients")
    if table.varied and table.attackers is None:
        over = f"average over {listed(table.values)}" if table.values else "average over its values"
        said.append(f"{table.varied} varied, {over}")
    elif table.varied:
        said.append(f"{table.varied} varied, {counted(table.attackers or 0, 'attacker')}")
    text = ", ".join(said)
    return text[:1].upper() + text[1:]


def column_name(table: Table) -> str:
    """Say what the columns are."""
    if table.attackers is not None:
        return table.varied
    return "attackers"


def notes(table: Table) -> list[str]:
    """Say how a table is to be read, a sentence a string."""
    said = [_about_seeds(table)]
    if len(table.rounds) == 1:
        said.append(f"After {counted(table.rounds[0], 'round')}.")
    elif table.rounds:
        said.append(f"After {table.rounds[0]} to {table.rounds[-1]} rounds.")
    by_training: dict[str, list[str]] = {}
    for rule, trained in table.rehearsed.items():
        by_training.setdefault(trained, []).append(rule)
    for trained, rules in by_training.items():
        who = "learned rules" if len(by_training) == 1 else listed(rules)
        said.append(f"Rehearsed by {who}: {listed(trained.split('+'))}.")
    shown = {part for line in table.lines if line.trained for part in line.trained.split("+")}
    if shown:
        letters = [f"{initials(name)} is {name}" for name in sorted(shown)]
        said.append(f"Of what a rule was trained on, {listed(letters)}.")
    if table.paper:
        where = ""
        if table.task and table.task != table.paper_task:
            where = f", on {task_name(table.paper_task)} and not on {task_name(table.task)}"
        said.append(f"Paper: as printed by Wan and Chen (2021){where}.")
    if any(
        table.cell(line, measure, column).mean is None
        for line in table.lines
        for measure in table.measures
        for column in table.columns
    ):
        said.append("–: not run.")
    if table.best:
        by = "ACC · (1 − ASR)" if "asr" in table.measures else "ACC"
        said.append(
            f"Bold: the highest {by} of a column, the oracle aside, where it leads by more than a "
            "standard deviation."
        )
    return [sentence for sentence in said if sentence]


def listed(things: Sequence[object], last: str = "and") -> str:
    """Write things with commas and an *and*."""
    words = [str(thing) for thing in things]
    return f" {last} ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def counted(count: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _about_seeds(table: Table) -> str:
    by_column = {
        column: {
            table.cell(line, measure, column).seeds
            for line in table.lines
            for measure in table.measures
        }
        - {0}
        for column in table.columns
        if column is not None
    }
    counts = sorted(set().union(*by_column.values()))
    if not counts:
        return "Nothing is run yet."
    if counts == [1]:
        return "One seed."
    start = "Mean ± standard deviation over"
    if len(counts) == 1:
        return f"{start} {counts[0]} seeds."
    if all(len(own) <= 1 for own in by_column.values()):
        by_count = []
        for count in reversed(counts):
            where = ", ".join(str(column) for column, own in by_column.items() if count in own)
            by_count.append(f"{counted(count, 'seed')} ({column_name(table)}: {where})")
        return f"{start} {listed(by_count)}."
    return f"{start} {counts[0]} to {counts[-1]} seeds."
