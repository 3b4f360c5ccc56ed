from __future__ import annotations

import gzip
import hashlib
import io
import os
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedimmune import tasks
from fedimmune.errors import InputError
from fedimmune.tasks import archives
from fedimmune.tasks.archives import Archive, compare, download, need_folder
from fedimmune.tasks.mnist import Mnist
from tests.tasks.making import NOWHERE, cifar10_folder, idx_folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server on this machine: its address and its folder."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between the tests and this machine."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# ---------------------------------------------------------------- files


def test_a_file_is_downloaded_once(site: tuple[str, Path], tmp_path: Path) -> None:
    (site[1] / "file.gz").write_bytes(b"content")
    target = tmp_path / "data" / "deep" / "file.gz"
    download(f"{site[0]}file.gz", md5(b"content"), target)
    assert target.read_bytes() == b"content"
    assert everything_in(tmp_path / "data") == {"deep", "deep/file.gz"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [("file.gz", "not have the published checksum 0000"), ("absent", "404 File not found")],
)
def test_nothing_is_left_of_a_failure(
    site: tuple[str, Path], tmp_path: Path, name: str, problem: str
) -> None:
    (site[1] / "file.gz").write_bytes(b"content")
    with pytest.raises(InputError, match=problem):
        download(f"{site[0]}{name}", "0" * 32, tmp_path / "data" / "deep" / name)
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match=problem):
        download(f"{site[0]}{name}", "0" * 32, tmp_path / "data" / "deep" / name)
    assert everything_in(tmp_path / "data") == set()


@pytest.mark.parametrize("url", [f"{NOWHERE}file", "http://no.such.host.invalid/file"])
def test_without_a_network(tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError, match="no connection"):
        download(url, "0" * 32, tmp_path / "file")


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="http://"):
        download("http://", "0" * 32, tmp_path / "file")


def test_a_silent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(InputError, match="no answer within"):
            download(f"http://127.0.0.1:{server.getsockname()[1]}/x", "0" * 32, tmp_path / "x")
    assert time.monotonic() - began < 5


def test_a_place_that_cannot_be_written(site: tuple[str, Path], tmp_path: Path) -> None:
    (site[1] / "file").write_bytes(b"content")
    (tmp_path / "place").write_text("no folder")
    with pytest.raises(InputError, match="cannot write in"):
        download(f"{site[0]}file", md5(b"content"), tmp_path / "place" / "file")


