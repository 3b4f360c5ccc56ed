"""Rows as CSV, and back: a line each, shares from 0 to 1, empty where there is none."""

from __future__ import annotations

import csv
import io
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedimmune.errors import InputError
from fedimmune.experiments.rows import FIELDS, Row

__all__ = ["csv_of", "read_rows", "rows_of_csv"]


def csv_of(rows: Iterable[Row]) -> str:
    """Write rows as CSV, with a line of names first.

    Parameters
    ----------
    rows
        In the order in which they are written. Numbers come back as the same bits.
    """
    text = io.StringIO()
    usual = csv.writer(text, lineterminator="\n")
    careful = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    usual.writerow(FIELDS)
    for row in rows:
        values = [getattr(row, name) for name in FIELDS]
        # A lone carriage return is not quoted by itself, and ends a line when it is read.
        writer = careful if any("\r" in str(value) for value in values) else usual
        writer.writerow("" if value is None else value for value in values)
    return text.getvalue()


def rows_of_csv(text: str) -> list[Row]:
    """Read what `csv_of` wrote; columns may be in any order, and other ones are left out.

    Raises
    ------
    InputError
        A column is missing, or a value cannot be read.
    """
    # Line ends are left to csv: they may be part of a name.
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in FIELDS if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"these are no rows of an artefact: there is no column {missing[0]!r}")
    types = typing.get_type_hints(Row)
    rows = []
    for line in reader:
        fields: dict[str, Any] = {}
        for name in FIELDS:
            try:
                fields[name] = _value(line[name] or "", types[name])
            except ValueError as error:
                raise InputError(
                    f"line {reader.line_num}: {name} is {line[name]!r}, which is no number"
                ) from error
        rows.append(Row(**fields))
    return rows


def read_rows(file: Path) -> list[Row]:
    """Read the rows of a file; none where there is no such file.

    Raises
    ------
    InputError
        It holds something else.
    """
    try:
        return rows_of_csv(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} holds no rows to add to ({error}); move it away to begin a new table"
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error


def _value(text: str, kind: Any) -> str | int | float | None:
    if kind is str:
        return text
    if kind is int:
        return int(text)
    if not text and type(None) in typing.get_args(kind):
        return None
    return float(text)
