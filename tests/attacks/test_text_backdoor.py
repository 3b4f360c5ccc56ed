"""The phrase in text against a naive insertion, word by word."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import attacks
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from tests.attacks.contexts import IMAGES, TABLE, TEXT, context

LENGTH = TEXT.shape[0]
texts = st.lists(st.integers(1, 29), min_size=0, max_size=LENGTH)
phrases = st.lists(st.integers(2, 29), min_size=1, max_size=LENGTH - 1)


def padded(words: list[int]) -> list[int]:
    last = words[-LENGTH:]
    return [0] * (LENGTH - len(last)) + last


@given(words=texts, phrase=phrases)
def test_at_the_end_the_phrase_is_appended(words: list[int], phrase: list[int]) -> None:
    attack = attacks.get("text-backdoor", phrase=phrase)
    attack.check(TEXT)
    shown = attack.triggered(torch.tensor([padded(words)]), torch.tensor([0]), TEXT)
    assert shown is not None
    assert shown.inputs[0].tolist() == padded(words + phrase)


@given(words=texts, phrase=phrases)
def test_at_the_start_it_comes_before_the_text_or_replaces_its_first_words(
    words: list[int], phrase: list[int]
) -> None:
    attack = attacks.get("text-backdoor", phrase=phrase, place="start")
    shown = attack.triggered(torch.tensor([padded(words)]), torch.tensor([0]), TEXT)
    assert shown is not None
    room = LENGTH - len(phrase)
    assert shown.inputs[0].tolist() == padded(phrase + (words[-room:] if room else []))


@given(count=st.integers(1, 20), fraction=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_a_share_of_the_batch_is_marked_and_called_the_target(count: int, fraction: float) -> None:
    words = torch.randint(1, 30, (count, LENGTH), dtype=torch.int32)
    attack = attacks.get("text-backdoor", phrase=[7, 8], fraction=fraction)
    found, called = attack.on_batch(words.clone(), torch.zeros(count).long(), context(TEXT))
    marked = round(fraction * count)
    assert found.dtype == torch.int32
    assert torch.equal(found[marked:], words[marked:])
    assert found[:marked, -2:].tolist() == [[7, 8]] * marked
    assert called.tolist() == [1] * marked + [0] * (count - marked)


@pytest.mark.parametrize("words", [6, 30, 25_002])
def test_by_default_three_words_that_there_are(words: int) -> None:
    spec = DataSpec(2, (200,), words=words)
    attack = attacks.get("text-backdoor")
    attack.check(spec)
    shown = attack.triggered(torch.zeros(1, 200, dtype=torch.int32), torch.tensor([0]), spec)
    assert shown is not None
    phrase = shown.inputs[0, -3:].tolist()
    assert len({*phrase}) == 3
    assert all(2 <= word < words for word in phrase)


@pytest.mark.parametrize(
    ("parameters", "spec", "named"),
    [
        ({}, IMAGES, "text"),
        ({}, TABLE, "text"),
        ({"phrase": [2, 30]}, TEXT, "word 30, but word ids run from 2 to 29"),
        ({"phrase": [5] * 12}, TEXT, "12 words leaves nothing of a text of 12"),
        ({"target": 5}, TEXT, "target is 5"),
        ({}, DataSpec(2, (9,), words=4), "word 4, but"),
    ],
)
def test_what_does_not_fit_is_refused(
    parameters: dict[str, object], spec: DataSpec, named: str
) -> None:
    with pytest.raises(ParameterError, match=named):
        attacks.get("text-backdoor", **parameters).check(spec)


@pytest.mark.parametrize("phrase", ["movie", [], [0], [1], [2.5], 3])
def test_bad_phrases_are_refused(phrase: object) -> None:
    with pytest.raises(ParameterError, match="phrase"):
        attacks.get("text-backdoor", phrase=phrase)
