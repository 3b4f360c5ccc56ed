"""Rows as CSV, and tables in Markdown and LaTeX with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedimmune.experiments.rows import Row
from fedimmune.experiments.shown.captions import column_name, heading, notes
from fedimmune.experiments.shown.cells import Cell
from fedimmune.experiments.shown.escaping import code_in_markdown, latex, markdown
from fedimmune.experiments.shown.laid_out import Column, Layout, Table
from fedimmune.experiments.shown.laying_out import lay_out
from fedimmune.experiments.shown.naming import ORACLE, Line, initials, measure_name, remark
from fedimmune.experiments.shown.published import Published
from fedimmune.experiments.shown.row_files import csv_of, rows_of_csv

__all__ = ["Layout", "csv_of", "latex_of", "markdown_of", "rows_of_csv"]

_MISSING = "–"
_MOST_COLUMNS = 12
"""A table in Markdown that would have more is parted by measure: pages are not that wide."""
_WIDE = 8
"""With more columns than this, a table in LaTeX is shrunk to the page, as the paper's are."""


# -------------------------------------------------------------------- Markdown


def markdown_of(
    layout: Layout,
    rows: Sequence[Row],
    published: Sequence[Published] = (),
    *,
    note: str = "",
    level: int = 2,
) -> str:
    """Write an artefact's tables in Markdown.

    Parameters
    ----------
    layout
        What they look like.
    rows
        What is finished.
    published
        The paper's figures: each in italics, in the column after ours.
    note
        A sentence to be said of all of them, such as what was reduced.
    level
        Of the headings, one a table.
    """
    parts = [markdown(note)] if note else []
    for table in lay_out(layout, rows, published):
        parts.append(f"{'#' * level} {markdown(heading(table))}")
        parts += ["\n".join(lines) for lines in _in_markdown(table)]
        parts.append(markdown(" ".join(notes(table))))
    return "\n\n".join(parts) + "\n"


def _in_markdown(table: Table) -> Iterator[list[str]]:
    columns = _columns(table)
    if 1 + len(columns) <= _MOST_COLUMNS:
        yield _markdown_lines(table, columns)
        return
    for measure in table.measures:
        yield _markdown_lines(table, [column for column in columns if column[0] == measure])


def _markdown_lines(table: Table, columns: Sequence[tuple[str, Column, bool]]) -> list[str]:
    head = [markdown(column_name(table))]
    head += [
        "paper" if is_paper else f"{measure_name(measure)} %, {_named(column)}"
        for measure, column, is_paper in columns
    ]
    lines = [_row(head), _row([":--", *("--:" for _ in columns)])]
    for line in table.lines:
        cells = [_label_in_markdown(line)]
        for measure, column, is_paper in columns:
            if is_paper:
                figure = table.paper.get((line, measure, column))
                cells.append("" if figure is None else f"*{figure:.2f}*")
            else:
                shown = _figures(table.cell(line, measure, column), " ± {:.2f}")
                cells.append(f"**{shown}**" if (line, column) in table.best else shown)
        lines.append(_row(cells))
    return lines


def _label_in_markdown(line: Line) -> str:
    said = markdown(remark(line.rule))
    label = code_in_markdown(line.rule) + (f" ({said})" if said else "")
    return f"{label}, trained on {markdown(initials(line.trained))}" if line.trained else label


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# -------------------------------------------------------------------- LaTeX


def latex_of(
    layout: Layout,
    rows: Sequence[Row],
    published: Sequence[Published] = (),
    *,
    note: str = "",
) -> str:
    """Write an artefact's tables in LaTeX; they need the packages booktabs, graphicx and xcolor.

    Parameters
    ----------
    layout
        What they look like.
    rows
        What is finished.
    published
        The paper's figures: each in grey, in the column after ours.
    note
        A sentence to be said in each caption, such as what was reduced.
    """
    parts = [r"% \usepackage{booktabs,graphicx,xcolor}"]
    for number, table in enumerate(lay_out(layout, rows, published), start=1):
        said = [f"{layout.title}: {heading(table)}.", *notes(table), *([note] if note else [])]
        label = f"tab:{layout.name}" + (f"-{number}" if number > 1 else "")
        columns = _columns(table)
        shrunk = len(columns) > _WIDE
        parts += [
            "",
            r"\begin{table*}[tp]",
            r"\centering",
            rf"\caption{{{latex(' '.join(said))}}}",
            rf"\label{{{latex(label)}}}",
            *([r"\resizebox{\textwidth}{!}{%"] if shrunk else []),
            *_latex_lines(table, columns),
            *(["}"] if shrunk else []),
            r"\end{table*}",
        ]
    return "\n".join(parts) + "\n"


def _latex_lines(table: Table, columns: Sequence[tuple[str, Column, bool]]) -> list[str]:
    groups, rules, first = [""], [], 2
    for measure in table.measures:
        count = sum(column[0] == measure for column in columns)
        groups.append(rf"\multicolumn{{{count}}}{{c}}{{{latex(measure_name(measure))} (\%)}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    head = [latex(column_name(table))]
    head += [_grey("paper") if is_paper else _named(c) for _, c, is_paper in columns]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        _latex_row(groups),
        " ".join(rules),
        _latex_row(head),
        r"\midrule",
    ]
    kind = _kind(table.lines[0]) if table.lines else 0
    for line in table.lines:
        if _kind(line) != kind:
            kind = _kind(line)
            lines.append(r"\midrule")
        lines.append(_latex_row(_latex_cells(table, line, columns)))
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_cells(
    table: Table, line: Line, columns: Sequence[tuple[str, Column, bool]]
) -> Iterator[str]:
    said = latex(remark(line.rule))
    trained = f", trained on {latex(initials(line.trained))}" if line.trained else ""
    yield rf"\texttt{{{latex(line.rule)}}}" + (f" ({said})" if said else "") + trained
    for measure, column, is_paper in columns:
        if is_paper:
            figure = table.paper.get((line, measure, column))
            yield "" if figure is None else _grey(f"{figure:.2f}")
        else:
            cell = table.cell(line, measure, column)
            shown = _figures(cell, r"\,{{\scriptsize$\pm${:.2f}}}").replace(_MISSING, "--")
            yield rf"\textbf{{{shown}}}" if (line, column) in table.best else shown


def _grey(text: str) -> str:
    return rf"\textcolor{{gray}}{{\small {text}}}"


def _latex_row(cells: Sequence[str] | Iterator[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _kind(line: Line) -> int:
    """Part baselines, the learned rule and the oracle by lines, as the paper does."""
    return 2 if line.rule == ORACLE else int(line.rule.startswith("adaptive"))


# -------------------------------------------------------------------- what both share


def _columns(table: Table) -> list[tuple[str, Column, bool]]:
    """List measure and column, and whether it is the paper's."""
    return [
        (measure, column, is_paper)
        for measure in table.measures
        for column in table.columns
        for is_paper in ((False, True) if table.has_paper(measure, column) else (False,))
    ]


def _named(column: Column) -> str:
    return "average" if column is None else str(column)


def _figures(cell: Cell, spread: str) -> str:
    if cell.mean is None:
        return _MISSING
    return f"{cell.mean:.2f}" + ("" if cell.spread is None else spread.format(cell.spread))
