"""Tables as LaTeX and CSV: whole, harmless, and with the numbers of the others."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedimmune.errors import InputError
from reproduction import tables
from reproduction.layout import printed
from reproduction.methods import METHODS
from reproduction.rows import COLUMNS, as_csv, read_rows, with_defense
from tests.reproduction.making import LAYOUTS, Row, any_rows, frame_of, rows_of
from tests.reproduction.reading import parsed

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
    experiment, rows = drawn
    layout, known = LAYOUTS[experiment], printed(experiment)
    text = tables.latex_of(layout, frame_of(rows), known, title="A title")
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
        for table in parsed(tables.markdown_of(layout, frame_of(rows), known)).values()
        for cells in table.values()
        for cell in cells.values()
        for found in number.findall(cell)
    ]
    assert [found.replace("--", "–") for found in in_latex] == in_markdown


HOSTILE = st.text(st.sampled_from("\\{}$&#_%~^<>|`*[]\n\r\"'aε–±\x00 "), max_size=8)


@settings(max_examples=20)
@given(any_rows(HOSTILE, most=5), st.sampled_from(sorted(LAYOUTS)))
def test_nobodys_words_break_a_table(rows: list[Row], experiment: str) -> None:
    layout = LAYOUTS[experiment]
    text = tables.latex_of(layout, frame_of(rows), printed(experiment), title="A_title")
    check_latex(text)
    for block in tables.markdown_of(layout, frame_of(rows), printed(experiment)).split("\n\n"):
        if block.startswith("|"):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1
        elif not block.startswith("#"):
            assert "<" not in block.replace(r"\<", "")


# -------------------------------------------------------------------- CSV


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_rows(PRINTABLE))
def test_csv_there_and_back(tmp_path: Path, rows: list[Row]) -> None:
    file, frame = tmp_path / "rows.csv", frame_of(rows)
    text = as_csv(with_defense(frame))
    file.write_text(text, encoding="utf-8")
    pd.testing.assert_frame_equal(read_rows(file), frame, check_dtype=False, check_exact=True)
    assert as_csv(with_defense(read_rows(file))) == text
    head, *lines = csv.reader(io.StringIO(text, newline=""))
    place = head.index("defense")
    assert head[:place] + head[place + 1 :] == list(COLUMNS)
    accuracy = head.index("accuracy")
    assert [float(line[accuracy]) for line in lines] == [row.accuracy for row in rows]


def test_rows_name_the_rule_and_its_defense(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "task": "t",
        "attack": "none",
        "attackers": 0,
        "seed": 1,
        "accuracy": 0.5,
    }
    frame = frame_of([Row(rule=key, **common) for key in (*METHODS, "a rule of one's own")])
    written = with_defense(frame)
    assert written["rule"].tolist()[:-1] == [each.rule for each in METHODS.values()]
    both = dict(
        zip(frame["rule"], zip(written["rule"], written["defense"], strict=True), strict=True)
    )
    assert len({*both.values()}) == len(both), "each method is told from the others"
    assert both["adaptive"] == ("adaptive", "own")
    assert both["adaptive-universal"] == ("adaptive", "universal")
    assert both["adaptive-paper-clients"] == ("adaptive", "paper-clients")
    assert both["median"] == ("median", "")
    file = tmp_path / "rows.csv"
    file.write_text(as_csv(written), encoding="utf-8")
    assert read_rows(file)["rule"].tolist() == frame["rule"].tolist()
    for old, new, said in (
        ("adaptive,own", "adaptive,lost", "'lost': there are .*own"),
        ("adaptive,own", "adaptive,", "'': there are .*own"),
        ("median,,", "median,own,", "'median' with defense 'own': it takes none"),
    ):
        file.write_text(as_csv(written).replace(old, new), encoding="utf-8")
        with pytest.raises(InputError, match=f"{said}.*move it away"):
            read_rows(file)


def test_a_csv_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    assert read_rows(file).empty
    row = Row(task="t", attack="none", attackers=0, rule="mean", seed=1, accuracy=0.5)
    for text, said in (
        ("", "No columns"),
        ("rule\nmean\n", "no column 'task'"),
        (as_csv(frame_of([row])), "no column 'defense'"),
        (as_csv(with_defense(frame_of([row]))).replace("0.5", "half"), "accuracy: .*half"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=f"{said}.*move it away"):
            read_rows(file)
