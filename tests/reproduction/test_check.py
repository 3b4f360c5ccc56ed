"""A published digit that is not what the rows come to is found, wherever it is."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from reproduction import check, inputs
from reproduction.check import ROOT, main, pages, problems, tables_of
from reproduction.views import UNCHECKED

WITH_ROWS = [
    page
    for page in pages(ROOT)
    if any(
        each.place not in UNCHECKED
        for each in tables_of(page, (ROOT / page).read_text(encoding="utf-8"))
    )
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for page in pages(ROOT):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    for rows in (ROOT / "docs" / "results").glob("*.csv"):
        shutil.copy(rows, tmp_path / "docs" / "results")
    return tmp_path


def test_what_is_published_is_what_the_rows_come_to() -> None:
    assert problems() == []


def test_every_damaged_page_is_found_with_its_line(copy: Path) -> None:
    """One digit of the last table with rows of every page; pages do not depend on each other."""
    damaged: dict[str, tuple[int, str, str]] = {}
    for page in WITH_ROWS:
        text = (copy / page).read_text(encoding="utf-8")
        lines = text.splitlines()
        tables = [each for each in tables_of(page, text) if each.place not in UNCHECKED]
        covered = [
            table.line + k
            for table in tables
            for k, line in enumerate(table.lines)
            if k > 1 and re.search(r"\d", line)
        ]
        # Only its first lines have rows, by the backdoor and the sign flip.
        number = covered[0] if page.endswith("learned-mnist.md") else covered[-1]
        before = lines[number - 1]
        digits = list(re.finditer(r"\d", before))
        digit = digits[-1] if number == covered[-1] else digits[8]
        other = str((int(digit[0]) + 1) % 10)
        after = before[: digit.start()] + other + before[digit.end() :]
        lines[number - 1] = after
        (copy / page).write_text("\n".join(lines) + "\n", encoding="utf-8")
        damaged[page] = (number, after, before)
    found = problems(copy)
    assert {(each.page, each.line) for each in found} == {
        (page, number) for page, (number, _, _) in damaged.items()
    }
    for each in found:
        _, after, before = damaged[each.page]
        assert " ".join(each.published.split()) == " ".join(after.split())
        assert " ".join(each.recomputed.split()) == " ".join(before.split())


@pytest.mark.parametrize("table", ["grid", "mnist-attackers", "paper-form", "immunity"])
def test_a_damaged_row_is_found_wherever_it_is_shown(copy: Path, table: str) -> None:
    file = copy / "docs" / "results" / f"{table}.csv"
    head, *lines = file.read_text(encoding="utf-8").splitlines()
    names = head.split(",")
    place = names.index("accuracy")
    for k, line in enumerate(lines):
        cells = line.split(",")
        if len(cells) == len(names):
            cells[place] = str(float(cells[place]) / 2)
            lines[k] = ",".join(cells)
    file.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    found = {each.page for each in problems(copy)}
    shown = {
        "grid": {"docs/results/grid.md", "docs/results.md"},
        "mnist-attackers": {"docs/results/mnist-attackers.md", "docs/results.md", "README.md"},
        "paper-form": {"docs/results/paper-form.md"},
        "immunity": {"docs/results/immunity.md", "docs/results.md"},
    }[table]
    assert shown <= found


def test_what_nobody_knows_of_is_a_problem(copy: Path) -> None:
    page = copy / "docs" / "results" / "grid.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(before + "\n## By hand\n\n| rule | ACC |\n|---|---|\n| best | 99.9 |\n")
    (found,) = problems(copy)
    assert "'By hand', table 1" in found.published
    assert "no rows are known" in found.recomputed
    page.write_text(before.replace("## ", "## "), encoding="utf-8")
    card = copy / "docs" / "model-card.md"
    card.write_text("# Nothing\n", encoding="utf-8")
    assert {each.published for each in problems(copy)} == {"(nothing)"}


def test_a_label_that_names_no_rows_is_a_problem(copy: Path) -> None:
    page = copy / "docs" / "results" / "paper-form.md"
    page.write_text(page.read_text("utf-8").replace("| 4 of 10, 3 |", "| 5 of 10, 3 |"))
    assert {each.page for each in problems(copy)} == {"docs/results/paper-form.md"}


def test_figures_are_put_in_place(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = copy / "docs" / "results.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(before.replace("95.47", "96.47"), encoding="utf-8")
    with pytest.raises(SystemExit, match="1 published lines differ"):
        main(["--root", str(copy)])
    said = capsys.readouterr().out
    assert "docs/results.md:" in said
    assert "96.47" in said.partition("recomputed")[0]
    assert "95.47" in said.partition("recomputed")[2]
    main(["--root", str(copy), "--write"])
    assert page.read_text(encoding="utf-8") == before
    assert "tables are what their rows come to" in capsys.readouterr().out


def test_digests_of_inputs_are_those_of_sha256sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "some.gz").write_bytes(b"some")
    many = tmp_path / "aclImdb"
    for k in range(12):
        file = many / f"part{k % 3}" / f"{k}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(k))
    listed = "".join(
        f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}\n"
        for name in sorted(f"aclImdb/part{k % 3}/{k}.txt" for k in range(12))
    )
    found = list(inputs.digests(tmp_path))
    assert found == [
        ("mnist", "MNIST/raw/some.gz", 1, hashlib.sha256(b"some").hexdigest()),
        ("imdb", "aclImdb/", 12, hashlib.sha256(listed.encode()).hexdigest()),
    ]
    with pytest.raises(SystemExit):
        inputs.main(["--data", str(tmp_path)])
    assert "differs: aclImdb/" in capsys.readouterr().err
    here = {path: value for _, path, _, value in found}
    monkeypatch.setattr(inputs, "published", lambda: here)
    inputs.main(["--data", str(tmp_path)])
    assert capsys.readouterr().err == ""


def test_the_appendix_lists_digests() -> None:
    known = inputs.published()
    assert len(known) > 10
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in known.values())
    assert check.ROOT == ROOT
