"""Small data sets in the forms in which the real ones were published."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NOWHERE = "http://127.0.0.1:1/"
"""An address at which nobody answers, and at once."""


def idx(array: NDArray[np.uint8]) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def idx_folder(folder: Path, train: int = 40, test: int = 20, packed: bool = True) -> Path:
    """Four files, with images that show their class: a bright row."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), 2 + labels * 2] = 255
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            file = folder / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return folder


def python2_pickle(content: Mapping[str, str | list[int] | NDArray[np.uint8]]) -> bytes:
    """What Python 2's cPickle made: text is bytes, and so is the content of arrays."""

    def text(value: bytes) -> bytes:
        short = b"U" + bytes((len(value),)) if len(value) < 256 else b""
        return (short or b"T" + struct.pack("<i", len(value))) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    out = b"\x80\x02}q\x01("
    for key, value in content.items():
        out += text(key.encode())
        if isinstance(value, str):
            out += text(value.encode())
        elif isinstance(value, list):
            out += b"](" + b"".join(map(whole, value)) + b"e"
        else:
            out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
            out += b"K\x01" + whole(value.shape[0]) + whole(value.shape[1]) + b"\x86"
            out += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
            out += b"(K\x03U\x01|NNN" + whole(-1) * 2 + b"K\x00tb"
            out += b"\x89" + text(value.tobytes()) + b"tb"
    return out + b"u."


def cifar_content(key: str, classes: int, each: int, seed: int) -> dict[str, Any]:
    labels = [label for label in range(classes) for _ in range(each)]
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return {"batch_label": "made by a test", key: labels, "data": pixels}


def cifar10_folder(place: Path, each: int = 1) -> Path:
    folder = place / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for seed, name in enumerate(names):
        content = cifar_content("labels", 10, each, seed)
        (folder / name).write_bytes(python2_pickle(content))
    return folder


def cifar100_folder(place: Path, each: int = 1) -> Path:
    folder = place / "cifar-100-python"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("train", "test")):
        content = cifar_content("fine_labels", 100, each, seed)
        content["coarse_labels"] = [0] * (100 * each)
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder


def jpeg(file: Path, side: int = 64, mode: str = "RGB", level: int = 100) -> None:
    color = level if mode == "L" else (level, 0, 255 - level)
    Image.new(mode, (side, side), color).save(file, "JPEG")


def tiny_imagenet_folder(place: Path) -> Path:
    """200 classes, two training images and one for validation each; the first is gray."""
    folder = place / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    wnids = [f"n{number:08}" for number in range(200)]
    (folder / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")
    rows = []
    for number, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        jpeg(images / f"{wnid}_0.JPEG", mode="RGB" if number else "L", level=number)
        jpeg(images / f"{wnid}_1.JPEG", level=number)
        jpeg(folder / "val" / "images" / f"val_{number}.JPEG", level=number)
        rows.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    return folder


def imdb_folder(place: Path, each: int = 6) -> Path:
    folder = place / "aclImdb"
    for half in ("train", "test"):
        for kind, word in (("neg", "awful"), ("pos", "superb")):
            (folder / half / kind).mkdir(parents=True)
            for number in range(each):
                text = f"This film<br /><br />isn't SHORT. It was {word}, {word} no{number}!"
                (folder / half / kind / f"{number}_5.txt").write_text(text, encoding="utf-8")
    return folder


def vectors_file(file: Path, words: str = "this film was awful superb", size: int = 4) -> Path:
    rows = [
        f"{word} {' '.join(f'{n / 10:.1f}' for n in range(1, size + 1))}" for word in words.split()
    ]
    file.write_text("\n".join([f"{len(rows)} {size}", *rows]) + "\n", encoding="utf-8")
    return file
