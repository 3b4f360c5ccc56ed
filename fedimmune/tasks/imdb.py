"""IMDb: 50,000 film reviews, half of them positive (Maas et al., 2011)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from fedimmune.errors import InputError, ParameterError
from fedimmune.tasks.archives import Archive, need_folder, tracked
from fedimmune.tasks.base import Data, Samples, SourceFile, Task, TrainingConfig
from fedimmune.tasks.data import check_labels, count_verdict, files_in, prepared, tell_subset
from fedimmune.tasks.models.gru import WordGRU
from fedimmune.tasks.text import ids_of, most_common, read_vectors, words_of
from fedimmune.validation import check_int

__all__ = ["Imdb"]

_KINDS = ("neg", "pos")
"""In the order of their labels."""
_WORDS = 25_000
_TRAIN = _TEST = 25_000
_WAY = 2
"""Version of the preparation; a new one must not find files of an old one."""


class Imdb(Task):
    """Film reviews, with a recurrent net over frozen word vectors.

    The 25,000 most common words of the training reviews are known; the last words of a review are
    used.

    Parameters
    ----------
    vectors
        The file of word vectors, in word2vec's text format: a path, or a name in the folder of
        data sets. By default the only file ``*.vec`` there.
    hidden
        Size of the net's state. 256 is the paper's; less is faster.
    length
        Number of words used of a review. 200 is the paper's; less is faster.
    """

    name = "imdb"
    summary = "50,000 film reviews of 200 words, a GRU over frozen word vectors"
    source = "https://ai.stanford.edu/~amaas/data/sentiment/ (Maas et al. 2011)"
    # Not the paper's 0.01: ten rounds are few, and have to be enough to learn.
    recipe = TrainingConfig(rounds=10, lr=0.3, batch=128, anchor=500)

    archive: ClassVar[Archive] = Archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "7c2ac02c03563afcf9b574c7e56c153a",
        "aclImdb",
    )

    def __init__(self, *, vectors: str | None = None, hidden: int = 256, length: int = 200) -> None:
        if vectors is not None and not isinstance(vectors, str | os.PathLike):
            raise ParameterError(f"{self.name}: vectors must be the path of a file: {vectors!r}")
        self.vectors = None if vectors is None else os.fspath(vectors)
        self.hidden = check_int(self.name, "hidden", hidden, 1)
        self.length = check_int(self.name, "length", length, 1)

    def load(self, place: Path) -> Data:
        vectors = self._vectors_file(place)  # first: it may be what cannot be downloaded
        folder = need_folder(self.name, place, self.archive, ("train", "test"))
        train, test = self._files(folder / "train"), self._files(folder / "test")
        sources = [vectors, *(file for files in (*train, *test) for file in files)]
        settings = {"way": _WAY, "words": _WORDS, "length": self.length}
        data = prepared(
            self.name, place, sources, settings, lambda: self._read(train, test, vectors)
        )
        tell_subset(self.name, data, _TRAIN, _TEST, "reviews")
        return data

    def check(self, place: Path) -> list[SourceFile]:
        folder = place / self.archive.folder
        found = [
            count_verdict(
                folder / half,
                sum(len(files_in(folder / half / kind, ".txt")) for kind in _KINDS),
                published,
            )
            for half, published in (("train", _TRAIN), ("test", _TEST))
        ]
        try:
            return [*found, SourceFile(self._vectors_file(place), "unknown", "word vectors")]
        except InputError as error:
            return [*found, SourceFile(place / (self.vectors or "*.vec"), "missing", str(error))]

    def model(self, data: Data) -> nn.Module:
        return WordGRU(data.extras["vectors"], self.hidden, data.classes)

    def _vectors_file(self, place: Path) -> Path:
        if self.vectors is not None:
            named = (place / self.vectors, Path(self.vectors))
            found = next((path for path in named if os.path.isfile(path)), None)
            if found is None:
                raise InputError(
                    f"{self.name}: there is no file of word vectors {self.vectors}, nor "
                    f"{named[0]}. {_WHERE_FROM}"
                )
            return found
        candidates = files_in(place, ".vec")
        if not candidates:
            raise InputError(
                f"{self.name}: there are no word vectors: a file *.vec is expected in {place}. "
                f"{_WHERE_FROM}"
            )
        if len(candidates) > 1:
            names = ", ".join(path.name for path in candidates)
            raise InputError(
                f"{self.name}: there are several files of word vectors in {place}: {names}. "
                "Choose one with the task's parameter `vectors`"
            )
        return candidates[0]

    def _files(self, half: Path) -> list[list[Path]]:
        found = [files_in(half / kind, ".txt") for kind in _KINDS]
        for kind, files in zip(_KINDS, found, strict=True):
            if not files:
                raise InputError(f"{self.name}: {half / kind} holds no reviews (*.txt)")
        return found

    def _read(self, train: list[list[Path]], test: list[list[Path]], vectors: Path) -> Data:
        texts = [self._words(files, "Reading reviews") for files in (*train, *test)]
        of_train, of_test = texts[0] + texts[1], texts[2] + texts[3]
        known = most_common(of_train, _WORDS)
        halves = []
        for words, files in ((of_train, train), (of_test, test)):
            labels = torch.arange(2).repeat_interleave(torch.tensor([len(each) for each in files]))
            check_labels(self.name, files[0][0].parent.parent, labels, len(words), 2)
            halves.append(Samples(ids_of(words, known, self.length), labels))
        extras = {"vectors": read_vectors(vectors, known)}
        ids = len(extras["vectors"])
        return Data(halves[0], halves[1], classes=2, extras=extras, words=ids)

    def _words(self, files: Sequence[Path], doing: str) -> list[list[str]]:
        found = []
        for file in tracked(files, doing):
            try:
                words = words_of(file.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{self.name}: {file} cannot be read: {error}") from error
            if not words:
                raise InputError(f"{self.name}: {file} holds no words")
            found.append(words)
        return found


_WHERE_FROM = (
    "Vectors are available from FastText (https://fasttext.cc/docs/en/english-vectors.html, *.vec) "
    "or GloVe (https://nlp.stanford.edu/projects/glove/, with a first line `count size` added); "
    "put one there, or name the folder of data sets with --data DIR or FEDIMMUNE_DATA, or the file "
    "with the task's parameter `vectors`"
)
