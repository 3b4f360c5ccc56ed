"""Published files: downloaded, compared with their checksums, unpacked; with bars on a terminal."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from fedimmune.errors import InputError
from fedimmune.tasks.base import SourceFile

__all__ = [
    "Archive",
    "Bar",
    "compare",
    "download",
    "need_files",
    "need_folder",
    "terminal",
    "tracked",
    "unwatched",
]

T = TypeVar("T")
_UNWATCHED = ContextVar("unwatched", default=False)


@contextmanager
def unwatched(wanted: bool = True) -> Iterator[None]:
    """Show no bars in this block, if `wanted`."""
    before = _UNWATCHED.set(wanted or _UNWATCHED.get())
    try:
        yield
    finally:
        _UNWATCHED.reset(before)


def terminal() -> bool:
    """Whether bars are shown: stderr is a terminal."""
    return not _UNWATCHED.get() and sys.stderr is not None and sys.stderr.isatty()


def tracked(items: Sequence[T], words: str) -> Iterator[T]:
    """Yield the items, with a bar if stderr is a terminal."""
    if not terminal():
        yield from items
        return
    from rich.console import Console  # noqa: PLC0415 (slow to import)
    from rich.progress import track  # noqa: PLC0415

    yield from track(items, words, console=Console(stderr=True), transient=True)


class Bar:
    """A bar of bytes on stderr, with the methods that pooch calls (tqdm's)."""

    def __init__(self, words: str) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, DownloadColumn, Progress  # noqa: PLC0415
        from rich.progress import TransferSpeedColumn as Speed  # noqa: PLC0415

        self.total = 0  # set by pooch, once it knows
        columns = ("{task.description}", BarColumn(), DownloadColumn(), Speed())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(words, total=None)
        self._progress.start()

    def update(self, count: int) -> None:
        """Count bytes that have arrived."""
        self._progress.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        """Start counting again."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


_SECONDS = 10
"""How long a server may be silent."""


@dataclass(frozen=True)
class Archive:
    """A published tar or zip file, by the ending of `url`, that holds one folder."""

    url: str
    md5: str
    folder: str


def need_files(
    task: str, place: Path, folder: str, address: str, md5s: Mapping[str, str]
) -> list[Path]:
    """Find files that are published one by one, and download those that are missing.

    Parameters
    ----------
    task
        Its name, for messages.
    place, folder
        The folder of data sets, and the one in it that holds the files.
    address
        URL of the folder that they are published in.
    md5s
        Checksum by name. Names end in .gz; an unpacked file, without .gz, will do.

    Raises
    ------
    InputError
        Some are missing and could not be downloaded.
    """
    there = place / folder
    missing = [name for name in md5s if _found(there, name) is None]
    try:
        for name in missing:
            download(f"{address}{name}", md5s[name], there / name)
    except InputError as error:
        raise _missing(task, place, folder, missing, address, error) from error
    return [_found(there, name) or there / name for name in md5s]


def need_folder(task: str, place: Path, archive: Archive, names: Sequence[str]) -> Path:
    """Find the folder of an archive; download and unpack that if the folder is missing.

    Parameters
    ----------
    task
        Its name, for messages.
    place
        The folder of data sets.
    archive
        What holds the folder.
    names
        Files and folders that must be in it.

    Raises
    ------
    InputError
        It is missing and could not be downloaded, or something is missing in it.
    """
    folder = place / archive.folder
    if not folder.is_dir():
        try:
            with _next_to(folder) as temporary:
                file = temporary / _last(archive.url)
                _retrieve(archive.url, archive.md5, file)
                _unpack(file, temporary / "unpacked", archive)
                _move(temporary / "unpacked" / archive.folder, folder)
        except InputError as error:
            raise _missing(task, place, archive.folder, names, archive.url, error) from error
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        # The user's folder is not overwritten.
        raise _missing(task, place, archive.folder, missing, archive.url, None)
    return folder


def download(url: str, md5: str, target: Path) -> None:
    """Download a file; `target` holds the whole of it or does not exist.

    Raises
    ------
    InputError
        There is no network, the server has no such file, its checksum differs, or `target` cannot
        be written.
    """
    with _next_to(target) as temporary:
        _retrieve(url, md5, temporary / target.name)
        _move(temporary / target.name, target)


def compare(folder: Path, md5s: Mapping[str, str]) -> list[SourceFile]:
    """Compare files with their published checksums."""
    return [_compared(folder, name, md5) for name, md5 in md5s.items()]


def _compared(folder: Path, name: str, md5: str) -> SourceFile:
    found = _found(folder, name)
    if found is None:
        return SourceFile(folder / name, "missing")
    if found.name != name:
        return SourceFile(found, "unknown", f"unpacked; only the checksum of {name} is known")
    with open(found, "rb") as file:
        same = hashlib.file_digest(file, _md5).hexdigest() == md5
    return SourceFile(found, "whole" if same else "differs")


def _md5() -> hashlib._Hash:
    # It detects damage; nothing here depends on its resisting a forger.
    return hashlib.md5(usedforsecurity=False)


def _found(folder: Path, name: str) -> Path | None:
    candidates = (folder / name, folder / name.removesuffix(".gz"))
    return next((path for path in candidates if os.path.isfile(path)), None)


def _missing(
    task: str, place: Path, folder: str, names: Sequence[str], url: str, error: Exception | None
) -> InputError:
    tried = f" Downloading failed: {error}." if error else ""
    return InputError(
        f"{task}: missing in {place / folder}: {', '.join(names)}.{tried} Get the data from {url} "
        f"and put it there, or name the folder that contains {folder}/ with --data DIR or "
        "FEDIMMUNE_DATA"
    )


@contextmanager
def _next_to(target: Path) -> Iterator[Path]:
    """Make a temporary folder next to `target`, for what is renamed once it is complete."""
    there = target.parent
    made = [folder for folder in (there, *there.parents) if not folder.exists()]
    try:
        there.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".fedimmune-", dir=there))
    except OSError as error:
        raise InputError(f"cannot write in {there}: {error.strerror or error}") from error
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in made:
            try:
                folder.rmdir()  # unless something was kept in it
            except OSError:
                break


def _move(whole: Path, target: Path) -> None:
    try:
        os.replace(whole, target)
    except OSError as error:
        if not target.exists():  # else another process was faster
            raise InputError(f"cannot write {target}: {error.strerror or error}") from error


def _retrieve(url: str, md5: str, file: Path) -> None:
    import pooch  # noqa: PLC0415 (slow to import)

    # Its log repeats the bar, and a checksum that is known already.
    pooch.get_logger().setLevel(logging.WARNING)
    bar = Bar(f"Downloading {_last(url)}") if terminal() else None
    try:
        downloader = pooch.HTTPDownloader(progressbar=bar or False, timeout=_SECONDS)
        pooch.retrieve(url, f"md5:{md5}", fname=file.name, path=file.parent, downloader=downloader)
    except ValueError as error:
        if isinstance(error, OSError):  # an address that requests cannot read
            raise InputError(f"{url}: {_reason(error)}") from error
        raise InputError(f"{url} does not have the published checksum {md5}") from error
    except OSError as error:
        raise InputError(f"{url}: {_reason(error)}") from error
    finally:
        if bar:
            bar.close()


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server says {response.status_code} {response.reason}"
    name = type(error).__name__
    if "Timeout" in name:
        return f"no answer within {_SECONDS} s"
    if name in {"ConnectionError", "ProxyError", "SSLError"}:
        return "no connection"
    return str(error) or name


def _last(url: str) -> str:
    return url.rpartition("/")[2]


def _unpack(file: Path, into: Path, archive: Archive) -> None:
    try:
        into.mkdir()
        (_unzip if file.suffix == ".zip" else _untar)(file, into)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{archive.url} cannot be unpacked: {error}") from error
    if not (into / archive.folder).is_dir():
        raise InputError(f"{archive.url} holds no folder {archive.folder}")


def _untar(file: Path, into: Path) -> None:
    with tarfile.open(file) as archive:
        archive.extractall(into, filter="data")


def _unzip(file: Path, into: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                raise zipfile.BadZipFile(f"{name!r} leads out of the folder")
        archive.extractall(into)