def test_progress_is_shown_on_a_terminal(
    site: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (site[1] / "file").write_bytes(b"content" * 10_000)
    url, sum_ = f"{site[0]}file", md5(b"content" * 10_000)
    download(url, sum_, tmp_path / "one")
    assert list(archives.tracked([1, 2], "Counting")) == [1, 2]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(archives, "terminal", lambda: True)
    monkeypatch.setattr(archives, "terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    download(url, sum_, tmp_path / "two")
    assert list(archives.tracked([1, 2], "Counting")) == [1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert "Downloading file" in err
    assert "Counting" in err
    assert (tmp_path / "two").read_bytes() == b"content" * 10_000


def test_a_task_gets_what_it_lacks(
    site: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idx_folder(site[1])
    sums = {file.name: md5(file.read_bytes()) for file in site[1].iterdir()}
    monkeypatch.setattr(Mnist, "address", site[0])
    monkeypatch.setattr(Mnist, "md5s", {name: sums[name] for name in Mnist.md5s})
    place = tmp_path / "data"
    # One of the files is there already, unpacked.
    have = place / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    have.parent.mkdir(parents=True)
    have.write_bytes(gzip.decompress((site[1] / f"{have.name}.gz").read_bytes()))
    assert len(Mnist().load(place).clients) == 40
    verdicts = {each.path.name: each.verdict for each in Mnist().check(place)}
    assert verdicts.pop(have.name) == "unknown"
    assert {*verdicts.values()} == {"whole"}
    assert len(verdicts) == 3


# ---------------------------------------------------------------- archives


def tar_of(members: dict[str, bytes | str]) -> bytes:
    """Pack files (bytes) and links (text) into a tar file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def published(site: tuple[str, Path], name: str, content: bytes) -> Archive:
    (site[1] / name).write_bytes(content)
    return Archive(f"{site[0]}{name}", md5(content), "set")


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
def test_an_archive_is_unpacked(site: tuple[str, Path], tmp_path: Path, name: str) -> None:
    members = {"set/one": b"1", "set/deep/two": b"2"}
    content = zip_of(members) if name.endswith("zip") else tar_of({**members})
    archive, place = published(site, name, content), tmp_path / "data"
    for _ in range(2):
        folder = need_folder("task", place, archive, ("one", "deep/two"))
        assert folder == place / "set"
        assert everything_in(place) == {"set", "set/one", "set/deep", "set/deep/two"}
        (site[1] / name).unlink(missing_ok=True)  # the second time nothing is downloaded
    with pytest.raises(InputError, match=r"task: missing in .*set: three\. Get"):
        need_folder("task", place, archive, ("one", "three"))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("set.zip", zip_of({"set/one": b"1", "../out": b"2"}), "'../out' leads out of the folder"),
        ("set.zip", zip_of({"set/one": b"1", "set/../../out": b"2"}), "leads out of the folder"),
        ("set.zip", zip_of({"set/one": b"1", "..\\out": b"2"}), "leads out of the folder"),
        ("set.zip", zip_of({"set/one": b"1", "C:\\out": b"2"}), "leads out of the folder"),
        ("set.zip", zip_of({"set/one": b"1", "/absolute/out": b"2"}), "leads out of the folder"),
        ("set.tar.gz", tar_of({"set/one": b"1", "../out": b"2"}), "outside the destination"),
        ("set.tar.gz", tar_of({"set/a": "../..", "set/a/out": b"2"}), "outside the destination"),
        ("set.tar.gz", tar_of({"set/a": "/etc"}), "absolute path"),
        ("set.tar.gz", tar_of({"other/one": b"1"}), "holds no folder set"),
        ("set.zip", zip_of({"set": b"1"}), "holds no folder set"),
        ("set.zip", b"<html>", "cannot be unpacked"),
        ("set.tar.gz", b"<html>", "cannot be unpacked"),
        ("set.tar.gz", tar_of({"set/one": os.urandom(9999)})[:-99], "cannot be unpacked"),
    ],
    ids=range(13),  # archives hold the time: named by themselves, no two processes would agree
)
def test_bad_archives_leave_nothing(
    site: tuple[str, Path], tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    archive, place = published(site, name, content), tmp_path / "data"
    place.mkdir()
    before = everything_in(tmp_path)
    with pytest.raises(InputError, match=problem):
        need_folder("task", place, archive, ("one",))
    assert everything_in(tmp_path) == before


def test_a_task_unpacks_what_it_lacks(
    site: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cifar10_folder(tmp_path / "elsewhere")
    members: dict[str, bytes | str] = {
        f"{folder.name}/{file.name}": file.read_bytes() for file in folder.iterdir()
    }
    content = tar_of(members)
    (site[1] / "cifar.tar.gz").write_bytes(content)
    task = tasks.get("cifar10")
    archive = Archive(f"{site[0]}cifar.tar.gz", md5(content), folder.name)
    monkeypatch.setattr(type(task), "archive", archive)
    assert len(task.load(tmp_path / "data").clients) == 50


def test_another_process_may_be_faster(
    site: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = published(site, "set.zip", zip_of({"set/one": b"1"}))
    unpack = archives._unpack

    def slowly(file: Path, into: Path, what: Archive) -> None:
        unpack(file, into, what)
        (tmp_path / "data" / "set").mkdir()
        (tmp_path / "data" / "set" / "one").write_bytes(b"theirs")

    monkeypatch.setattr(archives, "_unpack", slowly)
    folder = need_folder("task", tmp_path / "data", archive, ("one",))
    assert (folder / "one").read_bytes() == b"theirs"
    assert everything_in(tmp_path / "data") == {"set", "set/one"}


def test_compare(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"changed")
    sums = {"one": md5(b"1"), "two": md5(b"2"), "three": md5(b"3")}
    assert [each.verdict for each in compare(tmp_path, sums)] == ["whole", "differs", "missing"]
