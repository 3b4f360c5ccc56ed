"""Results in files: tables, figure, and what they were made from and by."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedimmune import __version__
from fedimmune.errors import InputError
from fedimmune.experiments.artefact import Artefact, Results
from fedimmune.experiments.asking import Ask, spelled
from fedimmune.experiments.shown.escaping import markdown
from fedimmune.experiments.store import Store
from fedimmune.files import write_bytes_atomically, write_text_atomically

__all__ = ["PUBLISHED", "caption", "command", "publish", "published_table", "write"]

PUBLISHED = (".csv", ".md", ".png")
"""Endings of the files that a site shows."""


def write(artefact: Artefact, ask: Ask, store: Store) -> list[Path]:
    """Write an artefact's results, as far as they are there.

    Parameters
    ----------
    artefact
        Which.
    ask
        What of it.
    store
        Where its parts are; results go there too.

    Returns
    -------
    list of Path
        ID.md, ID.csv, ID.tex and ID.json, and ID.png and ID.pdf where there is something to draw.
    """
    return _write(artefact, ask, artefact.results(ask, store), store.results(ask.scale))


def publish(artefact: Artefact, ask: Ask, store: Store, folder: Path) -> list[Path]:
    """Write what a site shows of an artefact's results.

    Runs that the table published there already tells of, and that are not in the store, stay in
    it: so what several machines, or several days, have measured comes together in one table.
    Nothing is taken out of it.

    Parameters
    ----------
    artefact
        Which.
    ask
        What of it; all that is published has to be asked for.
    store
        Where its parts are.
    folder
        Where to.

    Returns
    -------
    list of Path
        ID.md, ID.csv and ID.png.

    Raises
    ------
    InputError
        Something that is published would get lost, or nothing can be written there.
    """
    earlier = published_table(artefact, folder)
    results = artefact.results(ask, store, earlier)
    if artefact.offers(ask) is None and results.shown < results.wanted and earlier.exists():
        raise InputError(
            f"{earlier} would get lost: only {results.shown} of {results.wanted} parts of "
            f"{artefact.id} are there. Make the others first, or move that table away"
        )
    # Made beside, for a site shows only some of it; and nothing is replaced before all is made.
    with tempfile.TemporaryDirectory() as beside:
        made = _write(artefact, ask, results, Path(beside))
        _make_folder(folder)
        shown = [file for file in made if file.suffix in PUBLISHED]
        for file in shown:
            write_bytes_atomically(file.read_bytes(), folder / file.name)
    return [folder / file.name for file in shown]


def published_table(artefact: Artefact, folder: Path) -> Path:
    """Say where the rows of what is published are."""
    return folder / f"{artefact.id}.csv"


def _write(artefact: Artefact, ask: Ask, results: Results, folder: Path) -> list[Path]:
    _make_folder(folder)
    stem = folder / artefact.id
    pictures = results.draw(stem)
    texts = {
        "md": _page(artefact, ask, results, [file for file in pictures if file.suffix == ".png"]),
        "csv": results.csv,
        "tex": results.latex,
        "json": json.dumps(_facts(artefact, ask, results), indent=1) + "\n",
    }
    written = []
    for kind, text in texts.items():
        file = stem.with_name(f"{artefact.id}.{kind}")
        write_text_atomically(text, file)
        written.append(file)
    return written + pictures


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write results to {folder}: {error.strerror}") from error


def command(artefact: Artefact, ask: Ask) -> str:
    """Give the command that makes an artefact again."""
    words = ["fedimmune reproduce", artefact.id, f"--scale {ask.scale}"]
    if ask.repeats is not None:
        words.append(f"--seeds {ask.repeats}")
    words += [f"--seeds {count}:{','.join(spelled(which))}" for which, count in ask.repeats_of]
    words += [f"--only {each}" for each in spelled(ask.only)]
    if ask.device != "cpu":
        words.append(f"--device {ask.device}")
    return " ".join(words)


def caption(artefact: Artefact, ask: Ask) -> str:
    """Say what was done, and what is not as in the paper."""
    reduced = artefact.reduced(ask.scale)
    end = f" Not as in the paper: {reduced}." if reduced else " As in the paper."
    return f"Scale `{ask.scale}`.{end}"


def _page(artefact: Artefact, ask: Ask, results: Results, pictures: Sequence[Path]) -> str:
    pieces = [
        f"# {artefact.title}",
        f"{artefact.shows} In the paper: {artefact.source}. {caption(artefact, ask)}",
        f"```sh\n{command(artefact, ask)}\n```",
    ]
    if results.shown < results.wanted:
        pieces.append(f"**Not finished**: {results.shown} of {results.wanted} are there.")
    main, details = pictures[:1], pictures[1:]
    pieces += [f"![{markdown(artefact.title)}]({file.name})" for file in main]
    pieces.append(results.markdown.strip())
    for file in details:
        what = file.stem.removeprefix(f"{artefact.id}-")
        pieces.append(f"![{markdown(f'{artefact.title}: {what} in detail')}]({file.name})")
    return "\n\n".join(pieces) + "\n"


def _facts(artefact: Artefact, ask: Ask, results: Results) -> dict[str, object]:
    return {
        "artefact": artefact.id,
        "command": command(artefact, ask),
        "scale": ask.scale,
        "caption": caption(artefact, ask),
        "parts": {"made": results.shown, "of": results.wanted},
        "versions": {
            "fedimmune": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "machine": platform.machine(),
        "scenarios": list(results.scenarios),
    }
