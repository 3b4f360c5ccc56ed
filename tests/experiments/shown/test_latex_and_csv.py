"""Tables as LaTeX and CSV: whole, harmless, and with the numbers of the others."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedimmune.errors import InputError
from fedimmune.experiments.rows import FIELDS, Row
from fedimmune.experiments.shown import tables
from fedimmune.experiments.shown.layouts import LAYOUTS
from fedimmune.experiments.shown.published import published
from tests.experiments.shown.making import any_rows, rows_of
from tests.experiments.shown.reading import parsed

# -------------------------------------------------------------------- LaTeX


def cells_in(line: str) -> int:
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
    return len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans)


def check_latex(text: str) -> None:
    bare = re.sub(r"\\[{}]", "", text)
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    for kind in ("table*", "tabular"):
        assert text.count(rf"\begin{{{kind}}}") == text.count(rf"\end{{{kind}}}") > 0
    for body in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        spec = re.match(r"\{(l)(r+)\}", body)
        assert spec is not None
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {cells_in(line) for line in lines} == {1 + len(spec[2])}


@settings(max_examples=15)
@given(st.sampled_from(sorted(LAYOUTS)).flatmap(lambda a: st.tuples(st.just(a), rows_of(a))))
def test_latex_has_the_numbers_of_markdown(drawn: tuple[str, list[Row]]) -> None:
    artefact, rows = drawn
    layout, known = LAYOUTS[artefact], published(artefact)
    text = tables.latex_of(layout, rows, known)
    check_latex(text)
    number = re.compile(r"\d+\.\d\d(?!\d)|–|--")
    in_latex = [
        found
        for line in text.splitlines()
        if line.startswith(r"\texttt")
        for found in number.findall(line.partition(" & ")[2])
    ]
    in_markdown = [
        found
        for table in parsed(tables.markdown_of(layout, rows, known)).values()
        for cells in table.values()
        for cell in cells.values()
        for found in number.findall(cell)
    ]
    assert [found.replace("--", "–") for found in in_latex] == in_markdown


HOSTILE = st.text(st.sampled_from("\\{}$&#_%~^<>|`*[]\n\r\"'aε–±\x00 "), max_size=8)


@given(any_rows(HOSTILE), st.sampled_from(sorted(LAYOUTS)))
def test_nobodys_words_break_a_table(rows: list[Row], artefact: str) -> None:
    layout = LAYOUTS[artefact]
    text = tables.latex_of(layout, rows, published(artefact))
    check_latex(text)
    assert "$ " not in re.sub(r"\$\\?[a-z-]+\$", "", text.replace(r"\$", ""))
    for block in tables.markdown_of(layout, rows, published(artefact)).split("\n\n"):
        if block.startswith("|"):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1
        elif not block.startswith("#"):
            assert "<" not in block.replace(r"\<", "")


# -------------------------------------------------------------------- CSV


@given(any_rows(st.text(max_size=8)))
def test_csv_there_and_back(rows: list[Row]) -> None:
    text = tables.csv_of(rows)
    assert tables.rows_of_csv(text) == rows
    head, *lines = csv.reader(io.StringIO(text, newline=""))
    assert head == list(FIELDS)
    assert head[:7] == ["task", "attack", "attackers", "rule", "seed", "accuracy", "asr"]
    assert [float(line[5]) for line in lines] == [row.accuracy for row in rows]


def test_a_csv_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(InputError, match="no column 'task'"):
        tables.rows_of_csv("")
    row = Row(task="t", attack="none", attackers=0, rule="mean", seed=1, accuracy=0.5)
    with pytest.raises(InputError, match="line 2: accuracy is 'half', which is no number"):
        tables.rows_of_csv(tables.csv_of([row]).replace("0.5", "half"))
