"""Results in files: tables, figures, and what they were made from and by."""

from __future__ import annotations

import json
import platform
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import torch

from fedimmune import __version__
from fedimmune.errors import InputError
from fedimmune.io import write_bytes_atomically, write_text_atomically
from reproduction.experiments import Experiment
from reproduction.figures import save
from reproduction.jobs import Store
from reproduction.rows import as_csv, with_defense
from reproduction.selection import Request, spell
from reproduction.tables import counted

__all__ = ["FINDING", "Published", "check_writable", "command", "publish", "published_table"]
__all__ += ["write"]

_PUBLISHED = (".csv", ".md", ".png")
"""Endings of the files that a site shows."""
FINDING = re.compile(r"<!-- finding -->\n.*?\n<!-- /finding -->", re.DOTALL)
"""What a published page says that no program wrote, and publishing anew leaves there."""


def write(experiment: Experiment, request: Request, store: Store) -> list[Path]:
    """Write an experiment's results, as far as they are there.

    Returns
    -------
    list of Path
        ID.md, ID.csv, ID.tex and ID.json, and ID.png and ID.pdf if there is something to draw.
    """
    frame = experiment.frame(request, store)
    return _write(experiment, request, store, frame, 0, store.results(request.scale))


@dataclass(frozen=True)
class Published:
    """Published files, and the number of earlier rows that no job asked for has made."""

    files: list[Path]
    carried: int


def publish(experiment: Experiment, request: Request, store: Store, folder: Path) -> Published:
    """Write what a site shows of an experiment's results.

    Rows of an earlier table stay until the same cell is run again, so that what several machines,
    or several days, have measured comes together in one table. What somebody wrote about it, on the
    page between ``<!-- finding -->`` and ``<!-- /finding -->``, stays too.

    Raises
    ------
    InputError
        Something that is published would get lost, or nothing can be written there.
    """
    frame, carried = experiment.with_published(
        experiment.frame(request, store), request, store, published_table(experiment, folder)
    )
    # In another folder first: a site shows only some of it, and nothing is replaced by halves.
    with tempfile.TemporaryDirectory() as other:
        finding = _finding(folder / f"{experiment.id}.md")
        made = _write(experiment, request, store, frame, carried, Path(other), finding)
        check_writable(folder)
        shown = [file for file in made if file.suffix in _PUBLISHED]
        for file in shown:
            write_bytes_atomically(file.read_bytes(), folder / file.name)
    return Published([folder / file.name for file in shown], carried)


def published_table(experiment: Experiment, folder: Path) -> Path:
    """Return where the rows of what is published are."""
    return folder / f"{experiment.id}.csv"


def check_writable(folder: Path) -> None:
    """Create a folder if there is none, and check that files can be written there.

    Raises
    ------
    InputError
        They cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


def command(experiment: Experiment, request: Request) -> str:
    """Return the command that makes an experiment again."""
    words = ["python -m reproduction", experiment.id, f"--scale {request.scale}"]
    if request.repeats is not None:
        words.append(f"--seeds {request.repeats}")
    words += [f"--seeds {count}:{','.join(spell(which))}" for which, count in request.repeats_of]
    words += [f"--filter {each}" for each in spell(request.filter)]
    if request.device != "cpu":
        words.append(f"--device {request.device}")
    return " ".join(words)


def _write(
    experiment: Experiment,
    request: Request,
    store: Store,
    frame: pd.DataFrame,
    carried: int,
    folder: Path,
    finding: str = "",
) -> list[Path]:
    check_writable(folder)
    pictures: list[Path] = []
    for name, chart in experiment.charts(frame, request, store).items():
        detail = f"-{quote(name, safe='')}" if name else ""
        pictures += save(chart, folder / f"{experiment.id}{detail}")
    jobs = experiment.jobs(request)
    differences = experiment.differences(request.scale)
    said = f"Not as in the paper: {differences}." if differences else "As in the paper."
    about: dict[str, Any] = {
        "experiment": experiment.id,
        "command": command(experiment, request),
        "scale": request.scale,
        "caption": f"Scale `{request.scale}`. {said}",
        "jobs": {"done": experiment.shown(frame, request, store), "of": len(jobs)},
        "carried": carried,
        "versions": {
            "fedimmune": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "machine": platform.machine(),
        "scenarios": experiment.scenarios(request, store),
    }
    images = [file for file in pictures if file.suffix == ".png"]
    texts = {
        "md": _page(experiment, about, finding, experiment.markdown(frame), images),
        "csv": as_csv(with_defense(frame)),
        "tex": experiment.latex(frame, said if differences else ""),
        "json": json.dumps(about, indent=1) + "\n",
    }
    for kind, text in texts.items():
        write_text_atomically(text, folder / f"{experiment.id}.{kind}")
    return [*(folder / f"{experiment.id}.{kind}" for kind in texts), *pictures]


def _finding(page: Path) -> str:
    found = FINDING.search(page.read_text(encoding="utf-8")) if page.exists() else None
    return found[0] if found else ""


def _page(
    experiment: Experiment, about: dict[str, Any], finding: str, tables: str, images: list[Path]
) -> str:
    pieces = [
        f"# {experiment.title}",
        f"{experiment.shows} In the paper: {experiment.source}. {about['caption']}",
        f"```sh\n{about['command']}\n```",
    ]
    done, of = about["jobs"]["done"], about["jobs"]["of"]
    if about["carried"]:
        pieces.append(
            f"{counted(about['carried'], 'row')} from an earlier table: no job of this command has "
            "their key."
        )
    if done < of:
        pieces.append(f"**Not finished**: {done} of {of} are there.")
    if finding:
        pieces.append(finding)
    pieces += [f"![{experiment.title}]({file.name})" for file in images[:1]]
    pieces.append(tables.strip())
    for file in images[1:]:
        detail = file.stem.removeprefix(f"{experiment.id}-").replace("_", r"\_")
        pieces.append(f"![{experiment.title}: {detail} in detail]({file.name})")
    return "\n\n".join(pieces) + "\n"
