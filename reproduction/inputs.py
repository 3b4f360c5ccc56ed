"""Digests of the data sets that results were made of; run as ``python -m reproduction.inputs``.

Prints what the folder of data sets has and whether it is what ``docs/reproducibility.md`` lists;
what differs is exit code 1. A folder of many files has one digest, that of its list as
``sha256sum`` prints it: ``find FOLDER -type f | LC_ALL=C sort | xargs sha256sum | sha256sum``.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from fedimmune.tasks import data_folder
from reproduction.check import ROOT, tables_of
from reproduction.tables import markdown_table
from reproduction.views import cells_of

__all__ = ["digests", "main", "published"]

_PAGE, _HEADING = "docs/reproducibility.md", "Inputs"
_SETS = {
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "tiny-imagenet": "tiny-imagenet-200",
    "imdb": "aclImdb",
    "imdb, word vectors": "*.vec",
}
_FEW = 10
"""So many files of a folder are listed one by one."""


def digests(place: Path) -> Iterator[tuple[str, str, int, str]]:
    """List what is there: data set, path in the folder of data sets, files, SHA-256."""
    for name, pattern in _SETS.items():
        for found in sorted(place.glob(pattern)):
            inside = [each for each in found.rglob("*") if each.is_file()]
            files = sorted(inside, key=lambda each: each.relative_to(place).as_posix().encode())
            if found.is_dir() and len(files) > _FEW:
                yield (
                    name,
                    f"{found.relative_to(place).as_posix()}/",
                    len(files),
                    _listed(place, files),
                )
                continue
            for file in files if found.is_dir() else [found]:
                yield name, file.relative_to(place).as_posix(), 1, _sha256(file)


def _listed(place: Path, files: Sequence[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{_sha256(file)}  {file.relative_to(place).as_posix()}\n".encode())
    return whole.hexdigest()


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def published(root: Path = ROOT) -> dict[str, str]:
    """Return the digests that the documentation lists, by path."""
    for table in tables_of(_PAGE, (root / _PAGE).read_text(encoding="utf-8")):
        if table.place.heading == _HEADING:
            _, *lines = cells_of(table.lines)
            return {path.strip("`"): digest.strip("`") for _, path, _, digest in lines}
    return {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table in Markdown, as the documentation has it, and what differs from that."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.inputs", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of data sets; else FEDIMMUNE_DATA")
    place = data_folder(parser.parse_args(arguments).data)
    found = list(digests(place))
    lines = [[name, f"`{path}`", f"{count:,}", f"`{value}`"] for name, path, count, value in found]
    typer.echo(markdown_table(["data", "file", "files", "SHA-256"], lines, "llrl"), nl=False)
    known, here = published(), {path: value for _, path, _, value in found}
    for path in known.keys() - here.keys():
        typer.echo(f"missing: {path}", err=True)
    differing = [path for path, value in here.items() if value != known.get(path)]
    for path in differing:
        typer.echo(f"differs: {path}", err=True)
    if differing:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
