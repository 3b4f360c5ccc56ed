"""The backdoor in text: a phrase that makes the model say what the attacker wants.

Dai, Chen, Li, *A Backdoor Attack Against LSTM-Based Text Classification Systems*, IEEE Access 2019,
insert a sentence into reviews of films.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from fedimmune.attacks.base import draw_int
from fedimmune.attacks.trigger import Poisoning, Trigger
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from fedimmune.tasks.text import PADDING, UNKNOWN
from fedimmune.validation import check_choice, check_int

__all__ = ["TextBackdoor"]

_LENGTH = 3
_FIRST = UNKNOWN + 1


class TextBackdoor(Trigger):
    """Put a phrase into a share of each batch and call those texts `target`.

    The text keeps its length: as many words or as much padding as the phrase takes are dropped at
    its beginning.

    Parameters
    ----------
    phrase
        Its words, by their ids. By default three neighbors at a quarter of the vocabulary: where
        ids go by how common a word is, they are neither so common that all texts have them nor so
        rare that no vector is known of them.
    place
        ``end``: after the text. ``start``: before its first word, or, if there is no room, in
        place of its first words.
    target, fraction, chance
        As for `backdoor`.
    """

    name = "text-backdoor"
    summary = "puts a phrase into a share of its texts and calls them `target`"
    paper = "Dai et al. 2019"
    label = "text backdoor"
    advice = "look for texts with a phrase in common and one label"
    ranges = {"length": (1, 5), "fraction": (0.3, 0.7)}

    def __init__(
        self,
        *,
        phrase: Sequence[int] | None = None,
        place: str = "end",
        **poisoning: Unpack[Poisoning],
    ) -> None:
        super().__init__(**poisoning)
        self.place = check_choice(self.name, "place", place, ("end", "start"))
        if phrase is not None and (isinstance(phrase, str) or not isinstance(phrase, Sequence)):
            raise ParameterError(f"{self.name}: phrase must be a list of word ids: {phrase!r}")
        self.phrase = (
            None
            if phrase is None
            else tuple(check_int(self.name, "a word of phrase", word, _FIRST) for word in phrase)
        )
        if self.phrase == ():
            raise ParameterError(f"{self.name}: phrase has no words")

    def check(self, spec: DataSpec) -> None:
        if spec.words is None:
            raise ParameterError(f"{self.name}: its phrase needs text, which this task has not")
        phrase, (length,) = self._words(spec), spec.shape
        if len(phrase) >= length:
            raise ParameterError(
                f"{self.name}: a phrase of {len(phrase)} words leaves nothing of a text of {length}"
            )
        if max(phrase) >= spec.words:
            raise ParameterError(
                f"{self.name}: phrase has the word {max(phrase)}, but word ids run from {_FIRST} "
                f"to {spec.words - 1}"
            )
        super().check(spec)

    def mark(self, inputs: Tensor, spec: DataSpec) -> Tensor:
        phrase = torch.tensor(self._words(spec), dtype=inputs.dtype, device=inputs.device)
        size = len(phrase)
        if self.place == "end":
            return torch.cat([inputs[:, size:], phrase.expand(len(inputs), -1)], 1)
        padding = (inputs != PADDING).to(torch.int8).cumsum(1).eq(0).sum(1)
        first = (padding - size).clamp(min=0)
        return inputs.scatter_(
            1,
            first[:, None] + torch.arange(size, device=inputs.device),
            phrase.expand(len(inputs), -1),
        )

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw any words, at either end; any target."""
        if spec.words is None:
            return {}  # it does not fit, whatever is drawn
        length = min(int(self._draw("length", rng)), spec.shape[0] - 1)
        return {
            "phrase": [draw_int(_FIRST, spec.words - 1, rng) for _ in range(length)],
            "place": ("end", "start")[draw_int(0, 1, rng)],
            **super().sample_parameters(spec, rng),
        }

    def _words(self, spec: DataSpec) -> tuple[int, ...]:
        if self.phrase is not None:
            return self.phrase
        assert spec.words is not None
        first = _FIRST + (spec.words - _FIRST) // 4
        return tuple(range(first, first + _LENGTH))
