"""Text into word ids, and word vectors from files in word2vec's text format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedimmune.errors import InputError

__all__ = ["PADDING", "UNKNOWN", "ids_of", "most_common", "read_vectors", "words_of"]

PADDING = 0
UNKNOWN = 1
_FIRST = 2

_WORD = re.compile(r"[^\W_]+")
"""Letters and digits. "Isn't" becomes "isn" and "t", the form in which word vectors know it."""


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words; HTML line breaks are dropped."""
    return _WORD.findall(text.lower().replace("<br />", " "))


def most_common(texts: Iterable[Sequence[str]], count: int) -> dict[str, int]:
    """Return the most common words, each with an id; ties are broken alphabetically."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: place for place, word in enumerate(order[:count], start=_FIRST)}


def ids_of(texts: Sequence[Sequence[str]], known: Mapping[str, int], length: int) -> Tensor:
    """Turn texts into ids (n, length), int32.

    Long texts lose their beginning, because opinions come at the end. Short ones are padded at the
    front, so that a recurrent net's last state is that of the last word.
    """
    ids = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(ids, texts, strict=True):
        last = text[-length:]
        if last:
            row[-len(last) :] = [known.get(word, UNKNOWN) for word in last]
    return torch.from_numpy(ids)


def read_vectors(path: Path, known: Mapping[str, int]) -> Tensor:
    """Read the vectors of known words.

    Parameters
    ----------
    path
        A file in word2vec's text format: a line ``count size``, then one line per word: the word
        and its `size` numbers, separated by spaces.
    known
        Words with their ids.

    Returns
    -------
    Tensor
        (ids, size): one row per id; zeros for padding, unknown words, and words that are not in the
        file.

    Raises
    ------
    InputError
        It cannot be read, is damaged, or has none of the words.
    """
    try:
        with open(path, "rb") as file:
            count, size = _head(path, file.readline())
            vectors = np.zeros((max(known.values(), default=UNKNOWN) + 1, size), np.float32)
            found: set[str] = set()
            lines = 0
            for lines, line in enumerate(file, start=1):
                word, _, numbers = line.rstrip(b" \r\n").partition(b" ")
                if numbers.count(b" ") != size - 1:
                    raise InputError(
                        f"{path}, line {lines + 1}: expected a word and {size} numbers"
                    )
                text = word.decode("utf-8", "replace")
                if text in known and text not in found:
                    vectors[known[text]] = _numbers(path, lines + 1, numbers)
                    found.add(text)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if lines != count:
        raise InputError(f"{path} is damaged: its header says {count:,} words, it has {lines:,}")
    if not found:
        raise InputError(f"{path} has none of the {len(known):,} words that need vectors")
    return torch.from_numpy(vectors)


def _head(path: Path, line: bytes) -> tuple[int, int]:
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 10 for part in parts):
        raise InputError(
            f"{path}: the first line must be `count size`, such as `25000 300` (GloVe's "
            "files lack it: add it)"
        )
    count, size = map(int, parts)
    if not 0 < size <= 10_000:
        raise InputError(f"{path}: its first line says that vectors have {size:,} numbers")
    return count, size


def _numbers(path: Path, line: int, text: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    try:
        with np.errstate(over="ignore"):  # what is too large is reported below
            found = np.array(text.split(b" "), dtype=np.float32)
    except ValueError as error:
        raise InputError(f"{path}, line {line}: {error}") from error
    if not np.isfinite(found).all():
        raise InputError(f"{path}, line {line}: a number is not finite")
    return found
