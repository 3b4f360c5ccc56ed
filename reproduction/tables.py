"""Tables in Markdown and LaTeX, with the paper's figures next to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from reproduction.layout import Column, Layout, Line, Table, lay_out
from reproduction.methods import remark_of

__all__ = ["attack_name", "counted", "initials", "latex_of", "markdown_of", "markdown_table"]
__all__ += ["measure_name", "plain_latex", "plain_markdown", "task_name"]

_Place = tuple[str, Column, bool]
"""A measure, a column of it, and whether that has the paper's figures."""
_MISSING = "–"
_MOST_COLUMNS = 12
"""A Markdown table that would have more is split by measure: pages are not that wide."""
_WIDE = 8
"""With more columns than this, a table in LaTeX is shrunk to the page, as the paper's are."""
_TASKS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "imdb": "IMDb",
}
_ATTACKS = {
    "none": "no attack",
    "omniscient": "omniscient attack",
    "backdoor": "backdoor attack",
    "label-flip": "label flipping",
}
_MEASURES = {"accuracy": "ACC", "asr": "ASR"}
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


def task_name(task: str) -> str:
    """Return the paper's name of a task."""
    return _TASKS.get(task, task)


def attack_name(attack: str) -> str:
    """Return the paper's name of an attack."""
    return _ATTACKS.get(attack, attack)


def measure_name(measure: str) -> str:
    """Return the paper's name of a measure."""
    return _MEASURES.get(measure, measure)


def initials(trained: str) -> str:
    """Shorten what a method rehearsed as the paper does: B, O, B+O."""
    return "+".join(part[:1].upper() for part in trained.split("+"))


def counted(count: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# -------------------------------------------------------------------- any table


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]], align: str) -> str:
    """Write a table in Markdown, of cells in Markdown.

    `align` has a letter per column: ``l``, ``r``, or ``-`` for neither.
    """
    rules = [{"l": ":--", "r": "--:", "-": "---"}[letter] for letter in align]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rules, *lines))


def plain_markdown(frame: pd.DataFrame) -> str:
    """Write a frame in Markdown: floats with three digits, missing values as a dash."""
    lines = [[_markdown(_said(value)) for value in row] for row in _values(frame)]
    head = [_markdown(str(name)) for name in frame]
    return markdown_table(head, lines, "-" * len(head)) if head else ""


def plain_latex(frame: pd.DataFrame) -> str:
    """Write a frame in LaTeX; it needs the package booktabs."""
    lines = [[_latex(_said(value)) for value in row] for row in _values(frame)]
    shown = pd.DataFrame(lines, columns=[_latex(str(name)) for name in frame])
    return "% \\usepackage{booktabs}\n" + _as_latex(shown)


