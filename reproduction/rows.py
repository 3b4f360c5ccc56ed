"""Tidy frames of runs, one row per run: read, written as CSV, and merged with what is published."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedimmune.errors import InputError, ParameterError
from reproduction.methods import defense_of, method_of

__all__ = ["COLUMNS", "IDENTITY", "as_csv", "as_frame", "merge", "read_rows", "read_table"]
__all__ += ["with_defense", "with_method"]

COLUMNS: dict[str, type] = {
    "task": str,
    "attack": str,
    "attackers": int,
    "rule": str,
    "seed": int,
    "accuracy": float,
    "asr": float,
    "asr_others": float,
    "clients": int,
    "trained": str,
    "varied": str,
    "value": int,
    "rounds": int,
    "attackers_weight": float,
    "honest_accused": float,
    "run": str,
    "scale": str,
    "key": str,
}
"""What is known of a run, by its last round; shares are from 0 to 1.

``rule`` is a method's key; in files it is the rule alone, and a column ``defense`` follows, such as
``own`` or ``universal``. ``trained``: attacks that a learned rule had rehearsed, with + between.
``varied``, ``value``: the attack's parameter that an experiment varies. ``asr``, ``asr_others``:
the attack's success over all samples, and over those of other classes than the target. Over all
rounds: ``attackers_weight``, the attackers' mean share of the weight, and ``honest_accused``, the
share of honest clients' rounds in which they were suspected. ``run``: the run's folder. ``scale``:
of the table. ``key``: stands for everything that was run, the defense's training included.
"""
IDENTITY = [
    *("task", "attack", "attackers", "rule", "seed", "clients", "trained", "varied", "value"),
]
"""Which cell of a table a run belongs to."""


def as_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame; what a row does not have is missing."""
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
        {name: "float64" if kind is float else kind for name, kind in COLUMNS.items()}
    )


def as_csv(frame: pd.DataFrame) -> str:
    """Write a frame as CSV. Numbers are read back as the same bits."""
    return str(frame.to_csv(index=False, lineterminator="\n"))


def with_defense(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame as files have it: methods as rule and defense, if it has any."""
    if "rule" not in frame:
        return frame
    named = [defense_of(key) for key in frame["rule"]]
    split = frame.assign(rule=[rule for rule, _ in named])
    place = list(frame.columns).index("rule") + 1
    split.insert(place, "defense", [name for _, name in named])
    return split


def with_method(frame: pd.DataFrame) -> pd.DataFrame:
    """Undo `with_defense`.

    Raises
    ------
    ParameterError
        A rule has a defense of which nothing is known.
    """
    if "defense" not in frame:
        return frame
    both = zip(frame["rule"], frame["defense"], strict=True)
    return frame.assign(rule=[method_of(*each) for each in both]).drop(columns="defense")


def read_table(file: Path) -> pd.DataFrame:
    """Read any table to the last bit: whole numbers, numbers, or text, by column.

    Raises
    ------
    InputError
        There is none.
    """
    text = _read_text(file)
    return pd.DataFrame({name: _typed(text[name].tolist()) for name in text})


def _typed(cells: list[str]) -> list[Any]:
    """Return numbers if they are written as these cells are; missing ones are NaN."""
    for kind in (int, float) if any(cells) else ():
        with contextlib.suppress(ValueError):
            found = [kind(cell or "nan") for cell in cells]
            if [str(number) for number in found] == [cell or "nan" for cell in cells]:
                return found
    return cells


def read_rows(file: Path) -> pd.DataFrame:
    """Read rows; none if there is no such file.

    Raises
    ------
    InputError
        It holds something else.
    """
    if not file.exists():
        return as_frame([])
    text = _read_text(file)
    missing = [name for name in (*COLUMNS, "defense") if name not in text]
    if missing:
        raise _no_rows(file, f"there is no column {missing[0]!r}")
    try:
        text = with_method(text)
    except ParameterError as error:
        raise _no_rows(file, error) from error
    for name, kind in COLUMNS.items():
        try:
            if kind is not str:
                numbers = text[name].map(lambda cell: float(cell or "nan"))
                text[name] = numbers.astype("float64" if kind is float else "int64")
        except ValueError as error:
            raise _no_rows(file, f"{name}: {error}") from error
    return text[list(COLUMNS)]


def _read_text(file: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise _no_rows(file, error) from error


def _no_rows(file: Path, why: object) -> InputError:
    return InputError(f"{file} holds no rows to add to ({why}); move it away to begin a new table")


def merge(
    published: pd.DataFrame, measured: pd.DataFrame, cells: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """Put measured rows in the place of published ones of the same cell; all others stay.

    Parameters
    ----------
    published, measured
        Frames of rows.
    cells
        All cells of the experiment, with the values of `IDENTITY` except the seed: they order the
        rows. A published row that is in none of them stays behind the one before it.
    """
    cell_of = [name for name in IDENTITY if name != "seed"]
    places = {tuple(cell[name] for name in cell_of): place for place, cell in enumerate(cells)}

    def placed(rows: pd.DataFrame) -> pd.DataFrame:
        found = [places.get(cell) for cell in rows[cell_of].itertuples(index=False, name=None)]
        place = pd.Series(found, index=rows.index, dtype="float64")
        return rows.assign(
            _place=place.ffill().fillna(-1), _seed=rows["seed"].where(place.notna(), float("inf"))
        )

    again = pd.MultiIndex.from_frame(published[IDENTITY]).isin(
        pd.MultiIndex.from_frame(measured[IDENTITY])
    )
    frames = [placed(rows) for rows in (published[~again], measured) if len(rows)]
    if not frames:
        return measured
    every = pd.concat(frames).sort_values(["_place", "_seed"], kind="stable", ignore_index=True)
    return every[list(COLUMNS)]