def _values(frame: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    return frame.astype(object).itertuples(index=False, name=None)


def _said(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return _MISSING
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _as_latex(frame: pd.DataFrame, **options: str) -> str:
    return str(frame.to_latex(index=False, escape=False, multicolumn_format="c", **options))  # type: ignore[call-overload]


def _markdown(text: str) -> str:
    """Write text so that Markdown shows it as it is."""
    return _MARKS.sub(r"\\\1", _one_line(text))


def _latex(text: str) -> str:
    """Write text so that LaTeX prints it as it is."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _one_line(text: str) -> str:
    """Replace line ends, which end a row, and what no font has."""
    return "".join(c if c.isprintable() else "?" for c in text)


# -------------------------------------------------------------------- tables of runs


def markdown_of(layout: Layout, rows: pd.DataFrame, paper: pd.DataFrame | None = None) -> str:
    """Write an experiment's tables in Markdown; the paper's figures follow ours, in italics."""
    parts = []
    for table in lay_out(layout, rows, paper):
        parts.append(f"## {_markdown(_heading(table))}")
        columns = _columns(table)
        if 1 + len(columns) <= _MOST_COLUMNS:
            split = [columns]
        else:
            split = [[c for c in columns if c[0] == measure] for measure in table.measures]
        parts += [_in_markdown(table, some).rstrip() for some in split]
        parts.append(_markdown(" ".join(_notes(table))))
    return "\n\n".join(parts) + "\n"


def _in_markdown(table: Table, columns: Sequence[_Place]) -> str:
    head = [_markdown(_column_name(table))]
    head += [
        "paper" if is_paper else f"{measure_name(measure)} %, {_named(column)}"
        for measure, column, is_paper in columns
    ]
    lines = [_cells(table, line, columns, _IN_MARKDOWN) for line in table.lines]
    return markdown_table(head, lines, "l" + "r" * len(columns))


def latex_of(
    layout: Layout, rows: pd.DataFrame, paper: pd.DataFrame | None, *, title: str, note: str = ""
) -> str:
    """Write an experiment's tables in LaTeX, which need booktabs, graphicx and xcolor.

    The paper's figures follow ours, in gray. Captions begin with `title` and end with `note`.
    """
    parts = ["% \\usepackage{booktabs,graphicx,xcolor}\n"]
    for table in lay_out(layout, rows, paper):
        columns = _columns(table)
        lines = [_cells(table, line, columns, _IN_LATEX) for line in table.lines]
        head = [("", _latex(_column_name(table)))]
        head += [
            (_latex(f"{measure_name(m)} (%)"), f"paper, {_named(c)}" if is_paper else _named(c))
            for m, c, is_paper in columns
        ]
        frame = pd.DataFrame(lines, columns=pd.MultiIndex.from_tuples(head))
        caption = " ".join([f"{title}: {_heading(table)}.", *_notes(table), note]).strip()
        text = _as_latex(
            frame,
            caption=_latex(caption),
            position="tp",
            column_format="l" + "r" * len(columns),
        ).replace("{table}", "{table*}")
        if len(columns) > _WIDE:
            text = text.replace(r"\begin{tabular}", r"\resizebox{\textwidth}{!}{\begin{tabular}")
            text = text.replace(r"\end{tabular}", r"\end{tabular}}")
        parts.append(text)
    return "\n".join(parts)


@dataclass(frozen=True)
class _Style:
    """How text and figures are written in Markdown or LaTeX."""

    escape: Callable[[str], str]
    code: Callable[[str], str]
    bold: str
    paper: str
    spread: str
    missing: str


# A name in Markdown's code cannot be escaped, except for what would end it or the cell.
_IN_MARKDOWN = _Style(
    escape=_markdown,
    code=lambda name: "`" + _one_line(name).replace("`", "'").replace("|", "&#124;") + "`",
    bold="**{}**",
    paper="*{:.2f}*",
    spread=" ± {:.2f}",
    missing=_MISSING,
)
_IN_LATEX = _Style(
    escape=_latex,
    code=lambda name: rf"\texttt{{{_latex(name)}}}",
    bold=r"\textbf{{{}}}",
    paper=r"\textcolor{{gray}}{{{:.2f}}}",
    spread=r" $\pm$ {:.2f}",
    missing="--",
)


def _cells(table: Table, line: Line, columns: Sequence[_Place], style: _Style) -> list[str]:
    """Write a line: its label, and the figure of each column."""
    remark = remark_of(line.rule)
    label = style.code(line.rule) + (f" ({style.escape(remark)})" if remark else "")
    if line.trained:
        label += f", trained on {style.escape(initials(line.trained))}"
    cells = [label]
    for measure, column, is_paper in columns:
        if is_paper:
            figure = table.paper.get((line, measure, column))
            cells.append("" if figure is None else style.paper.format(figure))
            continue
        cell = table.cell(line, measure, column)
        shown = style.missing if cell.mean is None else f"{cell.mean:.2f}"
        if cell.spread is not None:
            shown += style.spread.format(cell.spread)
        cells.append(style.bold.format(shown) if (line, column) in table.best else shown)
    return cells


def _columns(table: Table) -> list[_Place]:
    """List the columns of a table as it is written."""
    return [
        (measure, column, is_paper)
        for measure in table.measures
        for column in table.columns
        for is_paper in ((False, True) if table.has_paper(measure, column) else (False,))
    ]


def _named(column: Column) -> str:
    return "average" if column is None else str(column)


# -------------------------------------------------------------------- what is said about them


def _heading(table: Table) -> str:
    said = [task_name(table.task)] if table.task else []
    said.append(attack_name(table.attack))
    if table.clients != 10:
        said.append(f"{table.clients} clients")
    if table.varied and table.attackers is None:
        over = f"average over {_listed(table.values) or 'its values'}"
        said.append(f"{table.varied} varied, {over}")
    elif table.varied:
        said.append(f"{table.varied} varied, {counted(table.attackers or 0, 'attacker')}")
    text = ", ".join(said)
    return text[:1].upper() + text[1:]


def _column_name(table: Table) -> str:
    return "attackers" if table.attackers is None else table.varied


def _notes(table: Table) -> list[str]:
    """Describe how to read a table, one sentence per string."""
    said = [_about_seeds(table)]
    if len(table.rounds) == 1:
        said.append(f"After {counted(table.rounds[0], 'round')}.")
    elif table.rounds:
        said.append(f"After {table.rounds[0]} to {table.rounds[-1]} rounds.")
    by_training: dict[str, list[str]] = {}
    for rule, trained in table.rehearsed.items():
        by_training.setdefault(trained, []).append(rule)
    for trained, rules in by_training.items():
        who = "learned rules" if len(by_training) == 1 else _listed(rules)
        said.append(f"Rehearsed by {who}: {_listed(trained.split('+'))}.")
    shown = {part for line in table.lines if line.trained for part in line.trained.split("+")}
    if shown:
        letters = [f"{initials(name)} is {name}" for name in sorted(shown)]
        said.append(f"Of what a rule was trained on, {_listed(letters)}.")
    if table.paper:
        where = ""
        if table.task and table.task != table.paper_task:
            where = f", on {task_name(table.paper_task)} and not on {task_name(table.task)}"
        said.append(f"Paper: as printed by Wan and Chen (2021){where}.")
    if any(cell.mean is None for cell in table.cells.values()):
        said.append("–: not run.")
    if table.best:
        by = "ACC · (1 − ASR)" if "asr" in table.measures else "ACC"
        said.append(
            f"Bold: the highest {by} of a column, the oracle aside, where it leads by more than a "
            "standard deviation."
        )
    return said


def _listed(things: Sequence[object]) -> str:
    words = [str(thing) for thing in things]
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def _about_seeds(table: Table) -> str:
    by_column: dict[Column, set[int]] = {c: set() for c in table.columns if c is not None}
    for (_, _, column), cell in table.cells.items():
        if column is not None and cell.seeds:
            by_column[column].add(cell.seeds)
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
            by_count.append(f"{counted(count, 'seed')} ({_column_name(table)}: {where})")
        return f"{start} {_listed(by_count)}."
    return f"{start} {counts[0]} to {counts[-1]} seeds."
